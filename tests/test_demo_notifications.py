"""The demo of notifications tells the truth: its verdict, the files that it leaves, and what it would say otherwise."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durably.demo.ledger import read_as
from durably.demo.notifications.audit import Account, Books, audit
from durably.demo.notifications.lines import Line
from durably.demo.notifications.receiver import GONE, SILENT
from durably.demo.servers import serving
from durably.demo.workers import wait_until
from tests.support.command import SAFETY, SOURCE, Ran, in_process, run, start
from tests.test_demo_deliveries import run_program

PEOPLE = ("ann", "cyd", "eve", "fay")
"""Those who get mail."""


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
    with start(folder, "demo", "notifications", env={"TMPDIR": str(temporary)}) as process:
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
    assert told.out.count("\n  ok    ") == 10


def test_it_leaves_its_two_files_and_nothing_else(
    told: Ran, folder: Path, temporary: Path, lines: list[dict[str, Any]]
) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["durably-demo.db", "durably-demo.ledger"]
    assert list(temporary.iterdir()) == []
    for pid in {line["pid"] for line in lines if "pid" in line}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_shows_the_kill_the_fallback_the_wishes_the_digest_and_the_inbox(told: Ran) -> None:
    for words in (
        "3 orders were told twice with the same key",
        "It is malformed, and nobody gets it: order.paid: Expected `int`, got `str`",
        r"kill -9 \d+: the push service had read an alarm for ann, and had not answered",
        "it was sent again, with the same id",
        r"2 order.paid dan mail pending \S+",
        "2 order.paid bob mail skipped no address for mail",
        "1 alarm ann push sent, maybe twice",
        "2 alarm eve push dead permanent: 410 Gone",
        "2 alarm eve sms sent",
        r"fay has 6 entries in the inbox, 6 of them unread; then fay reads 6, and 0 are unread",
        "The inbox of fay has 6 in it, 0 unread",
        "cyd 0 skipped the recipient does not want it",
        r"Subject: \d neue Kommentare",
        "CHANNEL SENT SKIPPED CANCELLED DEAD PENDING inbox 24 0 0 0 0",
        "push 6 0 0 2 0 sms 2 0 0 0 0",
        "18 notifications on 58 routes",
    ):
        assert re.search(words, " ".join(told.out.split())), words


def test_where_nobody_watches_it_prints_few_lines_and_no_escapes(told: Ran) -> None:
    assert "\x1b" not in told.out
    assert "\r" not in told.out
    assert len(told.out.splitlines()) < 100
    assert max(map(len, told.out.splitlines())) <= 96


def test_the_ledger_and_the_database_agree_when_others_compare_them(
    told: Ran, folder: Path, lines: list[dict[str, Any]]
) -> None:
    with closing(sqlite3.connect(folder / "durably-demo.db")) as connection:
        routes = connection.execute("SELECT notification, recipient, channel FROM durably_routes").fetchall()
        problems = connection.execute("SELECT id FROM durably_notifications WHERE problem IS NOT NULL").fetchall()
        left = connection.execute("SELECT json_extract(payload, '$.recipient') FROM durably_tasks").fetchall()
        entries = connection.execute("SELECT notification, recipient FROM durably_inbox").fetchall()
    accepted = {(line["notification"], line["to"], line["channel"]) for line in lines if line["what"] == "accepted"}

    assert len(routes) == len(set(routes))
    assert {route[1:] for route in set(routes) - accepted} == {("eve", "sms")}
    assert accepted <= set(routes)
    assert [(line["notification"],) for line in lines if line["what"] == "malformed"] == problems
    assert left == [("dan",), ("dan",)]
    assert sorted(entries) == sorted(route[:2] for route in accepted if route[2] == "inbox")


def test_people_got_what_they_wanted_and_nothing_else(lines: list[dict[str, Any]]) -> None:
    took = [line for line in lines if line["what"] == "took"]
    mails = [line for line in took if "mail" in line]
    subjects = {
        to: sorted(line["subject"] for line in mails if line["to"] == to) for to in {one["to"] for one in mails}
    }

    assert subjects.keys() == {f"{name}@home.example" for name in ("ann", "cyd", "eve", "fay")}
    assert subjects["cyd@home.example"] == ["Order 206 is paid", "Order 212 is paid"]
    assert set(subjects["fay@home.example"]) >= {"Bestellung 203 ist bezahlt", "Bestellung 209 ist bezahlt"}
    pushed = Counter(line["to"] for line in took if line.get("channel") == "push")
    assert pushed.keys() == {SILENT, *(f"device-of-{name}" for name in ("bob", "cyd", "dan", "fay"))}
    assert pushed["device-of-dan"] == 1
    assert Counter(line["to"] for line in took if line.get("channel") == "sms") == {"+33 1 5550105": 2}


def test_the_one_who_was_killed_is_one_of_the_workers_and_had_sent_the_alarm(
    told: Ran, lines: list[dict[str, Any]]
) -> None:
    [killed] = [line for line in lines if line["what"] == "killed"]
    first, second = [line for line in lines if line["what"] == "took" and line.get("note") == killed["note"]]
    started = re.search(r"Two worker processes start: (\d+) and (\d+)", told.out)

    assert started is not None
    assert str(killed["pid"]) in started.groups()
    assert first["pid"] == killed["pid"] != second["pid"]
    assert first["to"] == second["to"] == SILENT


def test_what_it_leaves_can_be_looked_at_without_any_option(
    told: Ran, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    durably = in_process(capsys)

    assert {one["state"] for one in durably("mail", "list", "--json").data} == {"sent"}
    assert len(durably("notifications", "list", "--json").data) == 19
    assert len(durably("notifications", "routes", "--state", "dead", "--json").data) == 2
    assert "The inbox of ann has 6 in it, 6 unread." in durably("notifications", "inbox", "ann").out


@pytest.mark.parametrize("lost", ["accepted", "took"])
def test_a_ledger_that_does_not_agree_is_a_failure(told: Ran, folder: Path, tmp_path: Path, lost: str) -> None:
    kept = (folder / "durably-demo.ledger").read_text().splitlines(keepends=True)
    del kept[max(at for at, line in enumerate(kept) if f'"what":"{lost}"' in line)]
    (tmp_path / "lacking.ledger").write_text("".join(kept))
    program = f"""
        from durably.demo.files import Place
        from durably.demo.notifications.story import Story
        from durably.demo.screen import Screen

        place = Place(Path("durably-demo.db"), Path({str(tmp_path / "lacking.ledger")!r}))
        sys.exit(0 if Story(place, Screen(), sys.stdout.buffer).compare(1.0) else 1)
    """

    ran = run_program(folder, program)

    assert ran.code == 1
    assert "  FAIL  " in ran.out
    assert "This must not happen: not everything held." in ran.out


def test_workers_that_do_not_care_for_wishes_fail_the_whole_demo(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "from durably.notifications import router\nrouter.wanted = lambda said, kind, channel: True\n"
    )

    with start(tmp_path, "demo", "notifications", env={"PYTHONPATH": f"{broken}:{SOURCE}"}) as process:
        out, _ = process.communicate(timeout=SAFETY)

    assert process.returncode == 1, out
    assert "  FAIL  cyd got no comment by mail" in out
    assert out.count("\n  ok    ") == 9
    assert "This must not happen: not everything held." in out
    assert (tmp_path / "durably-demo.log").exists()


def test_workers_that_do_not_start_end_the_demo_and_what_they_said_is_kept(tmp_path: Path) -> None:
    program = """
        from durably.cli import main
        from durably.demo import workers

        workers.COMMAND = ("-c", "import sys; sys.exit('no luck today')")
        sys.exit(main(["demo", "notifications"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1, ran.err
    assert "The demo could not go on: a worker left with exit code 1 instead of working" in ran.out
    said = (tmp_path / "durably-demo.log").read_text()
    assert "no luck today" in said
    assert "a notification is malformed, and kept as such" in said
    assert ran.err == ""


@pytest.mark.parametrize("package", ["aiohttp", "aiosmtplib", "jinja2"])
def test_without_the_extras_it_says_what_to_install_and_touches_nothing(tmp_path: Path, package: str) -> None:
    program = f"""
        sys.modules[{package!r}] = None
        from durably.cli import main
        sys.exit(main(["demo", "notifications"]))
    """

    ran = run_program(tmp_path, program)

    assert (ran.code, ran.out) == (1, "")
    assert f"need {package}: install it with `pip install 'durably[http,smtp]'`" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_demo_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "durably-demo.db").write_text("precious")

    ran = run(tmp_path, "demo", "notifications")

    assert (ran.code, ran.out) == (1, "")
    assert "was not made by the demo and stays as it is" in ran.err
    assert (tmp_path / "durably-demo.db").read_text() == "precious"


def test_help_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = in_process(capsys)("demo", "--help")

    assert shown.code == 0
    assert "durably demo notifications" in shown.out
    assert "what people are told in their inbox, by mail, push and SMS" in shown.out


# --- what the audit would find ---


class Case:
    """A ledger and an engine that agree: two comments in one mail, one alarm that fell back, and wishes."""

    def __init__(self) -> None:
        self.lines = [
            *(
                Line("accepted", notification, "comment", "", to, channel, text=f"said {notification}")
                for notification in ("c1", "c2")
                for to in ("ann", "cyd")
                for channel in ("inbox", "mail")
            ),
            *(Line("accepted", "a1", "alarm", "k1", to, "push") for to in ("ann", "eve")),
            Line("again", "a1", "alarm", "k1"),
            Line("accepted", "p1", "paid", "", "dan", "mail"),
            Line("malformed", "x1"),
            Line("took", to="ann-device", channel="push", note="r-ann-push", pid=7),
            Line("killed", note="r-ann-push", pid=7),
            Line("took", to="ann-device", channel="push", note="r-ann-push", pid=8),
            Line("gone", to="eve-device", channel="push", note="r-eve-push", pid=8),
            Line("took", to="eve-phone", channel="sms", note="r-eve-sms", pid=8),
            Line("took", to="ann@x", mail="m1", pid=8, text="said c1, said c2"),
        ]
        self.accounts = {
            one.route: one
            for one in (
                *(Account(c, "comment", to, "inbox", "sent") for c in ("c1", "c2") for to in ("ann", "cyd")),
                *(Account(c, "comment", "ann", "mail", "sent", "", "m1", "ann@x") for c in ("c1", "c2")),
                *(Account(c, "comment", "cyd", "mail", "skipped", "no", "", "cyd@x") for c in ("c1", "c2")),
                Account("a1", "alarm", "ann", "push", "sent", "", "r-ann-push", "ann-device", doubtful=True),
                Account("a1", "alarm", "eve", "push", "dead", "permanent: gone", "r-eve-push", "eve-device"),
                Account("a1", "alarm", "eve", "sms", "sent", "", "r-eve-sms", "eve-phone"),
                Account("p1", "paid", "dan", "mail", "pending", "quiet", "", "dan@x", quiet=True),
            )
        }
        self.malformed = {"x1": "seven is no number"}
        self.seen = [(c, to, "inbox") for c in ("c1", "c2") for to in ("ann", "cyd")]

    def change(self, notification: str, to: str, channel: str, **what: Any) -> None:
        route = (notification, to, channel)
        self.accounts[route] = msgspec.structs.replace(self.accounts[route], **what)

    def without(self, **what: Any) -> None:
        """Leave out the one line that is so."""
        [found] = [line for line in self.lines if all(getattr(line, name) == value for name, value in what.items())]
        self.lines.remove(found)

    def failed(self) -> list[int]:
        """The numbers of the checks that do not hold."""
        books = Books(list(self.accounts.values()), self.malformed, self.seen)
        checks = list(audit(self.lines, books, "cyd", "dan"))
        assert len(checks) == 10
        return [number for number, check in enumerate(checks, start=1) if not check.passed]


@pytest.fixture
def case() -> Case:
    return Case()


def test_the_audit_passes_books_that_agree(case: Case) -> None:
    assert case.failed() == []


def test_the_audit_finds_a_route_that_was_lost(case: Case) -> None:
    del case.accounts["c1", "cyd", "mail"]

    assert case.failed() == [1]


def test_the_audit_finds_a_route_that_nobody_asked_for(case: Case) -> None:
    case.accounts["c1", "bob", "mail"] = Account("c1", "comment", "bob", "mail", "skipped", "no address")
    assert case.failed() == [1]

    case = Case()
    case.without(notification="c1", to="cyd", channel="mail")
    assert case.failed() == [1]


@pytest.mark.parametrize("state", ["retrying", "collecting", "forgotten"])
def test_the_audit_finds_a_route_that_is_not_at_its_end(case: Case, state: str) -> None:
    case.change("c1", "cyd", "mail", state=state)

    assert case.failed() == [1]


def test_the_audit_finds_what_is_called_sent_but_never_arrived(case: Case) -> None:
    case.without(note="r-eve-sms")
    assert case.failed() == [2]

    case = Case()
    case.seen.pop()
    assert case.failed() == [2]


def test_the_audit_finds_what_arrived_although_it_is_called_skipped(case: Case) -> None:
    case.lines.append(Line("took", to="cyd@x", mail="m2", text="hello"))

    assert case.failed() == [2]


def test_the_audit_finds_that_nobody_knows_why(case: Case) -> None:
    case.change("c1", "cyd", "mail", reason="")

    assert case.failed() == [3]


def test_the_audit_finds_what_waits_for_something_else_than_the_end_of_quiet_hours(case: Case) -> None:
    case.change("c1", "cyd", "mail", state="pending")
    assert case.failed() == [3]

    case = Case()
    case.change("p1", "dan", "mail", state="skipped", quiet=False)
    assert case.failed() == [3]


def test_the_audit_finds_a_duplicate_that_is_not_marked(case: Case) -> None:
    case.change("a1", "ann", "push", doubtful=False)

    assert case.failed() == [4]


def test_the_audit_finds_that_nobody_went_on_after_the_kill(case: Case) -> None:
    case.without(note="r-ann-push", what="took", pid=8)

    assert case.failed() == [4, 5]


def test_the_audit_finds_a_comment_that_is_in_two_mails_or_in_none(case: Case) -> None:
    mail = case.lines[-1]
    case.lines[-1] = msgspec.structs.replace(mail, text="said c1")
    assert case.failed() == [6]

    case.lines[-1] = mail
    case.lines.append(msgspec.structs.replace(mail, mail="m2", text="said c2"))
    assert 6 in case.failed()


def test_the_audit_finds_that_nothing_was_collected(case: Case) -> None:
    case.change("c2", "ann", "mail", thing="m2")
    case.lines[-1] = msgspec.structs.replace(case.lines[-1], text="said c1")
    case.lines.append(msgspec.structs.replace(case.lines[-1], mail="m2", text="said c2"))

    assert case.failed() == [6]


def test_the_audit_finds_an_alarm_that_reached_nobody(case: Case) -> None:
    case.change("a1", "eve", "sms", state="dead", reason="no such number")

    assert 7 in case.failed()


def test_the_audit_finds_a_fallback_although_nobody_said_that_the_device_is_gone(case: Case) -> None:
    case.without(what="gone")

    assert case.failed() == [7]


def test_the_audit_finds_that_somebody_was_disturbed(case: Case) -> None:
    case.change("c1", "cyd", "mail", state="sent", thing="m2")
    case.lines.append(Line("took", to="cyd@x", mail="m2", text="said c1"))
    assert case.failed() == [8]

    case = Case()
    case.change("p1", "dan", "mail", state="sent", thing="m2", quiet=False)
    case.lines.append(Line("took", to="dan@x", mail="m2", text="paid"))
    assert case.failed() == [3, 8]


def test_the_audit_finds_that_something_malformed_was_forgotten_or_sent(case: Case) -> None:
    case.malformed = {}
    assert case.failed() == [9]

    case.malformed = {"x1": ""}
    assert case.failed() == [9]


def test_the_audit_finds_a_second_notification_for_one_key(case: Case) -> None:
    case.lines.append(Line("again", "a2", "alarm", "k1"))

    assert case.failed() == [10]


# --- the services ---


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HTTPConnection]:
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        server = stack.enter_context(serving("durably.demo.notifications.receiver", tmp_path / "ledger", log))
        yield stack.enter_context(closing(HTTPConnection("127.0.0.1", server.ports[0], timeout=SAFETY)))


def post(service: HTTPConnection, channel: str, to: str) -> int:
    body = json.dumps({"id": "r1", "to": to, "text": "Fire"})
    service.request("POST", f"/{channel}", body, {"User-Agent": "durably-demo/77"})
    reply = service.getresponse()
    reply.read()
    return reply.status


def test_a_service_writes_down_what_it_took_and_whose_device_is_gone(service: HTTPConnection, tmp_path: Path) -> None:
    assert post(service, "push", "device-of-bob") == 204
    assert post(service, "push", GONE) == 410
    assert post(service, "sms", "+1") == 204

    took = Line("took", to="device-of-bob", channel="push", note="r1", pid=77, text="Fire")
    assert read_as(Line, tmp_path / "ledger") == [
        took,
        msgspec.structs.replace(took, what="gone", to=GONE),
        msgspec.structs.replace(took, to="+1", channel="sms"),
    ]


def test_a_service_keeps_one_sender_waiting_who_can_only_leave(service: HTTPConnection, tmp_path: Path) -> None:
    body = json.dumps({"id": "r1", "to": SILENT, "text": "Fire"})
    service.request("POST", "/push", body, {"User-Agent": "durably-demo/77"})
    wait_until(lambda: (tmp_path / "ledger").exists() or None)
    service.close()

    assert post(service, "push", SILENT) == 204


def test_a_service_hangs_up_on_what_it_cannot_measure(service: HTTPConnection, tmp_path: Path) -> None:
    service.putrequest("POST", "/push")
    service.endheaders()
    with pytest.raises(RemoteDisconnected):
        service.getresponse()

    assert post(service, "sms", "+1") == 204
    assert (tmp_path / "log").read_bytes() == b""
