"""asyncpg: a connection, or the proxy that a pool hands out."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from durably.errors import WrongConnection
from durably.stores.callers.postgres import PostgresHome, aadmit, admitted, arrival, none_open, told
from durably.stores.callers.twins import Awaited
from durably.stores.drive import adrive
from durably.stores.protocol import Caller
from durably.stores.statement import Operation, Rows, Statement, array_call

T = TypeVar("T")


def caller_for(connection: Any, store: PostgresHome) -> Caller | None:
    """The caller for a driver's connection, or None if it is no connection of this driver."""
    asyncpg: Any = import_module("asyncpg")
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return AsyncpgCaller(connection, store)
    return None


class AsyncpgCaller(Awaited):
    """Runs operations on an asyncpg connection.

    Codecs that the application set for json, jsonb, uuid, numeric or times are never met, since only text, bytea,
    integers and booleans cross. asyncpg has no way around one that was set for those.
    """

    def __init__(self, connection: Any, store: PostgresHome) -> None:
        super().__init__(connection)
        self._connection = connection
        self._store = store

    async def arun(self, op: Operation[T]) -> T:
        asyncpg: Any = import_module("asyncpg")
        self._require_transaction(asyncpg.InterfaceError)
        try:
            # A pool hands the same connection out behind ever new proxies, to which no weak reference can be made.
            known = getattr(self._connection, "_con", self._connection)
            if not admitted(known, self._store):
                found = await adrive(arrival(self._store).steps(self._store.queries), self._execute)
                await aadmit(known, self._store, found)
            return await adrive(op.steps(self._store.queries), self._execute)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise told(self._store, error, lambda unsent: not isinstance(unsent, ValueError)) from error

    def _require_transaction(self, unusable: type[Exception]) -> None:
        try:
            closed, begun = self._connection.is_closed(), self._connection.is_in_transaction()
        except unusable as error:
            raise WrongConnection(f"within= was given an asyncpg connection that cannot be used: {error}") from error
        if closed:
            raise WrongConnection("within= was given an asyncpg connection that is closed")
        if not begun:
            raise none_open("`async with connection.transaction():`")

    async def _execute(self, statement: Statement) -> Rows:
        record: Any = import_module("asyncpg").Record
        text, args = array_call(statement)
        return [tuple(row) for row in await self._connection.fetch(text, *args, record_class=record)]
