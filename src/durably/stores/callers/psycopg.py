"""psycopg 3, synchronous and asynchronous."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from durably.errors import WrongConnection
from durably.stores.callers.postgres import (
    PostgresHome,
    aadmit,
    admit,
    admitted,
    arrival,
    failed,
    none_open,
    told,
)
from durably.stores.callers.twins import Awaited, Blocking
from durably.stores.drive import adrive, drive
from durably.stores.protocol import Caller
from durably.stores.statement import Operation, Rows, Statement, array_call

T = TypeVar("T")

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

_adapters = AdaptersMap(types=psycopg.adapters.types)
register_default_adapters(_adapters)


class PlainCursor(psycopg.RawCursor[TupleRow]):
    """A cursor that knows psycopg's own loaders and dumpers, and none that the application registered."""

    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


class AsyncPlainCursor(psycopg.AsyncRawCursor[TupleRow]):
    """Its asynchronous twin."""

    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


def caller_for(connection: Any, store: PostgresHome) -> Caller | None:
    """The caller for a driver's connection, or None if it is no connection of this driver."""
    if isinstance(connection, psycopg.Connection):
        return PsycopgCaller(connection, store)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopgCaller(connection, store)
    return None


class PsycopgCaller(Blocking):
    """Runs operations on a psycopg connection."""

    def __init__(self, connection: Connection, store: PostgresHome) -> None:
        super().__init__(connection)
        self._connection = connection
        self._store = store

    def run(self, op: Operation[T]) -> T:
        _require_transaction(self._connection)
        try:
            with PlainCursor(self._connection, row_factory=tuple_row) as cursor:

                def execute(statement: Statement) -> Rows:
                    text, args = array_call(statement)
                    cursor.execute(text.encode(), args, prepare=False)
                    try:
                        return cursor.fetchall()
                    except psycopg.ProgrammingError as error:
                        return _no_rows(cursor, error)

                if not admitted(self._connection, self._store):
                    found = drive(arrival(self._store).steps(self._store.queries), execute)
                    admit(self._connection, self._store, found)
                return drive(op.steps(self._store.queries), execute)
        except psycopg.Error as error:
            raise told(self._store, error, _is_unavailable) from error


class AsyncPsycopgCaller(Awaited):
    """Runs operations on an asynchronous psycopg connection."""

    def __init__(self, connection: AsyncConnection, store: PostgresHome) -> None:
        super().__init__(connection)
        self._connection = connection
        self._store = store

    async def arun(self, op: Operation[T]) -> T:
        _require_transaction(self._connection)
        try:
            async with AsyncPlainCursor(self._connection, row_factory=tuple_row) as cursor:

                async def execute(statement: Statement) -> Rows:
                    text, args = array_call(statement)
                    await cursor.execute(text.encode(), args, prepare=False)
                    try:
                        return await cursor.fetchall()
                    except psycopg.ProgrammingError as error:
                        return _no_rows(cursor, error)

                if not admitted(self._connection, self._store):
                    found = await adrive(arrival(self._store).steps(self._store.queries), execute)
                    await aadmit(self._connection, self._store, found)
                return await adrive(op.steps(self._store.queries), execute)
        except psycopg.Error as error:
            raise told(self._store, error, _is_unavailable) from error


def _require_transaction(connection: Connection | AsyncConnection) -> None:
    if connection.closed:
        raise WrongConnection("within= was given a psycopg connection that is closed")
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise failed()
    # Without autocommit, psycopg begins the caller's transaction before our first statement.
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise none_open("`with connection.transaction():`")


def _no_rows(cursor: PlainCursor | AsyncPlainCursor, error: psycopg.ProgrammingError) -> Rows:
    """The rows of a statement that has none; in the caller's pipeline, only the attempt to fetch them shows that."""
    if error.sqlstate is None and cursor.description is None:
        return []
    raise error


def _is_unavailable(error: Exception) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
