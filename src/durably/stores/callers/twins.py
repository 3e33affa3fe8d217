"""Callers that block and callers that are awaited; each says which method its connection is for."""

from __future__ import annotations

from typing import Any, TypeVar

from durably.errors import WrongConnection
from durably.stores.callers.origin import described
from durably.stores.statement import Operation

T = TypeVar("T")


class Blocking:
    """A caller whose connection is synchronous."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def arun(self, op: Operation[T]) -> T:
        raise WrongConnection(
            f"within= was given {described(self._given)}, which is synchronous: call the method without the 'a' "
            "(enqueue, not aenqueue), or give an asynchronous connection"
        )


class Awaited:
    """A caller whose connection is asynchronous."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def run(self, op: Operation[T]) -> T:
        raise WrongConnection(
            f"within= was given {described(self._given)}, which is asynchronous: await the method with the 'a' "
            "(aenqueue, not enqueue), or give a synchronous connection"
        )
