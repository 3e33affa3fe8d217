"""Timeouts by a wheel: one queue per distinct timeout, one timer for all, so that arming one costs next to nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Expires(Protocol):
    """Something with a deadline that may have finished by then."""

    @property
    def finished(self) -> bool: ...


class Deadlines:
    """Calls back for everything that is not finished when its time is up. Same timeouts expire in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Expires], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._queues: dict[float, deque[tuple[float, Expires]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def arm(self, timeout: float, what: Expires) -> float:
        """Watch it from now on; the moment of its deadline on the loop's clock."""
        at = self._loop.time() + timeout
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = deque()
        queue.append((at, what))
        if at < self._timer_at:
            self._set(at)
        return at

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
        soonest = float("inf")
        for timeout, queue in list(self._queues.items()):
            while queue and (queue[0][1].finished or queue[0][0] <= now):
                _, what = queue.popleft()
                if not what.finished:
                    self._expire(what)
            if queue:
                soonest = min(soonest, queue[0][0])
            else:
                del self._queues[timeout]
        if soonest < float("inf"):
            self._set(soonest)
