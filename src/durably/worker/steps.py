"""First steps: coroutines begin one after the other in one task of the loop, and whoever must wait keeps that task.

Most handlers that are quick end in their first step. A task of the loop for each of them would cost more than all that
the worker does about it besides.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from types import CoroutineType
from typing import Any
from weakref import getweakrefcount

Work = Coroutine[Any, Any, Any]


def as_coroutine(awaitable: Awaitable[Any]) -> Work:
    """What can be driven step by step."""
    return awaitable if type(awaitable) is CoroutineType else _awaited(awaitable)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class Rest:
    """What is left of a coroutine that took its first step and waits: awaiting this goes on with it.

    Every step is taken in the contextvars of the first one.
    """

    __slots__ = ("_context", "_waits_for", "_work")

    def __init__(self, work: Work, context: Context, waits_for: object) -> None:
        self._work = work
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[object, None, Any]:
        waits_for = self._waits_for
        while True:
            step: Callable[..., object] = self._work.send
            given: BaseException | None = None
            try:
                yield waits_for
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:
                step, given = self._work.throw, error
            try:
                waits_for = self._context.run(step, given)
            except StopIteration as stop:
                return stop.value


def traces(task: asyncio.Task[None]) -> tuple[object, ...]:
    """What shows whether somebody has kept hold of the running task: then another is needed for the next coroutine."""
    return sys.getrefcount(task), getweakrefcount(task), task.cancelling(), task._callbacks
