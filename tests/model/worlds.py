"""New worlds for short stories: in memory, or in one PostgreSQL database that is emptied instead of made anew."""

from __future__ import annotations

import psycopg

from durably.stores.postgres.store import PostgresStore
from durably.stores.sqlite.store import SqliteStore
from durably.testing.clock import START, ManualClock
from durably.testing.world import World
from tests.conformance.postgres_world import EMPTY, STOPPED_CLOCK

# A delete of a few rows is much faster than a truncation.
EMPTYING = b"DELETE FROM " + b"; DELETE FROM ".join(
    table.strip() for table in EMPTY.strip().removeprefix(b"TRUNCATE").rstrip(b";").split(b",")
)


def in_memory() -> World:
    """A new SQLite store."""
    clock = ManualClock()
    return World(SqliteStore(":memory:", clock), clock, clock.advance, "sync")


class LentStore(PostgresStore):
    """A store whose connections outlive a story."""

    def close(self) -> None:
        """The next story goes on with them."""

    def dismiss(self) -> None:
        """The last story is over."""
        super().close()


class EmptiedPostgres:
    """A migrated database whose clock stands still."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("INSERT INTO durably.meta VALUES ('test_clock', '0')")
        self._connection.execute(STOPPED_CLOCK)
        self._store = LentStore(url)

    def world(self) -> World:
        """The database without a row, at the beginning of time."""
        clock = ManualClock()

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            self._set(clock.now())

        self._connection.execute(EMPTYING)
        self._set(START)
        return World(self._store, clock, advance, "sync")

    def close(self) -> None:
        self._store.dismiss()
        self._connection.close()

    def _set(self, now: int) -> None:
        self._connection.execute("UPDATE durably.meta SET value = %s WHERE name = 'test_clock'", [str(now)])
