"""A ledger outside the engine: an append-only file that producers and handlers write, whatever the engine does."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

L = TypeVar("L", bound=msgspec.Struct)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a task was accepted or rolled back, or an attempt began, failed or ran to its end."""

    what: str
    """accepted, rolled back, began, failed or ran"""
    task: str
    name: str
    key: str | None = None
    step: int = 0
    attempt: int = 0
    token: int = 0
    pid: int = 0


class Ledger:
    """Appends whole lines, so that many processes can write at once and none can lose another's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: msgspec.Struct) -> None:
        """Append one line."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        os.close(self._file)

    @cached_property
    def _file(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def read(path: Path) -> list[Entry]:
    """Every line that was written so far, in order; one that a killed process left unfinished is not counted."""
    return read_as(Entry, path)


def read_as(kind: type[L], path: Path) -> list[L]:
    """The same for a ledger with lines of another kind."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=kind) for line in lines]


def in_flight(entries: list[Entry], pid: int) -> list[Entry]:
    """The attempts that began in a process and have not come to an end."""
    running: dict[str, Entry] = {}
    for entry in entries:
        if entry.pid == pid and entry.what == "began":
            running[entry.task] = entry
        elif entry.pid == pid:
            del running[entry.task]
    return list(running.values())
