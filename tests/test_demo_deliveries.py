"""The demo of deliveries tells the truth: its verdict, the files that it leaves, and what it would say otherwise."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durably.deliveries.webhooks import new_secret, sign
from durably.demo.deliveries.audit import Account, audit, held_up_nobody, in_order
from durably.demo.deliveries.lines import Line
from durably.demo.deliveries.receivers import Receiver, receiving
from durably.demo.ledger import Ledger, read_as
from tests.support.command import SAFETY, SOURCE, Ran, in_process, run, start

PEERS = ["bakery", "florist", "garage", "grocer", "harbour"]


def run_program(folder: Path, program: str) -> Ran:
    """Run Python in a folder, in a process of its own, since the demo's application is made when it is imported."""
    text = "import sys\nfrom pathlib import Path\n" + textwrap.dedent(program)
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=SAFETY,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the demo was told once."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it keeps what it needs only while it runs."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def told(folder: Path, temporary: Path) -> Ran:
    """What the demo said, once everyone who could say something was gone."""
    with start(folder, "demo", "deliveries", "--fast", env={"TMPDIR": str(temporary)}) as process:
        out, err = process.communicate(timeout=SAFETY)
    return Ran(process.returncode, out, err)


@pytest.fixture(scope="module")
def lines(told: Ran, folder: Path) -> list[dict[str, Any]]:
    """The ledger that it left, as anybody can read it."""
    return [json.loads(line) for line in (folder / "durably-demo.ledger").read_text().splitlines()]


def test_the_demo_holds_what_it_promises(told: Ran) -> None:
    assert told.code == 0, told.out + told.err
    assert told.err == ""
    assert "Everything held." in told.out
    assert "FAIL" not in told.out
    assert told.out.count("\n  ok    ") == 7


