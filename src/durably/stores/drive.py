"""Running an operation's statements: the loop between the generator and a connection, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from durably.stores.statement import Rows, Statement, Steps

T = TypeVar("T")


def drive(steps: Steps[T], execute: Callable[[Statement], Rows]) -> T:
    """Run every statement with `execute` and answer what the operation returns."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(execute(statement))
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    finally:
        steps.close()


async def adrive(steps: Steps[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    """Run every statement with an awaitable `execute` and answer what the operation returns."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await execute(statement))
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    finally:
        steps.close()
