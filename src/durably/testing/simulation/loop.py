"""An event loop without waiting: time jumps to the next timer, and having nothing to wait for is a deadlock.

Everything that runs belongs to a strand: the main thread or the heartbeat thread of a simulated process. A strand can
be frozen, as a process is that the system stops, or cut, as one is that dies: then nothing of it ever runs again, not
even its cleanup.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, Generic, TypeVar, TypeVarTuple

from durably.core.moment import SECOND

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000 * SECOND
"""The store's time when a simulation begins."""


class Deadlock(Exception):
    """Everything waits, and nothing is left that could wake anyone."""


class Strand:
    """One thread of a simulated process: whatever is scheduled from its context runs only while it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._frozen = False
        self._cut = False
        self._held: list[tuple[_Guarded[*tuple[Any, ...]], tuple[Any, ...]]] = []
        self.context = copy_context()
        """Run in it, and what follows belongs to this strand."""
        self.context.run(_strand.set, self)

    @property
    def runs(self) -> bool:
        """Whether its code makes progress now."""
        return not self._frozen and not self._cut

    def freeze(self) -> None:
        """Stop it; what falls due meanwhile is kept for later."""
        self._frozen = True

    def thaw(self) -> None:
        """Let it go on; what fell due meanwhile comes first, in order."""
        self._frozen = False
        held, self._held = self._held, []
        for guarded, args in held:
            guarded.again(args)

    def cut(self) -> None:
        """End it: nothing of it ever runs again."""
        self._cut = True

    def release(self) -> None:
        """Let what is left of it unwind, once the simulation is over and nobody looks any more."""
        self._cut = False
        self.thaw()

    def hold(self, guarded: _Guarded[*tuple[Any, ...]], args: tuple[Any, ...]) -> None:
        """Keep a callback that fell due while nothing may run."""
        self._held.append((guarded, args))


_strand: ContextVar[Strand | None] = ContextVar("durably_simulation_strand", default=None)
OUTSIDE = Context()
"""The context of what belongs to no process: the network, the store, the director."""


class _Guarded(Generic[*Ts]):
    """A callback that runs when its strand may. A cancellation of its first handle counts for later runs too."""

    __slots__ = ("_callback", "_context", "_loop", "_strand", "handle")

    handle: asyncio.Handle

    def __init__(self, loop: VirtualLoop, strand: Strand, callback: Callable[[*Ts], object], context: Context) -> None:
        self._loop = loop
        self._strand = strand
        self._callback = callback
        self._context = context

    def __call__(self, *args: *Ts) -> None:
        if self.handle.cancelled():
            return
        if self._strand.runs:
            self._callback(*args)
        else:
            self._strand.hold(self, args)

    def again(self, args: tuple[*Ts]) -> None:
        self._loop.reschedule(self, args, self._context)


class _Jump(selectors.SelectSelector):
    """Waits for nothing: to select is to jump to the moment when the next timer is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("everything waits, and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, which begins at zero."""

    def __init__(self) -> None:
        self._jump = _Jump()
        self._tasks: set[asyncio.Task[Any]] = set()
        super().__init__(self._jump)
        # The sum of many jumps is not exact; a timer that is due within a microsecond is due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jump.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task that is kept until it is done: one that was cut would otherwise be collected, and run its cleanup."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=OUTSIDE)
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        strand = context.get(_strand)
        if strand is None:
            return super().call_soon(callback, *args, context=context)
        guarded = _Guarded(self, strand, callback, context)
        guarded.handle = super().call_soon(guarded, *args, context=context)
        return guarded.handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        strand = context.get(_strand)
        if strand is None:
            return super().call_at(when, callback, *args, context=context)
        guarded = _Guarded(self, strand, callback, context)
        timer = super().call_at(when, guarded, *args, context=context)
        guarded.handle = timer
        return timer

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def reschedule(self, guarded: _Guarded[*Ts], args: tuple[*Ts], context: Context) -> None:
        """Run a callback that was held back, as soon as possible."""
        super().call_soon(guarded, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise RuntimeError("a simulation has no threads")


class VirtualClock:
    """The loop's time, as a clock that begins at a fixed date."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return EPOCH + int(self._loop.time() * SECOND)

    def monotonic(self) -> float:
        return self._loop.time()
