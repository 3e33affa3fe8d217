"""The command line as a whole: which store it works on, how it says that something is wrong, and its help."""

from __future__ import annotations

import argparse
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from urllib.parse import quote

import pytest

from durably import Durably
from durably.cli.parser import parser
from tests.support import command
from tests.support.command import in_process, run, start

LOOKING = [
    ["bench"],
    ["tasks", "list"],
    ["tasks", "show", "0190"],
    ["tasks", "cancel", "0190"],
    ["why", "0190"],
    ["dead", "list"],
    ["dead", "show", "0190"],
    ["dead", "replay", "--all"],
    ["dead", "purge", "--all", "--yes"],
    ["queues", "list"],
    ["queues", "pause", "mail"],
    ["queues", "resume", "mail"],
    ["queues", "drain", "mail"],
    ["queues", "limit", "mail", "--off"],
    ["queues", "limits"],
    ["keys", "list"],
    ["keys", "show", "mail", "k"],
    ["keys", "pause", "mail", "k"],
    ["keys", "resume", "mail", "k"],
    ["keys", "skip", "mail", "k"],
    ["destinations", "list"],
    ["destinations", "show", "acme"],
    ["destinations", "report", "0190a5d1-ac96-774b-bcce-b302099a8057"],
    ["destinations", "add", "acme", "https://acme.test/hooks"],
    ["destinations", "set", "acme", "--timeout", "30s"],
    ["destinations", "pause", "acme"],
    ["destinations", "resume", "acme"],
    ["destinations", "flush", "acme"],
    ["destinations", "probe", "acme"],
    ["destinations", "rotate", "acme"],
    ["destinations", "retire", "acme"],
    ["destinations", "forget", "acme", "--yes"],
    ["mail", "list"],
    ["mail", "show", "order-7"],
    ["mail", "resend", "order-7"],
    ["mail", "suppress", "ann@example.org"],
    ["mail", "unsuppress", "ann@example.org"],
    ["mail", "suppressions"],
    ["mail", "preview", "welcome"],
    ["mail", "templates"],
    ["mail", "transport", "main", "smtp://mail.example.org"],
    ["notifications", "list"],
    ["notifications", "show", "0190"],
    ["notifications", "routes"],
    ["notifications", "inbox", "ann"],
    ["sessions"],
    ["doctor"],
    ["migrate", "--check"],
]


@pytest.fixture
def durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> command.Durably:
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.setattr("sys.path", [*sys.path])
    return in_process(capsys)


def make_store(path: str, queue: str) -> None:
    """A store in which one task of a queue of that name waits."""
    app = Durably(f"sqlite:///{quote(path)}")
    app.task(name="job", queue=queue)(lambda: None).enqueue()
    app.close()


def queues_of(durably: command.Durably, *options: str) -> list[str]:
    return [queue["name"] for queue in durably("queues", "list", "--json", *options).data]


def test_without_any_store_it_says_how_to_name_one(durably: command.Durably) -> None:
    ran = durably("tasks", "list")

    assert (ran.code, ran.out) == (2, "")
    assert "--store sqlite:///file.db" in ran.err
    assert "$DURABLY_STORE" in ran.err


