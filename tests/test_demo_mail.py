"""The demo of mail tells the truth: its verdict, the files that it leaves, and what it would say otherwise."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from smtplib import SMTP, SMTPServerDisconnected
from typing import Any

import msgspec
import pytest

from durably.demo.ledger import read_as
from durably.demo.mail.audit import Account, audit
from durably.demo.mail.lines import Line
from durably.demo.mail.server import FLAKY, GREY, NOBODY, SILENT, STRICT
from durably.demo.screen import Screen
from durably.demo.servers import Server, serving
from durably.demo.workers import Silent, kill_the_sender, wait_until
from tests.support.command import SAFETY, Ran, in_process, run, start
from tests.test_demo_deliveries import run_program

MAIL = b"Message-ID: <m1@shop.example>\r\nSubject: Hello\r\n\r\nDear you\r\n"


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
    with start(folder, "demo", "mail", env={"TMPDIR": str(temporary)}) as process:
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
    assert told.out.count("\n  ok    ") == 9


def test_it_leaves_its_two_files_and_nothing_else(
    told: Ran, folder: Path, temporary: Path, lines: list[dict[str, Any]]
) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["durably-demo.db", "durably-demo.ledger"]
    assert list(temporary.iterdir()) == []
    for pid in {line["pid"] for line in lines if "pid" in line}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_shows_the_kill_the_refusals_the_fallback_the_report_and_the_resend(told: Ran) -> None:
    for words in (
        "in German: Ihre Bestellung 105 ist unterwegs",
        "3 were sent twice with the same key",
        r"kill -9 \d+: main had read the mail about order 105 up to its last dot, and had not answered",
        "sent again by another one, with the same Message-ID",
        r"said 452 to \d+ of them",
        "grete@grey.example waiting 450 4.7.1 I do not know you yet",
        "nobody@home.example refused 550 5.1.1 there is nobody of that name",
        "nobody@home.example bounce",
        "main smtp disabled once resumed misconfigured: 530 5.7.0 this account is locked",
        "order-105 stella@silent.example sent, maybe twice",
        "order-118 fritz@flaky.example sent, maybe twice",
        "order-121 office@strict.example refused 550 5.7.1 we do not trust the shop",
        "order-128 nobody@home.example suppressed suppressed since",
        "is sent again: 2 of 5 recipients did not get it",
        "It was sent to 1 of 5",
        r"30 mails to 90 recipients = 86 sent \+ 1 refused \+ 3 suppressed: nobody is lost",
    ):
        assert re.search(words, " ".join(told.out.split())), words


def test_where_nobody_watches_it_prints_few_lines_and_no_escapes(told: Ran) -> None:
    assert "\x1b" not in told.out
    assert "\r" not in told.out
    assert len(told.out.splitlines()) < 120
    assert max(map(len, told.out.splitlines())) <= 96


def test_the_ledger_and_the_database_agree_when_others_compare_them(
    told: Ran, folder: Path, lines: list[dict[str, Any]]
) -> None:
    with closing(sqlite3.connect(folder / "durably-demo.db")) as connection:
        mails = dict(connection.execute("SELECT id, key FROM durably_mails").fetchall())
        states = connection.execute("SELECT state FROM durably_history WHERE name = 'durably.deliver'").fetchall()
        [(left,)] = connection.execute("SELECT count(*) FROM durably_tasks").fetchall()
    accepted = [line for line in lines if line["what"] == "accepted"]

    assert left == 0
    assert Counter(state for (state,) in states) == {"done": 28, "dead": 1, "cancelled": 1}
    assert mails == {line["mail"]: line["key"] for line in accepted}
    assert len(mails) == len(set(mails.values())) == 30
    refused = {(line["mail"], line["to"]) for line in accepted if line["to"] == NOBODY}
    refused |= {(line["mail"], line["to"]) for line in accepted if line["key"] == "order-121" and line["to"] == STRICT}
    took = {(line["mail"], line["to"]) for line in lines if line["what"] == "took"}
    assert took == {(line["mail"], line["to"]) for line in accepted} - refused


def test_the_number_of_duplicates_is_the_real_one(told: Ran, lines: list[dict[str, Any]]) -> None:
    took = Counter((line["mail"], line["to"]) for line in lines if line["what"] == "took")
    twice = {delivery for delivery, times in took.items() if times > 1}

    assert {SILENT, FLAKY} <= {to for _, to in twice}
    assert f"arrived twice, all of these marked: {len(twice)};" in " ".join(told.out.split())


def test_the_one_who_was_killed_is_one_of_the_workers_and_had_sent_the_mail(
    told: Ran, lines: list[dict[str, Any]]
) -> None:
    [killed] = [line for line in lines if line["what"] == "killed"]
    first, second = [line for line in lines if line["what"] == "took" and line["to"] == SILENT]
    started = re.search(r"Two worker processes start: (\d+) and (\d+)", told.out)

    assert started is not None
    assert str(killed["pid"]) in started.groups()
    assert f"kill -9 {killed['pid']}:" in told.out
    assert first["pid"] == killed["pid"] != second["pid"]
    assert first["mail"] == second["mail"] == killed["mail"]


def test_the_mails_are_in_the_language_of_the_order_and_come_in_transactions_of_three(
    lines: list[dict[str, Any]],
) -> None:
    took = {line["subject"]: line["text"] for line in lines if line["what"] == "took"}

    assert took["Your order 101 is on its way"] == "Dear customer,\n\nyour order 101 left our house today.\n"
    assert "Guten Tag" in took["Ihre Bestellung 102 ist unterwegs"]
    assert sum(subject.startswith("Ihre") for subject in took) == 10
    assert any(line["what"] == "full" for line in lines)


def test_what_it_leaves_can_be_looked_at_without_any_option(
    told: Ran, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for variable in ("DURABLY_STORE", "DURABLY_SECRETS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    durably = in_process(capsys)

    states = Counter(one["state"] for one in durably("mail", "list", "--json").data)
    assert states == {"sent": 28, "dead": 1, "cancelled": 1}
    letter = durably("mail", "show", "order-121", "--json").data
    assert {one["address"]: one["state"] for one in letter["recipients"]} == {
        "dan@home.example": "sent",
        STRICT: "refused",
    }
    assert [one["address"] for one in durably("mail", "suppressions", "--json").data] == [NOBODY]
    standing = {one["name"]: one["condition"]["standing"] for one in durably("destinations", "list", "--json").data}
    assert standing == {"main": "active", "backup": "active"}


@pytest.mark.parametrize("lost", ["accepted", "took"])
def test_a_ledger_that_does_not_agree_is_a_failure(told: Ran, folder: Path, tmp_path: Path, lost: str) -> None:
    kept = (folder / "durably-demo.ledger").read_text().splitlines(keepends=True)
    del kept[max(at for at, line in enumerate(kept) if f'"what":"{lost}"' in line)]
    (tmp_path / "lacking.ledger").write_text("".join(kept))
    program = f"""
        from durably.demo.files import Place
        from durably.demo.mail.story import Story
        from durably.demo.screen import Screen

        place = Place(Path("durably-demo.db"), Path({str(tmp_path / "lacking.ledger")!r}))
        sys.exit(0 if Story(place, Screen(), sys.stdout.buffer).compare(1.0) else 1)
    """

    ran = run_program(folder, program)

    assert ran.code == 1
    assert "  FAIL  " in ran.out
    assert "This must not happen: not everything held." in ran.out


def test_a_mail_that_comes_twice_without_a_mark_fails_the_whole_demo(tmp_path: Path) -> None:
    program = """
        from durably.cli import main
        from durably.mail import info

        info._doubtful = lambda found, interrupted: False
        sys.exit(main(["demo", "mail"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1, ran.out + ran.err
    assert "  FAIL  marked as possible duplicates: 0; arrived twice, all of these marked: 4" in ran.out
    assert ran.out.count("\n  ok    ") == 8
    assert "This must not happen: not everything held." in ran.out
    assert (tmp_path / "durably-demo.log").exists()


def test_a_server_that_does_not_start_ends_the_demo(tmp_path: Path) -> None:
    program = """
        from durably.cli import main
        from durably.demo import servers

        servers.sys.executable = "/bin/false"
        sys.exit(main(["demo", "mail"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1, ran.err
    assert "The demo could not go on: a server left with exit code 1 instead of listening" in ran.out


def test_workers_that_do_not_start_end_the_demo_and_what_they_said_is_kept(tmp_path: Path) -> None:
    program = """
        from durably.cli import main
        from durably.demo import workers

        workers.COMMAND = ("-c", "import sys; sys.exit('no luck today')")
        sys.exit(main(["demo", "mail"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1, ran.err
    assert "The demo could not go on: a worker left with exit code 1 instead of working" in ran.out
    assert "no luck today" in (tmp_path / "durably-demo.log").read_text()


@pytest.mark.parametrize("package", ["aiosmtplib", "jinja2"])
def test_without_the_extra_it_says_what_to_install_and_touches_nothing(tmp_path: Path, package: str) -> None:
    program = f"""
        sys.modules[{package!r}] = None
        from durably.cli import main
        sys.exit(main(["demo", "mail"]))
    """

    ran = run_program(tmp_path, program)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"durably: mail needs {package}: install it with `pip install 'durably[smtp]'`\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_demo_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "durably-demo.db").write_text("precious")

    ran = run(tmp_path, "demo", "mail")

    assert (ran.code, ran.out) == (1, "")
    assert "was not made by the demo and stays as it is" in ran.err
    assert (tmp_path / "durably-demo.db").read_text() == "precious"


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    durably = in_process(capsys)

    shown = durably("demo", "--help")
    assert shown.code == 0
    assert "durably demo mail" in shown.out
    assert "SMTP servers that say later, no, or nothing at all" in shown.out
    wrong = durably("demo", "mails")
    assert wrong.code == 2
    assert "mail" in wrong.err


# --- what the audit would find ---


class Books:
    """A ledger and an engine that agree: a mail that was cut off, one that bounced, and one while main was locked."""

    def __init__(self) -> None:
        self.lines = [
            Line("accepted", "ann", "m1", "k1"),
            Line("again", mail="m1", key="k1"),
            Line("accepted", "ann", "m2", "k2"),
            Line("accepted", "nobody", "m2", "k2"),
            self.took("ann", "m1", pid=7),
            Line("killed", mail="m1", pid=7),
            self.took("ann", "m1"),
            self.took("ann", "m2"),
            Line("refused", "nobody", server="main", pid=8, said="550 5.1.1 no"),
            Line("locked"),
            Line("accepted", "nobody", "m3", "k3"),
            Line("accepted", "bob", "m3", "k3"),
            self.took("bob", "m3", "backup"),
            Line("unlocked"),
        ]
        self.accounts = {
            (mail, to): Account(mail, to, state, "250 fine", doubtful=mail == "m1")
            for mail, to, state in (
                ("m1", "ann", "sent"),
                ("m2", "ann", "sent"),
                ("m2", "nobody", "refused"),
                ("m3", "nobody", "suppressed"),
                ("m3", "bob", "sent"),
            )
        }

    @staticmethod
    def took(to: str, mail: str, server: str = "main", pid: int = 8, **more: Any) -> Line:
        """A line in which a server took a mail."""
        return msgspec.structs.replace(Line("took", to, mail, "", server, pid, f"about {mail}", bytes=mail), **more)

    def change(self, mail: str, to: str, **what: Any) -> None:
        self.accounts[mail, to] = msgspec.structs.replace(self.accounts[mail, to], **what)

    def failed(self) -> list[int]:
        """The numbers of the checks that do not hold."""
        checks = list(audit(self.lines, list(self.accounts.values())))
        assert len(checks) == 9
        return [number for number, check in enumerate(checks, start=1) if not check.passed]


@pytest.fixture
def books() -> Books:
    return Books()


def test_the_audit_passes_books_that_agree(books: Books) -> None:
    assert books.failed() == []


def test_the_audit_finds_that_nothing_happened_at_all() -> None:
    assert [check.passed for check in audit([], [])] == [False, True, False, False, True, False, False, False, False]


def test_the_audit_finds_a_recipient_who_was_lost(books: Books) -> None:
    del books.accounts["m3", "bob"]

    assert books.failed() == [1, 2]


def test_the_audit_finds_a_recipient_whom_nobody_named(books: Books) -> None:
    books.lines.remove(Line("accepted", "bob", "m3", "k3"))

    assert books.failed() == [1]


@pytest.mark.parametrize("state", ["waiting", "given up"])
def test_the_audit_finds_a_recipient_who_is_not_at_an_end(books: Books, state: str) -> None:
    books.change("m3", "nobody", state=state)

    assert books.failed() == [1]


def test_the_audit_finds_a_mail_that_is_called_sent_but_never_arrived(books: Books) -> None:
    books.lines.remove(books.took("ann", "m2"))

    assert books.failed() == [2]


def test_the_audit_finds_a_mail_that_arrived_although_it_is_called_refused(books: Books) -> None:
    books.lines.insert(4, books.took("nobody", "m2"))

    assert books.failed() == [2]


def test_the_audit_finds_that_nobody_knows_why(books: Books) -> None:
    books.change("m2", "nobody", said="")

    assert books.failed() == [3]


def test_the_audit_finds_a_duplicate_that_is_not_marked(books: Books) -> None:
    books.lines.insert(8, books.took("ann", "m2"))
    assert books.failed() == [4]

    books.change("m2", "ann", doubtful=True)
    assert books.failed() == []


def test_the_audit_finds_that_no_attempt_was_interrupted(books: Books) -> None:
    books.lines.remove(books.took("ann", "m1", pid=7))

    assert books.failed() == [4, 7]


def test_the_audit_finds_a_copy_that_differs(books: Books) -> None:
    books.lines[6] = books.took("ann", "m1", bytes="other")

    assert books.failed() == [5]


def test_the_audit_finds_a_second_mail_for_one_key(books: Books) -> None:
    books.lines[1] = Line("again", mail="m9", key="k1")
    assert books.failed() == [6]

    books.lines[1] = Line("again", mail="m1", key="k1")
    books.lines[7] = books.took("ann", "m2", subject="about m1")
    assert books.failed() == [6]


def test_the_audit_finds_that_nobody_went_on_after_the_kill(books: Books) -> None:
    books.lines[6] = books.took("ann", "m1", pid=7)

    assert books.failed() == [7]


def test_the_audit_finds_a_bounce_that_was_not_believed(books: Books) -> None:
    refusal = Line("refused", "nobody", server="main", pid=8, said="550 5.1.1 no")
    books.lines.append(msgspec.structs.replace(refusal, pid=7))
    assert books.failed() == []

    books.lines.append(refusal)
    assert books.failed() == [8]


def test_the_audit_finds_a_refusal_that_was_asked_for_more_often_than_there_are_mails(books: Books) -> None:
    refusal = Line("refused", "bob", server="main", pid=8, said="550 5.7.1 no")
    books.lines.append(refusal)
    assert books.failed() == []

    books.lines.append(refusal)
    assert books.failed() == [8]


def test_the_audit_finds_what_went_through_the_wrong_server(books: Books) -> None:
    books.lines[7] = books.took("ann", "m2", "backup")
    assert books.failed() == [9]

    books.lines[7] = books.took("ann", "m2")
    books.lines[12] = books.took("bob", "m3", "main")
    assert books.failed() == [9]


# --- the servers ---


class Desk:
    """The servers in a process of their own, and their ledger."""

    def __init__(self, server: Server, ledger: Path, open_clients: ExitStack) -> None:
        self._open = open_clients
        self._ledger = ledger
        self.server = server

    def client(self, name: str = "main") -> SMTP:
        """Somebody who has said who it is."""
        port = dict(zip(("main", "backup"), self.server.ports, strict=True))[name]
        made = SMTP("127.0.0.1", port, "worker-77.shop.example", SAFETY)
        self._open.callback(made.close)
        made.ehlo()
        return made

    def sends(self, client: SMTP, *recipients: str) -> list[int]:
        """What the server answers to each recipient, and to the mail."""
        client.mail("shop@shop.example")
        said = [client.rcpt(one)[0] for one in recipients]
        return [*said, client.data(MAIL)[0]] if 250 in said else said

    def lines(self) -> list[Line]:
        return read_as(Line, self._ledger) if self._ledger.exists() else []

    def written(self) -> list[tuple[str, str]]:
        return [(line.what, line.to) for line in self.lines()]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    path = tmp_path / "ledger"
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        yield Desk(stack.enter_context(serving("durably.demo.mail.server", path, log)), path, stack)


def test_a_server_writes_down_what_it_takes(desk: Desk) -> None:
    client = desk.client()

    assert desk.sends(client, "ann@home.example") == [250, 250]
    [line] = desk.lines()
    assert (line.what, line.to, line.mail, line.server, line.pid) == ("took", "ann@home.example", "m1", "main", 77)
    assert (line.subject, line.text) == ("Hello", "Dear you\n")
    assert client.quit()[0] == 221


def test_a_server_takes_three_at_a_time_and_the_others_in_the_next_transaction(desk: Desk) -> None:
    client = desk.client()

    assert desk.sends(client, "a", "b", "c", "d") == [250, 250, 250, 452, 250]
    assert desk.sends(client, "d") == [250, 250]
    assert desk.written() == [("full", "d"), ("took", "a"), ("took", "b"), ("took", "c"), ("took", "d")]


def test_a_server_says_later_once_and_no_until_it_trusts_the_shop(desk: Desk) -> None:
    client = desk.client()

    assert desk.sends(client, GREY, NOBODY, STRICT) == [450, 550, 550]
    desk.server.tell("trust")
    assert desk.sends(client, GREY, NOBODY, STRICT) == [250, 550, 250, 250]


def test_a_server_hangs_up_after_the_last_line_once_although_it_has_taken_it(desk: Desk) -> None:
    with pytest.raises(SMTPServerDisconnected):
        desk.sends(desk.client(), FLAKY)

    assert desk.sends(desk.client(), FLAKY) == [250, 250]
    assert desk.written() == [("took", FLAKY), ("took", FLAKY)]


def test_a_server_keeps_one_sender_waiting_who_can_only_leave(desk: Desk) -> None:
    client = desk.client()
    client.mail("shop@shop.example")
    client.rcpt(SILENT)
    client.docmd("DATA")
    client.send(MAIL + b".\r\n")
    wait_until(lambda: desk.written() or None)
    client.close()

    assert desk.sends(desk.client(), SILENT) == [250, 250]
    assert desk.written() == [("took", SILENT), ("took", SILENT)]


def test_only_the_first_server_can_be_locked_and_takes_nothing_then(desk: Desk) -> None:
    client = desk.client()
    desk.server.tell("lock")

    assert client.mail("shop@shop.example") == (530, b"5.7.0 this account is locked")
    assert client.rcpt("ann@home.example") == (503, b"5.5.1 not now")
    assert client.docmd("DATA") == (503, b"5.5.1 not now")
    assert desk.sends(desk.client("backup"), "ann@home.example") == [250, 250]
    desk.server.tell("unlock")
    assert desk.sends(client, "ann@home.example") == [250, 250]


def test_a_server_leaves_when_nobody_tells_it_anything_any_more(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        with serving("durably.demo.mail.server", tmp_path / "ledger", log) as server:
            process = server._process
        assert process.returncode == 0
        assert (tmp_path / "log").read_bytes() == b""

        with (
            pytest.raises(Silent, match="a server left with exit code 1 instead of listening"),
            serving("durably.demo.no_such_server", tmp_path / "ledger", log),
        ):
            pass


def test_a_process_that_is_no_worker_is_never_killed() -> None:
    with pytest.raises(Silent, match=f"process {os.getpid()} sends what is watched, and is none of the workers"):
        kill_the_sender([], os.getpid)


def test_a_table_is_aligned_and_never_wider_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "51")
    stream = io.StringIO()

    Screen(stream).table(("NAME", "TIMES", "SAID"), ("ann", 7, "x" * 100), ("barbara", 12, ""))

    first, second, third = stream.getvalue().splitlines()
    assert first == "    NAME     TIMES  SAID"
    assert second == f"    ann          7  {'x' * 29}…"
    assert third == "    barbara     12"
