"""The ledger outside of the store: append-only files with fsync, which every process of a soak keeps for itself."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import msgspec

PART = 400_000
"""Bytes after which a process begins another file, so that a limit on the size of files spares the ledger."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something happened to a task, as its producer, its handler or its worker saw it."""

    what: str
    """Of producers: offered, accepted, unsure, rolled back. Of handlers: began, ran, failed. Else the kind of event."""
    at: float
    pid: int
    label: str = ""
    """The producer's name for the task, which travels in its payload."""
    task: str = ""
    name: str = ""
    key: str | None = None
    number: int = 0
    attempt: int = 0
    token: int = 0
    note: str = ""
    many: int = 0
    """For a call that offers many tasks: how many. Their labels are that of the call, with a number behind it."""

    @property
    def labels(self) -> list[str]:
        """The labels of all tasks that it is about."""
        return [f"{self.label}:{index}" for index in range(self.many)] if self.many else [self.label]


class Ledger:
    """Appends lines. A line outlives its process at once, and the machine when `write` or `awrite` has returned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._file = -1
        self._parts = 0
        self._size = PART
        self._unsynced: list[Future[None]] = []
        self._work = threading.Event()
        self._syncer: threading.Thread | None = None

    def jot(self, line: Line) -> None:
        """Append a line, without waiting for the disk."""
        data = msgspec.json.encode(line) + b"\n"
        with self._lock:
            if self._size >= PART:
                self._turn_over()
            self._size += os.write(self._file, data)

    def write(self, line: Line) -> None:
        """Append a line; it is on disk when this returns."""
        self._written(line).result()

    async def awrite(self, line: Line) -> None:
        """Append a line; it is on disk when this returns."""
        await asyncio.wrap_future(self._written(line))

    def _written(self, line: Line) -> Future[None]:
        self.jot(line)
        done: Future[None] = Future()
        with self._lock:
            self._unsynced.append(done)
            if self._syncer is None:
                self._syncer = threading.Thread(target=self._sync, name="ledger", daemon=True)
                self._syncer.start()
        self._work.set()
        return done

    def _sync(self) -> None:
        """One fsync for all who wrote since the last one began."""
        while True:
            self._work.wait()
            self._work.clear()
            with self._lock:
                waiting, self._unsynced = self._unsynced, []
                file = self._file
            os.fsync(file)
            for done in waiting:
                if done.set_running_or_notify_cancel():
                    done.set_result(None)

    def _turn_over(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
        path = self._folder / f"{os.getpid()}-{self._parts}.jsonl"
        # The last part is left open: the syncer may be about to use it.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._parts, self._size = self._parts + 1, 0


class Tail:
    """Reads what was added to the ledger since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, int] = {}

    def read(self, pid: int | None = None) -> list[Line]:
        """The new lines, of all processes or of one; a line that is not finished yet is left for later."""
        lines: list[Line] = []
        for entry in os.scandir(self._folder):
            if pid is None or entry.name.startswith(f"{pid}-"):
                lines += self._new(entry)
        return lines

    def _new(self, entry: os.DirEntry[str]) -> list[Line]:
        place = self._places.get(entry.name, 0)
        if entry.stat().st_size <= place:
            return []
        with open(entry.path, "rb") as file:
            file.seek(place)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._places[entry.name] = place + end
        return [decode(line) for line in data[:end].splitlines()]


decode = msgspec.json.Decoder(Line).decode


def line(what: str, label: str = "", *, task: str = "", name: str = "", note: str = "", many: int = 0) -> Line:
    """A line of this process, about now."""
    return Line(what, time.monotonic(), os.getpid(), label, task, name, note=note, many=many)
