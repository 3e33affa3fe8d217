"""Odd arguments and addresses on the command line: exit code 1 or 2 and one line, never a traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from durably import Durably, DurablyError
from durably.stores.open import open_store
from tests.bad_input.raw import Raw
from tests.docs_support.commands import known_commands
from tests.support.command import Durably as Command
from tests.support.command import Ran, in_process, run

WORDS = [
    "",
    " ",
    "-1",
    "0",
    "1e400",
    "9" * 5000,
    "nan",
    "a\0b",
    "\udcff",
    "'; DROP TABLE durably_tasks; --",
    "../../etc/passwd",
    "%s%n{0}$1?",
    "\x1b[31m",
    "\u202e",
    "x" * 100_000,
    "default",
    "01890a5d",
    "5/s",
    "30d",
    "a/b/c",
]
FLAGS = {"--json", "--all", "--yes", "--group", "--off"}
SILENT = {"demo", "worker", "migrate"}
"""They do more than look at a store, and have tests of their own below."""


@pytest.fixture
def durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    return in_process(capsys)


def clear(ran: Ran, given: object) -> None:
    """It worked, or one line says why not."""
    assert ran.code in (0, 1, 2), (given, ran)
    assert "Traceback" not in ran.err, (given, ran)
    if ran.code and not ran.out:
        last = ran.err.strip().splitlines()[-1]
        assert last.startswith("durably"), (given, ran)


def drawn(chance: random.Random, commands: dict[str, set[str]]) -> list[str]:
    """A command line of existing words and odd ones."""
    command = chance.choice(sorted(commands))
    given = command.split()
    for option in chance.sample(sorted(commands[command]), k=min(len(commands[command]), chance.randrange(3))):
        given += (
            [option] if option in ("--json", "--all", "--yes", "--group", "--off") else [option, chance.choice(WORDS)]
        )
    given += [chance.choice(WORDS) for _ in range(chance.randrange(3))]
    return given


def test_fuzzed_arguments_get_a_clear_answer(raw: Raw, durably: Command) -> None:
    chance = random.Random(f"arguments on {raw.kind}")
    commands = {name: options for name, options in known_commands().items() if name.split()[0] not in SILENT}
    with Durably(raw.url) as app:
        app.task(name="work")(print)
        app.definitions["work"].using(key="k").enqueue()
    for _ in range(80):
        given = drawn(chance, commands)
        clear(durably(*given, "--store", raw.url), given)


ADDRESSES = [
    "",
    ":",
    "://",
    "nonsense",
    "sqlite",
    "sqlite:",
    "sqlite://[::1",
    "sqlite://host/file.db",
    "sqlite:///a%00b.db",
    "sqlite:///%ff.db",
    "sqlite:///no/such/folder/file.db",
    "sqlite:////proc/version",
    "sqlite:////",
    "sqlite:///x.db?mode=ro",
    "sqlite:///" + "x" * 10_000,
    "postgresql:",
    "postgresql://",
    "postgresql://127.0.0.1:1/nowhere",
    "postgresql://127.0.0.1:notaport/nowhere",
    "postgresql://127.0.0.1:99999/nowhere",
    "postgresql://[::1/nowhere",
    "postgresql://%zz@127.0.0.1:1/nowhere",
    "postgresql://%00@127.0.0.1:1/nowhere",
    "postgresql://127.0.0.1:1/nowhere?nonsense=1",
    "postgresql://127.0.0.1:1/nowhere?sslmode=weird",
    "postgresql://127.0.0.1:1/nowhere?connect_timeout=weird",
    "postgresql+psycopg://127.0.0.1:1/nowhere",
    "mysql://127.0.0.1/nowhere",
    "host=127.0.0.1 port=1 dbname=nowhere",
    "'; DROP TABLE x; --",
]


@pytest.mark.parametrize("address", ADDRESSES, ids=range(len(ADDRESSES)))
def test_an_odd_address_gets_a_clear_answer(address: str, durably: Command) -> None:
    for look in (("tasks", "list"), ("doctor",), ("migrate", "--check")):
        ran = durably(*look, "--store", address)
        clear(ran, (look, address))
        assert ran.code != 0 or look == ("migrate", "--check"), (look, address, ran)


def test_fuzzed_addresses_open_a_store_or_are_refused() -> None:
    chance = random.Random("addresses")
    for _ in range(2_000):
        kind = chance.choice(["sqlite:", "postgresql:", "postgres:", ""])
        address = kind + "".join(chance.choice("/:@?#%&=[]0a \0\udcff'.,\\") for _ in range(chance.randrange(20)))
        try:
            open_store(address).close()
        except DurablyError as error:
            said = str(error)
        else:
            said = "opened"
        assert said, address


@pytest.mark.parametrize("option", ["--concurrency", "--lease", "--heartbeat", "--poll", "--grace"])
def test_odd_options_of_a_worker_are_misuse(option: str, durably: Command, tmp_path: Path) -> None:
    (tmp_path / "odd_shop.py").write_text("from durably import Durably\napp = Durably('sqlite:///:memory:')\n")
    for word in ("", "-1", "nan", "9" * 5000, "a,,b", "\udcff"):
        ran = durably("worker", "odd_shop:app", "--no-parent", option, word)
        assert ran.code == 2, (option, word[:20], ran)
        assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "where", ["", ":", "os:path", "no_such_module:app", "a b:c", "\udcff:app", "os:", "..:x", "x" * 5000]
)
def test_an_odd_application_is_misuse(where: str, durably: Command) -> None:
    ran = durably("worker", where, "--no-parent")

    assert ran.code == 2
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [("tasks", "list", "--limit", "9" * 5000), ("why", b"\xff"), ("why", "\u202e"), ("tasks", "--nonsense")],
)
def test_a_process_says_it_in_one_line_too(arguments: tuple[Any, ...], tmp_path: Path) -> None:
    ran = run(tmp_path, *arguments)

    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert ran.out == ""
