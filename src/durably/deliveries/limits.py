"""Limits to how long an attempt may take. One timer serves all of them, so that one more costs next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durably.client.perloop import PerLoop
from durably.worker.deadlines import Deadlines


class Limit:
    """Cancels the running coroutine. Whoever sets it catches that, and asks whether it was this one."""

    __slots__ = ("_before", "_deadlines", "_first", "_overdue", "_running", "_seconds", "_then")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines[Limit],
        seconds: float,
        first: Callable[[], None] | None = None,
        first_after: float = 0.0,
    ) -> None:
        running = asyncio.current_task(loop)
        assert running is not None
        self._running = running
        self._before = running.cancelling()
        self._overdue = False
        self._deadlines = deadlines
        self._first = first
        self._seconds = seconds if first is None else min(first_after, seconds)
        self._then = seconds - self._seconds
        deadlines.arm(self._seconds, self)

    def ring(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            self._seconds = self._then
            self._deadlines.arm(self._seconds, self)
            first()
        else:
            self._overdue = True
            self._running.cancel()

    def stop(self) -> None:
        self._deadlines.disarm(self._seconds, self)

    def was_it(self) -> bool:
        """Whether the cancellation that has just arrived came from here alone."""
        return self._overdue and self._running.uncancel() <= self._before


class Limits:
    """The limits of every event loop. Those that take equally long are cheapest."""

    def __init__(self) -> None:
        self._deadlines = PerLoop(_deadlines)

    def limit(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Limit:
        """Cancel what runs here in so many seconds."""
        return Limit(loop, self._deadlines.of(loop), seconds)

    def limit_with_a_call(
        self, loop: asyncio.AbstractEventLoop, seconds: float, first: Callable[[], None], after: float
    ) -> Limit:
        """The same; and make a call before, when so many seconds have passed."""
        return Limit(loop, self._deadlines.of(loop), seconds, first, after)


def _deadlines(loop: asyncio.AbstractEventLoop) -> Deadlines[Limit]:
    return Deadlines(loop, Limit.ring)
