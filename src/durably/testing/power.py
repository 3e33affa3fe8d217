"""A store whose process can lose its power: everything stops at a chosen write, and only the disk is left."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from durably.core.moment import Clock
from durably.core.task import Draft
from durably.stores.drive import drive
from durably.stores.protocol import Caller
from durably.stores.sqlite.store import SqliteStore
from durably.stores.sqlite.together import Job
from durably.stores.statement import Operation

T = TypeVar("T")


class Dead(BaseException):
    """What is left of a dead process unwinds; nothing of it reaches the store any more."""


class Power:
    """Counts the moments at which a process could die, and stops it at one of them.

    A process that has died stands still, so that none of its `finally` blocks runs before the run has been judged.
    What it had written is copied at that moment: locks and open transactions are gone, as after a real crash.
    """

    def __init__(self, strike: int | None, image: Path) -> None:
        self.on = False
        """Nothing is counted, and nothing strikes, before it is on."""
        self.moments: list[str] = []
        self.struck: str | None = None
        """The moment at which it died."""
        self.over = threading.Event()
        """The process has died, or come to its end."""
        self._strike = strike
        self._image = image
        self._released = threading.Event()
        self._lock = threading.Lock()

    def moment(self, what: str, path: str) -> None:
        """The process could die here; if it does, or is dead already, this does not return until it is buried."""
        with self._lock:
            if self.struck is None and self.on:
                if len(self.moments) == self._strike:
                    self._copy(path)
                    self.struck = what
                    self.over.set()
                else:
                    self.moments.append(what)
        self.stand_still()

    def stand_still(self) -> None:
        """Stop here if the process is dead."""
        if self.struck is not None:
            self._released.wait()
            raise Dead

    def bury(self) -> None:
        """Let what is left of it unwind."""
        self._released.set()

    def _copy(self, path: str) -> None:
        for ending in ("", "-wal"):
            if Path(f"{path}{ending}").exists():
                shutil.copyfile(f"{path}{ending}", f"{self._image}{ending}")


class MortalStore(SqliteStore):
    """An SQLite file as a process sees it that may die before or after each commit."""

    def __init__(self, path: str, clock: Clock, power: Power) -> None:
        super().__init__(path, clock)
        self._power = power

    def run(self, op: Operation[T]) -> T:
        self._power.stand_still()
        return super().run(op)

    def put(self, draft: Draft) -> bool:
        # There is no moment in it at which to die.
        return False

    async def arun(self, op: Operation[T]) -> T:
        # On the loop's own thread: when the process dies here, its whole loop stands still.
        return self.run(op)

    def private(self) -> MortalStore:
        return MortalStore(self.path, self.clock, self._power)

    def caller(self, connection: Any) -> Caller:
        return MortalCaller(super().caller(connection), self._power, self.path)

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        # A process dies here, never the machine.
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def _written(self, jobs: Sequence[Job]) -> list[Any]:
        [op] = jobs
        assert isinstance(op, Operation)
        with self._lock:
            connection = self._writing()
            connection.execute("BEGIN IMMEDIATE")
            before = connection.total_changes
            try:
                answer = drive(op.steps(self.queries), lambda statement: self.execute(connection, statement))
                changed = connection.total_changes > before
                if changed:
                    self._power.moment(f"just before the write {op.name!r} was committed", self.path)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if changed:
                self._power.moment(f"just after the write {op.name!r} was committed", self.path)
            return [answer]


class MortalCaller:
    """A caller's own connection; the process may die before and after what is written on it."""

    def __init__(self, caller: Caller, power: Power, path: str) -> None:
        self._caller = caller
        self._power = power
        self._path = path

    def run(self, op: Operation[T]) -> T:
        self._power.moment(f"just before {op.name!r} in a transaction of the scenario", self._path)
        answer = self._caller.run(op)
        self._power.moment(f"just after {op.name!r} in a transaction of the scenario", self._path)
        return answer

    async def arun(self, op: Operation[T]) -> T:
        self._power.moment(f"just before {op.name!r} in a transaction of the scenario", self._path)
        answer = await self._caller.arun(op)
        self._power.moment(f"just after {op.name!r} in a transaction of the scenario", self._path)
        return answer
