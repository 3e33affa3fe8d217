"""The demo's files: made anew each time, and never in the place of someone else's."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from durably.errors import NotAllowed

OURS = 0x44757262
"""SQLite keeps such a number in every file, to tell whose it is."""


class Place(NamedTuple):
    """Where the demo keeps its database and its ledger."""

    database: Path
    ledger: Path


def begin(path: Path) -> Place:
    """Make way for a new database and a new ledger, and say in the environment where they are.

    The demo's applications read the environment when they are imported, here and in the workers.
    """
    if not path.parent.is_dir():
        raise NotAllowed(f"the folder {path.parent} does not exist")
    if path.exists() and not _ours(path):
        raise NotAllowed(f"{path} was not made by the demo and stays as it is: use another folder, or --keep PATH")
    ledger = path.with_suffix(".ledger")
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"), ledger):
        file.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {OURS}")
    os.environ["DURABLY_DEMO_STORE"] = f"sqlite:///{quote(str(path))}"
    os.environ["DURABLY_DEMO_LEDGER"] = str(ledger)
    return Place(path, ledger)


def next_commands(database: Path, letter: str) -> list[str]:
    """What to try on the database that stays."""
    commands = ("doctor", "queues list", f"why {letter}", f"dead show {letter}", "dead list --json")
    return [on_database(database, command) for command in commands]


def on_database(database: Path, command: str) -> str:
    """A command for the shell; where the database is must be said only if it is not at the usual place."""
    option = "" if database == Path("durably-demo.db") else f" --store {shlex.quote(str(database))}"
    return f"durably {command}{option}"


def _ours(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            [(number,)] = connection.execute("PRAGMA application_id").fetchall()
    except sqlite3.Error:
        return False
    return bool(number == OURS)
