"""Timeouts by a wheel: one queue per distinct timeout, one timer for all, so that arming one costs next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls back for everything that is still armed when its time is up. Same timeouts expire in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._queues: dict[float, dict[T, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def arm(self, timeout: float, what: T, now: float | None = None) -> float:
        """Watch it from now on; the moment of its deadline on the loop's clock."""
        at = (self._loop.time() if now is None else now) + timeout
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = {}
        queue[what] = at
        if at < self._timer_at:
            self._set(at)
        return at

    def disarm(self, timeout: float, what: T) -> None:
        """Watch it no longer, and let go of it; it may have expired before."""
        queue = self._queues.get(timeout)
        if queue is not None:
            queue.pop(what, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._queues.clear()

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        now = self._loop.time()
        expired: list[T] = []
        soonest = float("inf")
        for timeout, queue in list(self._queues.items()):
            due = [what for what, at in queue.items() if at <= now]
            for what in due:
                del queue[what]
            expired += due
            if queue:
                soonest = min(soonest, next(iter(queue.values())))
            else:
                del self._queues[timeout]
        if soonest < float("inf"):
            self._set(soonest)
        for what in expired:
            self._expire(what)