def test_the_store_is_the_one_named_else_the_environment_s_else_the_usual_file_else_the_demo_s(
    durably: command.Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store("durably-demo.db", "demo")
    assert queues_of(durably) == ["demo"]
    assert durably("queues", "list").err == "durably: using ./durably-demo.db, which the demo left here\n"

    make_store("durably.db", "usual")
    assert queues_of(durably) == ["usual"]
    assert durably("queues", "list").err == ""

    make_store("environment.db", "environment")
    monkeypatch.setenv("DURABLY_STORE", "sqlite:///environment.db")
    assert queues_of(durably) == ["environment"]

    make_store("with space#1.db", "named")
    assert queues_of(durably, "--store", "sqlite:///with%20space%231.db") == ["named"]
    assert queues_of(durably, "--store", "with space#1.db") == ["named"]


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_looking_at_a_file_that_is_not_there_does_not_make_one(
    durably: command.Durably, arguments: list[str], tmp_path: Path
) -> None:
    ran = durably(*arguments, "--store", "sqlite:///typo.db")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("durably: there is no file ")
    assert ran.err.endswith("typo.db: check the path, or create it with `durably migrate`\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", LOOKING[:-2], ids=" ".join)
def test_looking_at_somebody_s_own_database_does_not_put_tables_into_it(
    durably: command.Durably, arguments: list[str]
) -> None:
    with closing(sqlite3.connect("own.db")) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
        ran = durably(*arguments, "--store", "own.db")

        assert (ran.code, ran.out) == (1, "")
        assert ran.err.endswith("own.db has no Durably tables: run `durably migrate`\n")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_every_command_of_the_store_is_covered_above() -> None:
    known = {tuple(words) for words in leaves(parser())}
    looked_at = {tuple(words[:2]) if tuple(words[:2]) in known else (words[0],) for words in LOOKING}

    assert known - looked_at == {("demo",), ("worker",)}


def test_a_file_that_is_no_database_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, however long it is" * 100)

    ran = run(tmp_path, "tasks", "list", "--store", "text.db")

    assert (ran.code, ran.out) == (1, "")
    assert "the file is not an SQLite database" in ran.err


def test_a_store_in_memory_is_refused(durably: command.Durably) -> None:
    ran = durably("tasks", "list", "--store", "sqlite:///:memory:")

    assert ran.code == 2
    assert "name a file or a server" in ran.err


def test_a_password_is_never_shown(durably: command.Durably) -> None:
    url = "postgresql://shop:very-secret@127.0.0.1:1/shop"

    for arguments in (["tasks", "list"], ["doctor"], ["doctor", "--json"], ["migrate"], ["migrate", "--check"]):
        ran = durably(*arguments, "--store", url)

        assert ran.code == 1
        assert "very-secret" not in ran.out + ran.err
        assert "127.0.0.1" in ran.out + ran.err


def test_an_unknown_kind_of_store_is_explained(durably: command.Durably) -> None:
    ran = durably("tasks", "list", "--store", "mysql://localhost/shop")

    assert ran.code == 1
    assert "use sqlite:///file.db or postgresql://" in ran.err


def test_the_store_can_be_the_one_of_an_application(durably: command.Durably, tmp_path: Path) -> None:
    make_store("shop.db", "mail")
    (tmp_path / "app_with_store.py").write_text(
        dedent("""
            from durably import Durably

            class tasks:
                app = Durably("sqlite:///shop.db")

            tenant = Durably("sqlite:///shop.db", namespace="tenant")
        """)
    )

    assert queues_of(durably, "--app", "app_with_store:tasks.app") == ["mail"]
    assert queues_of(durably, "--app", "app_with_store:tenant") == []
    ran = durably("queues", "list", "--app", "app_with_store:tasks.app", "--store", "shop.db")
    assert ran.code == 2
    assert "leave out --store" in ran.err


def test_an_application_that_is_not_there_is_explained(durably: command.Durably, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text(
        "from durably import Durably\nname = 'x'\napp = Durably('sqlite:///x.db')\n"
    )

    def complaint(where: str) -> str:
        ran = durably("tasks", "list", "--app", where)
        assert (ran.code, ran.out) == (2, "")
        assert "Traceback" not in ran.err
        return ran.err

    assert "there is no module 'no_such_module'" in complaint("no_such_module:app")
    assert str(tmp_path) in complaint("no_such_module:app")
    assert "there is no module 'no_such_module'" in complaint("no_such_module.tasks:app")
    assert "write some_module:app, without .py" in complaint("some_module.py:app")
    assert "has no 'ap'; did you mean some_module:app?" in complaint("some_module:ap")
    assert "is of type str, not a Durably; did you mean some_module:app?" in complaint("some_module:name")
    assert "not of the form module:app" in complaint("some_module")
    assert "not of the form module:app" in complaint(".some_module:app")


def test_a_module_that_fails_to_import_shows_its_own_traceback(durably: command.Durably, tmp_path: Path) -> None:
    (tmp_path / "failing_module.py").write_text("def connect():\n    raise ValueError('no such host')\n\nconnect()\n")
    (tmp_path / "importing_module.py").write_text("import a_package_that_is_not_installed\n")
    (tmp_path / "broken_module.py").write_text("app = = 1\n")

    failing = durably("tasks", "list", "--app", "failing_module:app")
    assert failing.code == 2
    assert 'failing_module.py", line 4' in failing.err
    assert "importlib" not in failing.err
    assert failing.err.endswith("the module failing_module could not be imported: ValueError: no such host\n")

    importing = durably("tasks", "list", "--app", "importing_module:app")
    assert importing.code == 2
    assert 'importing_module.py", line 1' in importing.err
    assert "No module named 'a_package_that_is_not_installed'" in importing.err

    broken = durably("tasks", "list", "--app", "broken_module:app")
    assert broken.code == 2
    assert "app = = 1" in broken.err


def test_migrate_makes_the_tables_once(durably: command.Durably) -> None:
    first = durably("migrate", "--store", "new.db", "--json")
    assert first.code == 0
    assert first.data["applied"][0].startswith("0001")
    assert first.data["store"].endswith("new.db")
    assert durably("migrate", "--store", "new.db", "--json").data["applied"] == []
    assert durably("migrate", "--store", "new.db").out.endswith("new.db is up to date.\n")
    assert "applied 0001" in durably("migrate", "--store", "newer.db").out


def test_migrate_check_changes_nothing_and_tells_by_its_exit_code(durably: command.Durably, tmp_path: Path) -> None:
    sqlite3.connect("empty.db").close()
    (tmp_path / "empty.db").touch()

    assert durably("migrate", "--check", "--store", "empty.db").code == 1
    pending = durably("migrate", "--check", "--store", "empty.db", "--json")
    assert pending.code == 1
    assert pending.data["pending"][0].startswith("0001")
    durably("migrate", "--store", "empty.db")
    assert durably("migrate", "--check", "--store", "empty.db").code == 0


def test_migrate_and_look_on_postgresql_in_a_schema_of_its_own(durably: command.Durably, postgres_url: str) -> None:
    store = ("--store", postgres_url, "--schema", "elsewhere")

    assert "run `durably migrate`" in durably("tasks", "list", *store).err
    assert durably("migrate", *store).code == 0
    assert durably("tasks", "list", *store).out == "No tasks match.\n"
    assert durably("doctor", *store, "--json").data["findings"][0]["check"] == "version"
    assert durably("tasks", "list", "--store", postgres_url).code == 1


def leaves(whole: argparse.ArgumentParser) -> Iterator[list[str]]:
    """The words of every command that has no commands of its own."""
    for words, found in parsers(whole):
        if not any(isinstance(action, argparse._SubParsersAction) for action in found._actions):
            yield words


def parsers(whole: argparse.ArgumentParser) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Every parser, with the words that lead to it."""
    yield [], whole
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from (([name, *words], found) for words, found in parsers(inner))


def test_every_level_has_help_with_an_example_that_parses(durably: command.Durably) -> None:
    for words, _ in parsers(parser()):
        ran = durably(*words, "--help")
        examples = [line.strip() for line in ran.out.split("example")[-1].splitlines()[1:] if line.strip()]

        assert ran.code == 0
        assert examples
        for example in examples:
            called, *arguments = shlex.split(re.split(r"\s{3,}", example)[0])
            assert called == "durably"
            assert arguments[: len(words)] == words
            parser().parse_args(arguments)


def test_a_command_without_its_subcommand_shows_its_help(durably: command.Durably) -> None:
    for words in ([], ["tasks"], ["dead"], ["queues"], ["keys"], ["mail"]):
        ran = durably(*words)

        assert ran.code == 2
        assert ran.out.startswith(f"usage: durably {' '.join(words)}".rstrip())


def test_misuse_is_exit_code_2(durably: command.Durably) -> None:
    for words in (
        ["no-such-command"],
        ["tasks", "list", "--no-such-option"],
        ["tasks", "show"],
        ["tasks", "list", "--js"],
    ):
        ran = durably(*words)

        assert (ran.code, ran.out) == (2, "")
        assert "usage: durably" in ran.err


def test_the_version_is_shown(durably: command.Durably) -> None:
    ran = durably("--version")

    assert ran.code == 0
    assert ran.out.startswith("durably ")


def test_ctrl_c_at_a_question_leaves_quietly(durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store("durably.db", "mail")

    def interrupt(question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    assert durably("dead", "purge", "--all") == (130, "", "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    app = Durably(f"sqlite:///{tmp_path}/durably.db")
    app.migrate()
    app.close()

    with start(tmp_path, "tasks", "list") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaints = process.stderr.read()

    assert (process.returncode, complaints) == (141, "")


def test_it_is_a_module_too(tmp_path: Path) -> None:
    ran = run(tmp_path, "tasks", "list")

    assert ran.code == 2
    assert ran.err.startswith("durably: which store?")
