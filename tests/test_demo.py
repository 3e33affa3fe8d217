"""The demo tells the truth: its verdict, the files that it leaves, and what it would say if something were lost."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durably import Durably, TaskInfo
from durably.demo.audit import audit, in_order, steps
from durably.demo.files import begin, next_commands
from durably.demo.ledger import Entry, Ledger, in_flight, read
from durably.demo.screen import Screen
from durably.errors import NotAllowed
from tests.support.command import SAFETY, SOURCE, Ran, in_process, run


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
def told(folder: Path) -> Ran:
    """What the demo said."""
    return run(folder, "demo", "--fast")


def test_the_demo_holds_what_it_promises(told: Ran, folder: Path) -> None:
    assert told.code == 0, told.out + told.err
    assert told.err == ""
    assert "Everything held." in told.out
    assert "FAIL" not in told.out
    assert told.out.count("\n  ok    ") == 5
    assert sorted(path.name for path in folder.iterdir()) == ["durably-demo.db", "durably-demo.ledger"]


def test_it_shows_the_kill_the_retries_the_order_and_the_dead_letter(told: Ran) -> None:
    for words in (
        "kill -9 ",
        "Its parent process has started another one",
        "all its tasks were taken back",
        "The bookings of account-",
        "attempt 1 failed: the partner answers 503",
        "attempt 2 failed: the partner answers 503",
        "attempt 3: done",
        "It is a dead letter since",
        "gave 2 dead letters a new cycle: one is done",
        "the one that rolled back was never",
    ):
        assert words in " ".join(told.out.split())


def test_where_nobody_watches_it_prints_few_lines_and_no_escapes(told: Ran) -> None:
    assert "\x1b" not in told.out
    assert "\r" not in told.out
    assert len(told.out.splitlines()) < 90


def test_what_it_leaves_can_be_looked_at_without_any_option(
    told: Ran, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    durably = in_process(capsys)

    doctor = durably("doctor")
    assert doctor.code == 0
    assert "1 dead letter" in doctor.out
    assert doctor.err == "durably: using ./durably-demo.db, which the demo left here\n"

    [letter] = durably("dead", "list", "--json").data
    assert letter["arguments"] == {"number": 2, "total": "see attachment"}
    assert letter["id"] in told.out
    why = durably("why", letter["id"])
    assert (why.code, why.out[:19]) == (0, "It is a dead letter")
    shown = durably("dead", "show", letter["id"], "--json").data
    assert [attempt["attempt"] for attempt in shown["attempts"]] == [1, 2]

    assert len(durably("tasks", "list", "--json").data) == 50
    queues = durably("queues", "list", "--json").data
    assert {"accounts", "images", "invoices", "mail", "orders", "partners"} <= {queue["name"] for queue in queues}
    assert durably("keys", "list", "--json").data == []


def test_the_ledger_and_the_database_agree_when_others_compare_them(told: Ran, folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "durably-demo.ledger").read_text().splitlines()]
    with closing(sqlite3.connect(folder / "durably-demo.db")) as connection:
        ended = dict(connection.execute("SELECT id, state FROM durably_history").fetchall())
        [(left,)] = connection.execute("SELECT count(*) FROM durably_tasks").fetchall()
        [(crashed,)] = connection.execute("SELECT count(*) FROM durably_history WHERE crashes > 0").fetchall()

    assert left == 0
    assert crashed > 0
    assert {line["task"] for line in lines if line["what"] == "accepted"} == ended.keys()
    assert {line["task"] for line in lines if line["what"] == "ran"} == {
        task for task, state in ended.items() if state == "done"
    }


def test_a_ledger_that_does_not_agree_is_a_failure(told: Ran, folder: Path, tmp_path: Path) -> None:
    lines = (folder / "durably-demo.ledger").read_text().splitlines(keepends=True)
    (tmp_path / "lacking.ledger").write_text("".join(lines[1:]))
    program = f"""
        from durably.demo.files import Place
        from durably.demo.orders import FAST
        from durably.demo.screen import Screen
        from durably.demo.story import Story

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
        sys.exit(main(["demo", "--fast"]))
    """

    ran = run_program(tmp_path, program)

    assert ran.code == 1
    assert "The demo could not go on: a worker left with exit code 1 instead of working" in ran.out
    assert "no luck today" in (tmp_path / "durably-demo.log").read_text()


def test_the_next_commands_say_where_the_database_is_if_that_is_not_clear() -> None:
    assert next_commands(Path("durably-demo.db"), "0190")[2] == "durably why 0190"
    assert next_commands(Path("/a b/c.db"), "0190")[0] == "durably doctor --store '/a b/c.db'"


@pytest.mark.parametrize("options", [[], ["--keep", "kept.db"]], ids=["usual place", "kept elsewhere"])
def test_a_file_that_is_not_the_demo_s_is_left_alone(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / (options[1] if options else "durably-demo.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE precious (id INTEGER)")
    before = path.read_bytes()

    ran = run(tmp_path, "demo", *options)

    assert (ran.code, ran.out) == (1, "")
    assert f"{path.name} was not made by the demo and stays as it is" in ran.err
    assert path.read_bytes() == before


def test_the_demo_makes_way_for_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DURABLY_DEMO_STORE", "DURABLY_DEMO_LEDGER"):
        monkeypatch.setenv(name, "")
    database, ledger = begin(tmp_path / "demo.db")
    ledger.write_text("an earlier run")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE earlier (id INTEGER)")

    begin(tmp_path / "demo.db")

    assert not ledger.exists()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    (tmp_path / "text.db").write_text("not a database")
    with pytest.raises(NotAllowed, match="was not made by the demo"):
        begin(tmp_path / "text.db")
    with pytest.raises(NotAllowed, match="does not exist"):
        begin(tmp_path / "no-such-folder" / "demo.db")


# --- what the audit would find ---


def entry(what: str, task: str, **more: Any) -> Entry:
    return Entry(what, task, more.pop("name", "send_mail"), **more)


@pytest.fixture(scope="module")
def template() -> Iterator[TaskInfo]:
    """Any task, to make others from."""
    app = Durably("sqlite:///:memory:")
    yield app.task(name="send_mail")(lambda: None).enqueue().info()
    app.close()


class Books:
    """A ledger and an engine that agree: two tasks done of which one crashed, one dead, one order rolled back."""

    def __init__(self, template: TaskInfo) -> None:
        self.entries = [
            *(entry("accepted", task) for task in ("a", "b", "c")),
            entry("accepted", "s", name="ship"),
            entry("rolled back", "r", name="ship"),
            *(entry(what, task) for task in ("a", "b", "s") for what in ("began", "ran")),
            entry("began", "c"),
            entry("failed", "c"),
        ]
        self.tasks = {
            task: msgspec.structs.replace(template, id=task, name=name, state=state, crashes=crashes)
            for task, name, state, crashes in (
                ("a", "send_mail", "done", 1),
                ("b", "send_mail", "done", 0),
                ("c", "send_mail", "dead", 0),
                ("s", "ship", "done", 0),
            )
        }

    def failed(self) -> list[int]:
        """The numbers of the checks that do not hold."""
        checks = list(audit(self.entries, list(self.tasks.values()), 1))
        assert len(checks) == 5
        return [number for number, check in enumerate(checks, start=1) if not check.passed]


@pytest.fixture
def books(template: TaskInfo) -> Books:
    return Books(template)


def test_the_audit_passes_books_that_agree(books: Books) -> None:
    assert books.failed() == []


def test_the_audit_finds_a_task_that_was_lost(books: Books) -> None:
    del books.tasks["b"]

    assert books.failed() == [1, 2]


def test_the_audit_finds_a_task_that_nobody_accepted(books: Books) -> None:
    books.tasks["x"] = msgspec.structs.replace(books.tasks["b"], id="x")

    assert books.failed() == [1, 2]


def test_the_audit_finds_a_task_that_is_not_at_its_end(books: Books) -> None:
    books.tasks["b"] = msgspec.structs.replace(books.tasks["b"], state="ready")

    assert 1 in books.failed()


def test_the_audit_finds_a_task_that_is_called_done_but_never_ran(books: Books) -> None:
    books.entries.remove(entry("ran", "b"))

    assert books.failed() == [2]


def test_the_audit_finds_a_task_that_ran_twice_without_a_crash(books: Books) -> None:
    books.entries.append(entry("ran", "a"))
    assert books.failed() == []

    books.entries.append(entry("ran", "b"))
    assert books.failed() == [3]


def test_the_audit_finds_that_nothing_was_interrupted_at_all(books: Books) -> None:
    books.tasks["a"] = msgspec.structs.replace(books.tasks["a"], crashes=0)

    assert books.failed() == [3]


def test_the_audit_finds_a_key_out_of_order(books: Books) -> None:
    books.entries += [entry("began", "b", key="k", step=2), entry("ran", "b", key="k", step=2)]

    assert 4 in books.failed()


def test_the_audit_finds_a_task_of_a_transaction_that_rolled_back(books: Books) -> None:
    books.entries.append(entry("began", "r", name="ship"))

    assert books.failed() == [5]


def keyed(text: str) -> list[Entry]:
    """ "b1 r1 b2@7": step 1 began and ran, step 2 began under token 7."""
    found = []
    for word in text.split():
        step, _, token = word[1:].partition("@")
        what = {"b": "began", "r": "ran", "f": "failed"}[word[0]]
        found.append(entry(what, f"t{step}", key="k", step=int(step), token=int(token or 1), attempt=1))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b1 r1 b2 r2", True),
        ("b1 b1@2 r1@2 b2@3 r2@3", True),
        ("b1 r1 b1@2 r1@2 b2@3 r2@3", True),
        ("b1 f1 b1 r1", True),
        ("b2 r2", False),
        ("b1 b2 r1 r2", False),
        ("b1 r1 b1 b2 r2 r1", False),
        ("b1 r1 b2", False),
        ("b1@2 r1@2 b2@1 r2@1", False),
    ],
)
def test_order_within_a_key(text: str, expected: bool) -> None:
    assert in_order(keyed(text)) is expected


def test_steps_mark_what_began_again() -> None:
    again = msgspec.structs.replace(keyed("b1")[0], attempt=2)

    assert steps([*keyed("b1"), again, *keyed("r1 b2")], "k") == "1 1 (again) 2"


def test_the_ledger_knows_what_was_in_flight_and_ignores_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    for what, task, pid in (
        ("began", "a", 1),
        ("began", "b", 1),
        ("ran", "a", 1),
        ("began", "c", 2),
        ("failed", "c", 2),
    ):
        ledger.write(entry(what, task, pid=pid))
    ledger.close()
    with path.open("a") as file:
        file.write('{"what":"ran","ta')

    entries = read(path)

    assert len(entries) == 5
    assert [one.task for one in in_flight(entries, 1)] == ["b"]
    assert in_flight(entries, 2) == []


# --- the screen ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_the_progress_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    screen = Screen(terminal)
    for done in (1, 5, 10):
        screen.progress(done, 10, " done")
    screen.say("over")

    assert terminal.getvalue().count("\r") == 4
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\r\033[K  over\n")


def test_elsewhere_the_progress_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for done in range(101):
        screen.progress(done, 100, " done")

    assert stream.getvalue() == "  25 of 100 done\n  50 of 100 done\n  75 of 100 done\n  100 of 100 done\n"


def test_the_verdict_is_coloured_only_in_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful, plain = Terminal(), io.StringIO()
    for stream in (colourful, plain):
        Screen(stream).verdict(True, "Everything held.")
        Screen(stream).check(False, "but not this")

    assert "\033[32;1mEverything held.\033[0m" in colourful.getvalue()
    assert plain.getvalue() == "\nEverything held.\n  FAIL  but not this\n"
