"""An event loop without waiting: time jumps to the next timer, and having nothing to wait for is a deadlock.

Everything that runs belongs to a strand: the main thread or the heartbeat thread of a simulated process. A strand can
be frozen, as a process is that the system stops, or cut, as one is that dies: then nothing of it ever runs again, not
even its cleanup.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 100_000_000
"""The wall clock's time when a simulation begins, in seconds since 1970."""


Connect = Callable[[asyncio.Protocol], Awaitable[asyncio.Transport]]
"""How a server takes a connection, or raises an OSError."""


class Deadlock(Exception):
    """Everything waits, and nothing is left that could wake anyone."""


class Strand:
    """One thread of a simulated process: whatever is scheduled from its context runs only while it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = True
        """Whether its code makes progress now."""
        self._cut = False
        self._held: list[asyncio.Handle] = []
        self.context = copy_context()
        """Run in it, and what follows belongs to this strand."""
        self.context.run(_strand.set, self)

    def freeze(self) -> None:
        """Stop it; what falls due meanwhile is kept for later."""
        self.runs = False

    def thaw(self, loop: VirtualLoop) -> None:
        """Let it go on; what fell due meanwhile comes first, in order."""
        self.runs = not self._cut
        held, self._held = self._held, []
        loop.again(held)

    def cut(self) -> None:
        """End it: nothing of it ever runs again."""
        self._cut = True
        self.runs = False

    def release(self, loop: VirtualLoop) -> None:
        """Let what is left of it unwind, once the simulation is over and nobody looks any more."""
        self._cut = False
        self.thaw(loop)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that fell due while nothing may run."""
        self._held.append(handle)


_strand: ContextVar[Strand | None] = ContextVar("durably_simulation_strand", default=None)
OUTSIDE = Context()
"""The context of what belongs to no process: the network, the store, the director."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop in virtual time, which begins at zero. It has no files to wait for, no network, and no threads.

    What asyncio's own loop does for real time and real files costs more than a simulation's work, so the loop's round
    is written anew: run what is ready, else jump to the next timer. Timers of the same moment ring in order.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._moment = 0.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._kept: set[asyncio.Task[Any]] = set()
        self.servers: dict[str, Connect] = {}
        """Who answers under which name."""

    def time(self) -> float:
        return self._moment

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task that is kept until it is done: one that was cut would otherwise be collected, and run its cleanup."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard, context=OUTSIDE)
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._moment + delay, callback, *args, context=context)

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Run callbacks that were held back, as soon as possible."""
        self._ready.extend(handles)

    def close(self) -> None:
        self._timers.clear()
        super().close()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """A connection to whoever answers under that name."""
        if host not in self.servers:
            raise ConnectionRefusedError(f"nobody is at {host}:{port}")
        protocol = protocol_factory()
        return await self.servers[host](protocol), protocol

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise RuntimeError("a simulation has no threads")

    def _run_once(self) -> None:
        """One round, as asyncio calls it."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Deadlock("everything waits, and no timer is set")
            self._moment = max(self._moment, timers[0][0])
        while timers and timers[0][0] <= self._moment:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            strand = handle._context.get(_strand)  # type: ignore[attr-defined]
            if strand is None or strand.runs:
                handle._run()
            else:
                strand.hold(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is left where it is, and passed over when its time comes."""


class Bell:
    """An event for one who waits, for a while at most. Much cheaper than `asyncio.wait_for`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.rung = False
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake whoever waits now, or let the next one not wait at all."""
        self.rung = True
        if self._waiter is not None:
            _settle(self._waiter)

    async def wait(self, seconds: float) -> bool:
        """Wait for so long at most; whether it has rung."""
        if not self.rung:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(seconds, _settle, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self.rung


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class WallClock:
    """The time of the simulated machine, which someone may set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.shift = 0.0
        """Seconds by which it has been set forward, or back."""

    def __call__(self) -> float:
        return EPOCH + self._loop.time() + self.shift
