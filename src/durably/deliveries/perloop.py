"""Something that belongs to one event loop, such as a connection: one for each loop that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Made when it is first asked for, and forgotten with its loop."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._last: ref[asyncio.AbstractEventLoop] | None = None
        self._at_hand: T | None = None

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """That of the running event loop, which costs a system call to ask for: whoever knows it passes it on."""
        if self._last is not None and self._last() is loop and self._at_hand is not None:
            return self._at_hand
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make(loop)
        self._last, self._at_hand = ref(loop), found
        return found

    def pop(self) -> T | None:
        """That of the running event loop, if there is one; it is forgotten."""
        self._last = self._at_hand = None
        return self._made.pop(asyncio.get_running_loop(), None)
