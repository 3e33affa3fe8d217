"""Django: `django.db.connection` and `connections[alias]`, inside `transaction.atomic()`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from durably.errors import NoTransaction, RetryTransaction, WrongConnection
from durably.stores.callers.origin import described
from durably.stores.protocol import Caller
from durably.stores.statement import Operation

T = TypeVar("T")


def caller_for(given: Any, reached: Callable[[Any], Caller]) -> Caller | None:
    """The caller for Django's connection, or None if it is something else of Django's."""
    proxy: Any = import_module("django.utils.connection").ConnectionProxy
    wrapper: Any = import_module("django.db.backends.base.base").BaseDatabaseWrapper
    return DjangoCaller(given, reached) if isinstance(given, proxy | wrapper) else None


class DjangoCaller:
    """Runs operations on the driver's connection below Django's, in the thread that Django's belongs to."""

    def __init__(self, connection: Any, reached: Callable[[Any], Caller]) -> None:
        self._connection = connection
        self._reached = reached

    def run(self, op: Operation[T]) -> T:
        connection = self._connection
        if not hasattr(connection, "in_atomic_block"):
            raise WrongConnection(f"within= was given {described(connection)} that is not a database's: use django.db")
        if not connection.in_atomic_block or connection.connection is None:
            raise NoTransaction("no transaction is open on Django's connection: begin one with transaction.atomic()")
        if connection.needs_rollback:
            raise NoTransaction("Django's transaction has failed and can accept nothing: leave the atomic block first")
        try:
            return self._reached(connection.connection).run(op)
        except RetryTransaction:
            # Django did not see the error; without this it would commit what the server has already given up.
            connection.set_rollback(True)
            raise

    async def arun(self, op: Operation[T]) -> T:
        """The same from a coroutine; `connection` is looked up in the thread where Django's synchronous code runs."""
        asgiref: Any = import_module("asgiref.sync")
        answer: T = await asgiref.sync_to_async(self.run, thread_sensitive=True)(op)
        return answer
