"""A conversation with the server that goes on while its starter does something else, in the starter's own thread."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from durably.stores.postgres.pool import Lent
from durably.stores.postgres.wire import Exchange, Wire

PATIENCE = 0.05
"""Seconds without a look at it after which it is brought to its end without its starter."""

T = TypeVar("T")


class UnderWay(Generic[T]):
    """It goes on whenever its starter looks after it: two threads would wait for each other more than for the server.

    A starter that is busy with something slow must not keep a transaction open: then a thread takes over.
    """

    def __init__(self, lent: Lent, talk: Callable[[Wire], Exchange[T]]) -> None:
        self._poll = select.poll()
        self._socket = -1
        self._exchange = self._going(lent, talk)
        self._answer: T
        self._error: BaseException | None = None
        self._looked = True
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._step()
        if not self._over.is_set():
            threading.Thread(target=self._watch, name="durably-under-way", daemon=True).start()

    def go_on(self) -> None:
        """Go as far as possible without waiting."""
        self._looked = True
        if self._lock.acquire(blocking=False):
            try:
                while not self._over.is_set() and self._poll.poll(0):
                    self._step()
            finally:
                self._lock.release()

    def result(self) -> T:
        """Wait for its end."""
        self._finish()
        if self._error is not None:
            raise self._error
        return self._answer

    def _finish(self) -> None:
        with self._lock:
            try:
                while not self._over.is_set():
                    self._poll.poll()
                    self._step()
            finally:
                self._over.set()
                self._exchange.close()

    def _watch(self) -> None:
        while not self._over.wait(PATIENCE):
            if not self._looked:
                self._finish()
            self._looked = False

    def _step(self) -> None:
        try:
            wanted = next(self._exchange)
            self._poll.register(self._socket, wanted)
        except StopIteration as stop:
            self._answer = stop.value
            self._over.set()
        except BaseException as error:
            self._error = error
            self._over.set()

    def _going(self, lent: Lent, talk: Callable[[Wire], Exchange[T]]) -> Exchange[T]:
        with lent as connection:
            self._socket = connection.fileno()
            return (yield from talk(connection.wire))