def test_it_leaves_its_two_files_and_nothing_else(told: Ran, folder: Path, temporary: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["durably-demo.db", "durably-demo.ledger"]
    assert list(temporary.iterdir()) == []
    started = re.search(r"Two worker processes start: (\d+) and (\d+)", told.out)
    another = re.search(r"has started another one: (\d+)", told.out)
    assert started is not None
    assert another is not None
    for pid in (*started.groups(), *another.groups()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_it_shows_the_kill_the_dead_peer_the_report_the_dead_letters_and_the_probe(told: Ran) -> None:
    for words in (
        "At the port of harbour nobody listens",
        "bakery had read message 10, and had not answered",
        "message 10 was sent again, with the same id",
        r"harbour webhook suspended in \d+m no connection to",
        "bakery delivered, maybe twice 2",
        "permanent: 501 Not Implemented",
        r"harbour waiting 0 in \d+m suspended: no connection",
        "garage refused 3 refunds for good",
        "gave 3 dead letters a new cycle; 0 are left",
        "with the message that waited first. It is active again",
        r"30 messages to 5 peers = 150 delivered \+ 0 dead: nothing is lost",
    ):
        assert re.search(words, " ".join(told.out.split())), words


def test_no_secret_is_on_the_screen_or_in_a_file(told: Ran, folder: Path) -> None:
    kept = b"".join(path.read_bytes() for path in folder.iterdir())

    assert "whsec_" not in told.out
    assert b"whsec_" not in kept
    assert not re.search(r"[A-Za-z0-9+/]{43}=", told.out)


def test_where_nobody_watches_it_prints_few_lines_and_no_escapes(told: Ran) -> None:
    assert "\x1b" not in told.out
    assert "\r" not in told.out
    assert len(told.out.splitlines()) < 110
    assert max(map(len, told.out.splitlines())) <= 96


def test_the_ledger_and_the_database_agree_when_others_compare_them(
    told: Ran, folder: Path, lines: list[dict[str, Any]]
) -> None:
    with closing(sqlite3.connect(folder / "durably-demo.db")) as connection:
        ended = connection.execute("SELECT state, payload FROM durably_history").fetchall()
        [(left,)] = connection.execute("SELECT count(*) FROM durably_tasks").fetchall()
    found = [json.loads(payload) for _, payload in ended]
    known = {(one["message"], one["destination"]) for one in found}

    assert left == 0
    assert {state for state, _ in ended} == {"done"}
    assert len(ended) == len(known) == 150
    assert {(line["message"], line["peer"]) for line in lines if line["what"] == "published"} == known
    assert {(line["message"], line["peer"]) for line in lines if line["what"] == "took"} == known
    for peer in PEERS:
        refused = {line["number"] for line in lines if line["peer"] == peer and line["what"] == "refused"}
        took = [line["number"] for line in lines if line["peer"] == peer and line["what"] == "took"]
        first = [number for number in dict.fromkeys(took) if number not in refused]
        assert first == [number for number in range(1, 31) if number not in refused]
        assert refused == ({10, 20, 30} if peer == "garage" else set())
        assert [number for number in took if number in refused] == sorted(refused)


def test_the_number_of_duplicates_is_the_real_one(told: Ran, lines: list[dict[str, Any]]) -> None:
    took = Counter((line["message"], line["peer"]) for line in lines if line["what"] == "took")
    twice = sum(times > 1 for times in took.values())

    assert twice >= 1
    assert f"arrived twice, all of these marked: {twice};" in " ".join(told.out.split())


def test_the_one_who_was_killed_is_one_of_the_workers_and_had_sent_the_message(
    told: Ran, lines: list[dict[str, Any]]
) -> None:
    [killed] = [line for line in lines if line["what"] == "killed"]
    first, second = [
        line for line in lines if line["what"] == "took" and line["peer"] == "bakery" and line["number"] == 10
    ]

    assert f"kill -9 {killed['pid']}:" in told.out
    assert first["pid"] == killed["pid"] != second["pid"]
    assert first["message"] == second["message"] == killed["message"]


def test_what_it_leaves_can_be_looked_at_without_any_option(
    told: Ran, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for variable in ("DURABLY_STORE", "DURABLY_SECRETS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    durably = in_process(capsys)

    listed = durably("destinations", "list", "--json").data
    assert {one["name"]: one["condition"]["standing"] for one in listed} == dict.fromkeys(PEERS, "active")
    message = re.search(r"durably destinations report (\S+)", told.out)
    assert message is not None
    report = durably("destinations", "report", message[1], "--json").data
    assert {one["destination"]: one["outcome"] for one in report["deliveries"]} == dict.fromkeys(PEERS, "delivered")
    assert [one["destination"] for one in report["deliveries"] if one["possible_duplicate"]][:1] == ["bakery"]


@pytest.mark.parametrize("lost", ["published", "took"])
def test_a_ledger_that_does_not_agree_is_a_failure(told: Ran, folder: Path, tmp_path: Path, lost: str) -> None:
    kept = (folder / "durably-demo.ledger").read_text().splitlines(keepends=True)
    del kept[max(at for at, line in enumerate(kept) if f'"what":"{lost}"' in line)]
    (tmp_path / "lacking.ledger").write_text("".join(kept))
    program = f"""
        from durably.demo.deliveries.story import FAST, Story
        from durably.demo.files import Place
        from durably.demo.screen import Screen

        place = Place(Path("durably-demo.db"), Path({str(tmp_path / "lacking.ledger")!r}))
        sys.exit(0 if Story(place, FAST, Screen(), sys.stdout.buffer).compare(1.0) else 1)
    """

    ran = run_program(folder, program)

    assert ran.code == 1
    assert "  FAIL  " in ran.out
    assert "This must not happen: not everything held." in ran.out


def test_workers_that_do_not_start_end_the_demo_and_what_they_said_is_kept(tmp_path: Path) -> None:
    program = """
        from durably.cli import main
        from durably.demo import workers

        workers.COMMAND = ("-c", "import sys; sys.exit('no luck today')")
        sys.exit(main(["demo", "deliveries", "--fast"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1, ran.err
    assert "The demo could not go on: a worker left with exit code 1 instead of working" in ran.out
    assert "no luck today" in (tmp_path / "durably-demo.log").read_text()


@pytest.mark.parametrize("package", ["aiohttp", "cryptography"])
def test_without_the_extra_it_says_what_to_install_and_touches_nothing(tmp_path: Path, package: str) -> None:
    program = f"""
        sys.modules[{package!r}] = None
        from durably.cli import main
        sys.exit(main(["demo", "deliveries"]))
    """

    ran = run_program(tmp_path, program)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"durably: deliveries over HTTP need {package}: install it with `pip install 'durably[http]'`\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_demo_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "durably-demo.db").write_text("precious")

    ran = run(tmp_path, "demo", "deliveries")

    assert (ran.code, ran.out) == (1, "")
    assert "was not made by the demo and stays as it is" in ran.err
    assert (tmp_path / "durably-demo.db").read_text() == "precious"


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    durably = in_process(capsys)

    shown = durably("demo", "--help")
    assert shown.code == 0
    assert "durably demo deliveries" in shown.out
    assert "messages to peers" in shown.out
    wrong = durably("demo", "delivery")
    assert wrong.code == 2
    assert "deliveries" in wrong.err


# --- what the audit would find ---


class Books:
    """A ledger and an engine that agree: three messages to a peer that refuses one, and to one that is late."""

    def __init__(self) -> None:
        self.lines = [
            *(Line("published", peer, f"m{number}", number) for number in (1, 2, 3) for peer in ("early", "late")),
            Line("took", "early", "m1", 1, 7),
            Line("killed", "early", "m1", 1, 7),
            Line("took", "early", "m1", 1, 8),
            Line("refused", "early", "m2", 2, 8),
            Line("took", "early", "m3", 3, 8),
            Line("took", "early", "m2", 2, 8),
            *(Line("took", "late", f"m{number}", number, 8) for number in (1, 2, 3)),
        ]
        self.accounts = {
            (message, peer): Account(message, peer, "done", (message, peer) == ("m1", "early"))
            for message in ("m1", "m2", "m3")
            for peer in ("early", "late")
        }

    def change(self, message: str, peer: str, **what: Any) -> None:
        account = self.accounts[message, peer]
        self.accounts[message, peer] = msgspec.structs.replace(account, **what)

    def failed(self) -> list[int]:
        """The numbers of the checks that do not hold."""
        checks = list(audit(self.lines, list(self.accounts.values()), "late"))
        assert len(checks) == 7
        return [number for number, check in enumerate(checks, start=1) if not check.passed]


@pytest.fixture
def books() -> Books:
    return Books()


def test_the_audit_passes_books_that_agree(books: Books) -> None:
    assert books.failed() == []


def test_the_audit_finds_that_nothing_was_published_at_all() -> None:
    checks = list(audit([], [], "late"))

    assert not checks[0].passed


def test_the_audit_finds_a_delivery_that_was_lost(books: Books) -> None:
    del books.accounts["m3", "late"]

    assert books.failed() == [1, 2]


def test_the_audit_finds_a_delivery_that_nobody_published(books: Books) -> None:
    books.lines.remove(Line("published", "late", "m3", 3))

    assert books.failed() == [1]


def test_the_audit_finds_a_delivery_that_is_not_at_its_end(books: Books) -> None:
    books.change("m3", "late", state="blocked")

    assert books.failed() == [1, 2]


def test_the_audit_finds_a_delivery_that_is_called_done_but_never_arrived(books: Books) -> None:
    books.lines.pop()

    assert books.failed() == [2]


def test_the_audit_accounts_for_a_dead_letter_that_never_arrived(books: Books) -> None:
    books.lines.pop()
    books.change("m3", "late", state="dead")

    assert books.failed() == []


def test_the_audit_finds_a_dead_letter_that_did_arrive(books: Books) -> None:
    books.change("m3", "late", state="dead")

    assert books.failed() == [2]


def test_the_audit_finds_what_came_out_of_order(books: Books) -> None:
    books.lines[-1], books.lines[-2] = books.lines[-2], books.lines[-1]

    assert books.failed() == [3]


def test_the_audit_finds_a_duplicate_that_is_not_marked(books: Books) -> None:
    books.lines.append(books.lines[-1])
    assert books.failed() == [4]

    books.change("m3", "late", doubtful=True)
    assert books.failed() == []


def test_the_audit_finds_that_no_attempt_was_interrupted(books: Books) -> None:
    books.lines.remove(Line("took", "early", "m1", 1, 7))

    assert books.failed() == [4]


def test_the_audit_finds_a_refusal_that_was_not_believed(books: Books) -> None:
    refusal = books.lines.index(Line("refused", "early", "m2", 2, 8))
    books.lines.insert(refusal, Line("refused", "early", "m2", 2, 7))
    assert books.failed() == []

    books.lines.insert(refusal, Line("refused", "early", "m2", 2, 9))
    assert books.failed() == [5]


def test_the_audit_finds_that_nothing_was_refused(books: Books) -> None:
    books.lines.remove(Line("refused", "early", "m2", 2, 8))

    assert 5 in books.failed()


def test_the_audit_finds_that_the_late_peer_held_up_another(books: Books) -> None:
    taken = Line("took", "early", "m3", 3, 8)
    lines = [line for line in books.lines if line != taken]

    assert held_up_nobody(books.lines, "late")
    assert not held_up_nobody([*lines, taken], "late")
    assert not held_up_nobody([line for line in lines if line.peer != "late"], "late")


def test_the_audit_finds_a_request_that_was_not_signed(books: Books) -> None:
    books.lines.append(Line("unsigned", "early"))

    assert books.failed() == [7]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t1 t2 t3", True),
        ("t1 t1 t2", True),
        ("t1 r2 t3 t2 t4", True),
        ("r1 r2 t3 t1 t2 t2", True),
        ("r1 r1 t1 t2", True),
        ("t2", False),
        ("t1 t3 t2", False),
        ("t1 t2 t1", False),
        ("r1 r2 t3 t2 t1", False),
        ("r1 t2 t1 t3 t1", False),
    ],
)
def test_order_at_a_peer(text: str, expected: bool) -> None:
    """ "t1 r2": it took message 1 and refused message 2."""
    whats = {"t": "took", "r": "refused"}
    lines = [Line(whats[word[0]], "peer", f"m{word[1:]}", int(word[1:])) for word in text.split()]

    assert in_order(lines) is expected


# --- the receivers ---


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger")
    yield made
    made.close()


@pytest.fixture
def peer(ledger: Ledger) -> Iterator[Receiver]:
    with receiving(["peer"], ledger) as peers:
        peers["peer"].secret = new_secret()
        yield peers["peer"]


def post(peer: Receiver, number: int, *, secret: str | None = None, event: str = "order.paid") -> str:
    """The status line of the answer; nothing if there was none."""
    body = json.dumps({"event": event, "number": number}).encode()
    signed = sign([secret or peer.secret], f"m{number}", int(time.time()), body)
    headers = {**signed, "user-agent": "durably-demo/7", "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return exchange(peer, f"POST /hooks HTTP/1.1\r\n{head}\r\n".encode() + body)


def exchange(peer: Receiver, request: bytes) -> str:
    port = int(peer.address.rsplit(":", 1)[1].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=SAFETY) as connection:
        connection.sendall(request)
        return connection.recv(1000).decode().partition("\r\n")[0]


def test_a_peer_that_is_not_open_turns_everyone_away_and_answers_at_the_same_port_later(peer: Receiver) -> None:
    with pytest.raises(ConnectionRefusedError):
        post(peer, 1)

    peer.open()

    assert post(peer, 1) == "HTTP/1.1 204 No Content"


def test_a_peer_writes_down_what_it_took_and_what_it_refused(peer: Receiver, tmp_path: Path) -> None:
    peer.open()
    peer.refuses = "order.refunded"

    assert post(peer, 1) == "HTTP/1.1 204 No Content"
    assert post(peer, 2, event="order.refunded") == "HTTP/1.1 501 Not Implemented"
    assert post(peer, 3, secret=new_secret()) == "HTTP/1.1 401 Unauthorized"
    assert read_as(Line, tmp_path / "ledger") == [
        Line("took", "peer", "m1", 1, 7),
        Line("refused", "peer", "m2", 2, 7),
        Line("unsigned", "peer"),
    ]


@pytest.mark.parametrize("length", ["", "-1", "ten", "100000", "9" * 5000])
def test_a_peer_hangs_up_on_what_it_cannot_measure(peer: Receiver, length: str, tmp_path: Path) -> None:
    peer.open()

    assert exchange(peer, f"POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n".encode()) == ""
    assert post(peer, 1) == "HTTP/1.1 204 No Content"
    assert len(read_as(Line, tmp_path / "ledger")) == 1
