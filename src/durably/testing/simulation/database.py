"""The database behind a simulation's store: SQLite in memory, made once per process and emptied for every simulation.

Preparing its tables and statements anew would cost as much as a simulation does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from durably.core.moment import Clock, HostClock
from durably.stores.protocol import Store
from durably.stores.sqlite.store import SqliteStore
from durably.stores.statement import Operation, Part, Queries, Query, Rows, Statement


class TimedStore(Store, Protocol):
    """A store whose time is that of the process that uses it."""

    clock: Clock


class Database(Protocol):
    """Where stores for simulations come from."""

    prefix: str
    """How the name of a table begins."""
    garbage: str
    """Bytes that nobody can read, as SQL."""

    def borrow(self) -> TimedStore:
        """An empty store."""
        ...

    def give_back(self, store: TimedStore, *, altered: bool) -> None:
        """The simulation is over; whether it has altered the schema."""
        ...


class InMemory:
    """SQLite without a file."""

    prefix = "durably_"
    garbage = "x'ff007b'"

    def __init__(self) -> None:
        self._spare: list[SqliteStore] = []
        self._queries: Queries | None = None

    def borrow(self) -> SqliteStore:
        if not self._spare:
            store = SqliteStore(":memory:", HostClock())
            store.migrate()
            self._spare.append(store)
            self._queries = self._queries or store.queries
        store = self._spare.pop()
        assert self._queries is not None
        store.queries = self._queries
        tables = alter(store, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'durably_%'")
        alter(store, *(f"DELETE FROM {table}" for (table,) in tables if table != "durably_meta"))
        alter(store, "UPDATE durably_meta SET value = '0' WHERE name = 'token'")
        return store

    def give_back(self, store: TimedStore, *, altered: bool) -> None:
        assert isinstance(store, SqliteStore)
        if altered:
            store.close()
        else:
            self._spare.append(store)


IN_MEMORY = InMemory()


def alter(store: Store, *texts: str) -> Rows:
    """Run statements behind everyone's back, in one transaction; the rows of them all."""

    def steps(_: Queries) -> Generator[Statement, Rows, Rows]:
        rows: Rows = []
        for text in texts:
            rows += yield Statement(Query("alter", (Part(text, ()),)), (), False)
        return rows

    return store.run(Operation("alter", steps))
