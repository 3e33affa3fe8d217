"""Something that belongs to one event loop, such as a connection: one for each loop that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Made when it is first asked for, and forgotten when its loop is closed and another one asks."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], T] | None = None

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """That of the running event loop, which costs a system call to ask for: whoever knows it passes it on."""
        last = self._last
        if last is not None and last[0]() is loop:
            return last[1]
        found = self._made.get(loop)
        if found is None:
            self._forget_closed()
            found = self._made[loop] = self._make(loop)
        # In one step: other threads have loops of their own.
        self._last = (ref(loop), found)
        return found

    def _forget_closed(self) -> None:
        """What was made may hold on to its loop, which then would never go."""
        for loop in self._made.keyrefs():
            known = loop()
            if known is not None and known.is_closed():
                self._made.pop(known, None)

    def pop(self) -> T | None:
        """That of the running event loop, if there is one; it is forgotten."""
        self._last = None
        return self._made.pop(asyncio.get_running_loop(), None)
