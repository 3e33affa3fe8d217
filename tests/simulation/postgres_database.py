"""PostgreSQL behind a simulation: its time is that of the simulated process that speaks to it."""

from __future__ import annotations

from typing import TypeVar

import psycopg

from durably.core.moment import Clock, HostClock
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Operation
from durably.testing.simulation.database import TimedStore, alter
from tests.conformance.postgres_world import EMPTY, STOPPED_CLOCK

T = TypeVar("T")


class TimedPostgres(PostgresStore):
    """A store that sets the database's clock, which stands still by itself, before every operation."""

    def __init__(self, url: str, control: psycopg.Connection) -> None:
        super().__init__(url)
        self.clock: Clock = HostClock()
        self._control = control

    def run(self, op: Operation[T]) -> T:
        now = str(self.clock.now())
        self._control.execute("UPDATE durably.meta SET value = %s WHERE name = 'test_clock'", [now])
        return super().run(op)


class PostgresDatabase:
    """A migrated database whose clock is set by hand; it is emptied before every simulation."""

    prefix = "durably."
    garbage = r"'\xff007b'::bytea"

    def __init__(self, url: str) -> None:
        self._control = psycopg.connect(url, autocommit=True)
        self._control.execute("INSERT INTO durably.meta VALUES ('test_clock', '0')")
        self._control.execute(STOPPED_CLOCK)
        self._store = TimedPostgres(url, self._control)

    def borrow(self) -> TimedPostgres:
        self._control.execute(EMPTY)
        return self._store

    def give_back(self, store: TimedStore, *, altered: bool) -> None:
        if altered:
            alter(store, "DROP TABLE durably.colours")
            for table in ("tasks", "history"):
                alter(store, f"ALTER TABLE durably.{table} DROP COLUMN colour")

    def close(self) -> None:
        self._store.close()
        self._control.close()
