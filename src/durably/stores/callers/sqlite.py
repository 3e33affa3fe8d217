"""sqlite3 and aiosqlite: the caller's transaction on the store's own file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, TypeVar

from durably.core.moment import Clock
from durably.errors import (
    DurablyError,
    NoTransaction,
    RetryTransaction,
    SchemaOutdated,
    StoreRejected,
    StoreUnavailable,
    WrongConnection,
)
from durably.stores.callers.origin import origins
from durably.stores.callers.twins import Awaited, Blocking
from durably.stores.drive import drive
from durably.stores.protocol import Caller
from durably.stores.statement import Operation, Queries, Rows, Statement, plain_calls

T = TypeVar("T")

LEGACY = -1
"""What `autocommit` says, from Python 3.12 on, on a connection that `isolation_level` governs."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class SqliteHome(Protocol):
    """What is needed of the store whose file it must be."""

    path: str
    clock: Clock
    queries: Queries

    @property
    def address(self) -> str: ...


def caller_for(connection: Any, store: SqliteHome) -> Caller | None:
    """The caller for a driver's connection, or None if it is no connection of these drivers."""
    if isinstance(connection, sqlite3.Connection):
        return Sqlite3Caller(connection, store)
    if "aiosqlite" in origins(connection) and isinstance(connection, import_module("aiosqlite").Connection):
        return AiosqliteCaller(connection, store)
    return None


class Sqlite3Caller(Blocking):
    """Runs operations on a sqlite3 connection, each of them all or nothing.

    Nothing is read before the first write: a transaction that has only read cannot wait for another writer.
    """

    def __init__(self, connection: sqlite3.Connection, store: SqliteHome) -> None:
        super().__init__(connection)
        self._connection = connection
        self._store = store

    def run(self, op: Operation[T]) -> T:
        try:
            with _plain_text(self._connection):
                # Made by hand, a cursor has neither the connection's row factory nor its cursor class.
                cursor = sqlite3.Cursor(self._connection)
                self._require_same_file(cursor)
                self._require_transaction()
                with _all_or_nothing(cursor):
                    return drive(op.steps(self._store.queries), lambda statement: self._execute(cursor, statement))
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            raise self._told(error) from error

    def _execute(self, cursor: sqlite3.Cursor, statement: Statement) -> Rows:
        rows: Rows = []
        for text, args in plain_calls(statement, self._store.clock.now()):
            # An adapter that the application registered for bool must not see ours.
            rows += cursor.execute(text, [int(arg) if arg is True or arg is False else arg for arg in args]).fetchall()
        return rows

    def _require_same_file(self, cursor: sqlite3.Cursor) -> None:
        [file] = [row[2] for row in cursor.execute("PRAGMA database_list").fetchall() if row[1] == "main"]
        if self._store.path == ":memory:":
            raise WrongConnection(
                "within= cannot be used with a store in memory, which no other connection can reach: give it a file"
            )
        if not file:
            raise WrongConnection(f"within= was given a database in memory, and the tasks are in {self._store.path}")
        if not _same_file(file, self._store.path):
            raise WrongConnection(f"within= was given a connection to {file}, and the tasks are in {self._store.path}")

    def _require_transaction(self) -> None:
        if self._connection.in_transaction:
            return
        governed = getattr(self._connection, "autocommit", LEGACY) == LEGACY
        if not governed or self._connection.isolation_level is None:
            raise NoTransaction("this sqlite3 connection commits every statement by itself: BEGIN a transaction first")

    def _told(self, error: Exception) -> DurablyError:
        code = getattr(error, "sqlite_errorcode", None) or 0
        where, what = self._store.address, str(error)
        if code & 0xFF in BUSY:
            return RetryTransaction(f"{where}: {what}: roll back and run your transaction again")
        if "no such table: durably_" in what:
            return SchemaOutdated(f"{where} has no Durably tables: run `durably migrate` before you begin")
        if code & 0xFF == sqlite3.SQLITE_READONLY:
            return WrongConnection(f"within= was given a connection that may not write to {where}")
        if isinstance(error, sqlite3.ProgrammingError):
            return WrongConnection(f"within= was given a connection that cannot be used here: {what}")
        if isinstance(error, sqlite3.OperationalError | sqlite3.InternalError) or type(error) is sqlite3.DatabaseError:
            return StoreUnavailable(f"{where}: {what}")
        return StoreRejected(f"{where}: {what}")


class AiosqliteCaller(Awaited):
    """Runs a whole operation in the thread that owns an aiosqlite connection, so that no other task comes in between.

    aiosqlite has no public way to run a function there; its own methods all go through `_execute`.
    """

    def __init__(self, connection: Any, store: SqliteHome) -> None:
        super().__init__(connection)
        self._connection = connection
        self._store = store

    async def arun(self, op: Operation[T]) -> T:
        try:
            inner = Sqlite3Caller(self._connection._conn, self._store)
        except ValueError as error:
            raise WrongConnection(f"within= was given an aiosqlite connection that is not open: {error}") from error
        answer: T = await self._connection._execute(inner.run, op)
        return answer


@contextmanager
def _plain_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Text is read as str meanwhile; sqlite3 asks the connection for its text factory, not the cursor."""
    factory = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = factory


@contextmanager
def _all_or_nothing(cursor: sqlite3.Cursor) -> Iterator[None]:
    """What is written inside is undone by an error, and what the caller wrote before is kept."""
    connection = cursor.connection
    if not connection.in_transaction:
        # Python opens the caller's transaction before this; a savepoint would begin one of its own, and commit it.
        cursor.execute("DELETE FROM durably_meta WHERE false")
    cursor.execute("SAVEPOINT durably")
    try:
        yield
    except BaseException:
        # Some errors (a full disk) make SQLite itself roll back everything.
        if connection.in_transaction:
            cursor.execute("ROLLBACK TO durably")
            cursor.execute("RELEASE durably")
        raise
    cursor.execute("RELEASE durably")


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
