"""A plan is a generator that yields operations: written once, run by a synchronous or an asynchronous method."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from durably.stores.protocol import Store
from durably.stores.statement import Operation

T = TypeVar("T")

Plan = Generator[Operation[Any], Any, T]


def run(store: Store, plan: Plan[T]) -> T:
    """Run every operation of the plan on the calling thread."""
    try:
        op = next(plan)
        while True:
            op = plan.send(store.run(op))
    except StopIteration as stop:
        answer: T = stop.value
        return answer


async def arun(store: Store, plan: Plan[T]) -> T:
    """Run every operation of the plan without blocking the event loop."""
    try:
        op = next(plan)
        while True:
            op = plan.send(await store.arun(op))
    except StopIteration as stop:
        answer: T = stop.value
        return answer
