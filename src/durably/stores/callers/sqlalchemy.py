"""SQLAlchemy 2: connections and sessions, down to the driver's connection once their transaction has really begun."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from durably.errors import NoTransaction, WrongConnection
from durably.stores.callers.origin import origins
from durably.stores.callers.twins import Awaited, Blocking
from durably.stores.protocol import Caller
from durably.stores.statement import Operation

T = TypeVar("T")

Reached = Callable[[Any], Caller]


def caller_for(given: Any, reached: Reached) -> Caller | None:
    """The caller for a connection or session, or None if it is neither."""
    if _is(given, "sqlalchemy", "Connection"):
        return SqlalchemyCaller(given, lambda: given, reached)
    if _is(given, "sqlalchemy.orm", "Session", "scoped_session"):
        return SqlalchemyCaller(given, given.connection, reached)
    if _is(given, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return AsyncSqlalchemyCaller(given, lambda: _itself(given), reached)
    if _is(given, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        return AsyncSqlalchemyCaller(given, given.connection, reached)
    return None


class SqlalchemyCaller(Blocking):
    """Runs operations on the driver's connection of a Connection or Session. A session is not flushed.

    Inside `run_sync` the driver is an asynchronous one, and is awaited through SQLAlchemy's greenlet.
    """

    def __init__(self, given: Any, connect: Callable[[], Any], reached: Reached) -> None:
        super().__init__(given)
        self._connect = connect
        self._reached = reached

    def run(self, op: Operation[T]) -> T:
        with _told():
            connection = self._connect()
            if not connection.in_transaction():
                connection.begin()
            driver = connection.connection.driver_connection
            if _begins_late(driver):
                connection.exec_driver_sql("SELECT 1").close()
        caller = self._reached(driver)
        if isinstance(caller, Awaited):
            answer: T = _awaited(caller.arun(op))
            return answer
        return caller.run(op)


class AsyncSqlalchemyCaller(Awaited):
    """Runs operations on the driver's connection of an AsyncConnection or AsyncSession. A session is not flushed."""

    def __init__(self, given: Any, connect: Callable[[], Awaitable[Any]], reached: Reached) -> None:
        super().__init__(given)
        self._connect = connect
        self._reached = reached

    async def arun(self, op: Operation[T]) -> T:
        with _told():
            connection = await self._connect()
            if not connection.in_transaction():
                await connection.begin()
            driver = (await connection.get_raw_connection()).driver_connection
            if _begins_late(driver):
                await connection.exec_driver_sql("SELECT 1")
        return await self._reached(driver).arun(op)


def _is(given: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of one of these classes; a module that nobody imported has no instances."""
    found = sys.modules.get(module)
    return found is not None and isinstance(given, tuple(getattr(found, name) for name in names))


async def _itself(given: Any) -> Any:
    return given


def _begins_late(driver: Any) -> bool:
    """Whether SQLAlchemy has yet to send BEGIN: its asyncpg dialect does so with the first statement that it runs."""
    return "asyncpg" in origins(driver) and not driver.is_in_transaction()


def _awaited(answer: Any) -> Any:
    util: Any = import_module("sqlalchemy.util")
    wait = getattr(util, "await_", None) or util.await_only
    with _told():
        return wait(answer)


@contextmanager
def _told() -> Iterator[None]:
    """SQLAlchemy's own objections in our words."""
    exc: Any = import_module("sqlalchemy.exc")
    try:
        yield
    except (exc.ResourceClosedError, exc.UnboundExecutionError, exc.MissingGreenlet) as error:
        raise WrongConnection(f"within= was given what SQLAlchemy cannot use here: {_first(error)}") from error
    except exc.InvalidRequestError as error:
        raise NoTransaction(f"SQLAlchemy has no usable transaction here: {_first(error)}") from error


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
