"""Limits to how long an attempt may take. One timer serves all of them, so that one more costs next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durably.client.perloop import PerLoop
from durably.worker.deadlines import Deadlines


class Alarm:
    """Rings once when its time is over, unless it is stopped before."""

    __slots__ = ("_deadlines", "_ring", "_seconds")

    def __init__(self, deadlines: Deadlines[Alarm], seconds: float, ring: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._ring = ring
        deadlines.arm(seconds, self)

    def ring(self) -> None:
        self._ring()

    def stop(self) -> None:
        self._deadlines.disarm(self._seconds, self)


class Limit(Alarm):
    """Cancels the running coroutine. Whoever sets it catches that, and asks whether it was this one."""

    __slots__ = ("_before", "_overdue", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines[Alarm], seconds: float) -> None:
        running = asyncio.current_task(loop)
        assert running is not None
        self._running = running
        self._before = running.cancelling()
        self._overdue = False
        super().__init__(deadlines, seconds, self._cancel)

    def _cancel(self) -> None:
        self._overdue = True
        self._running.cancel()

    def was_it(self) -> bool:
        """Whether the cancellation that has just arrived came from here alone."""
        return self._overdue and self._running.uncancel() <= self._before


class Alarms:
    """The alarms of every event loop. Those that take equally long are cheapest."""

    def __init__(self) -> None:
        self._deadlines = PerLoop(_deadlines)

    def limit(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Limit:
        """Cancel what runs here in so many seconds."""
        return Limit(loop, self._deadlines.of(loop), seconds)

    def after(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Do something in so many seconds."""
        return Alarm(self._deadlines.of(loop), seconds, ring)


def _deadlines(loop: asyncio.AbstractEventLoop) -> Deadlines[Alarm]:
    return Deadlines(loop, Alarm.ring)
