"""Operations that are begun and not waited for, so that whoever began one can do something else meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Started(Protocol[T_co]):
    """An operation under way."""

    def go_on(self) -> None:
        """Let it do what it can do without waiting: to be called often until the result is wanted."""
        ...

    def result(self) -> T_co:
        """Wait for its end; what it answers, or what went wrong."""
        ...


class InThread(Generic[T]):
    """Something that a thread of its own does."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        Thread(target=self._run, args=(do,), name="durably-started").start()

    def go_on(self) -> None:
        """Let the thread have the interpreter if it wants it."""
        time.sleep(0)

    def result(self) -> T:
        return self._future.result()

    def _run(self, do: Callable[[], T]) -> None:
        try:
            self._future.set_result(do())
        except BaseException as error:
            self._future.set_exception(error)
