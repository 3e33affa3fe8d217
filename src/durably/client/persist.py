"""Sending again what may have landed: after a broken connection nobody knows whether the commit did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from durably.errors import StoreUnavailable
from durably.stores.protocol import Store
from durably.stores.statement import Operation

T = TypeVar("T")

TRIES = 3


def persist(store: Store, make: Callable[[bool], Operation[T]]) -> T:
    """Run the operation that `make` answers; it is told whether an earlier try may have landed."""
    for attempt in range(TRIES):
        try:
            return store.run(make(attempt > 0))
        except StoreUnavailable as error:
            if not error.fleeting or attempt == TRIES - 1:
                raise
    raise AssertionError


async def apersist(store: Store, make: Callable[[bool], Operation[T]]) -> T:
    """The asynchronous twin of persist."""
    for attempt in range(TRIES):
        try:
            return await store.arun(make(attempt > 0))
        except StoreUnavailable as error:
            if not error.fleeting or attempt == TRIES - 1:
                raise
    raise AssertionError
