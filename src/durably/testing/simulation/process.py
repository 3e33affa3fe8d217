"""A simulated process: two strands that are frozen and cut together, and a heartbeat that beats on the loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from durably.core.moment import Clock, micros
from durably.errors import DurablyError
from durably.stores.operations.sweep import beat
from durably.stores.protocol import Store
from durably.testing.simulation.loop import Bell, Strand, VirtualLoop
from durably.testing.simulation.trace import Trace
from durably.worker.session import Pulse, Session


class Process:
    """A process of the simulated machine. What it loses when it dies is everything."""

    def __init__(self, loop: VirtualLoop, clock: Clock, name: str, trace: Trace, *, mortal: bool = False) -> None:
        self.name = name
        self.alive = True
        self.mortal = mortal
        """Whether the network may kill it."""
        self.thawed_at = -math.inf
        """When it last went on after a pause."""
        self.loop = loop
        self.clock = clock
        """As it reads the time: like the machine, but never backwards."""
        self._trace = trace
        self.main = Strand(name)
        self.pulse = Strand(f"{name} heartbeat")
        self.mourners: list[Callable[[], None]] = []
        """Who wants to know when it dies."""

    def spawn(self, work: Coroutine[Any, Any, Any], *, strand: Strand | None = None) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self.loop.create_task(work, context=(strand or self.main).context.copy())

    def crash(self, why: str) -> None:
        """Die here and now: nothing of it runs again."""
        if self.alive:
            self.alive = False
            self._trace.say(self.name, f"CRASHES: {why}")
            self.main.cut()
            self.pulse.cut()
            for mourner in self.mourners:
                mourner()

    def freeze(self, *, heart: bool) -> None:
        """Stop for a while: the whole process, or only its event loop."""
        if self.alive:
            self._trace.say(self.name, "is stopped" if heart else "has a blocked event loop")
            self.main.freeze()
            if heart:
                self.pulse.freeze()

    def thaw(self) -> None:
        """Go on, not knowing how long it was away."""
        if self.alive and not (self.main.runs and self.pulse.runs):
            self._trace.say(self.name, "goes on")
            self.thawed_at = self.loop.time()
            self.main.thaw(self.loop)
            self.pulse.thaw(self.loop)

    def exit(self) -> None:
        """End in good order."""
        self.alive = False

    def release(self) -> None:
        """Let what is left of it unwind."""
        self.main.release(self.loop)
        self.pulse.release(self.loop)


class LoopHeartbeat:
    """What `durably.worker.session.Heartbeat` does, as a task in the process's second strand."""

    def __init__(
        self,
        process: Process,
        store: Store,
        session: Session,
        interval: float,
        pulse: Pulse,
        now: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        self._process = process
        self._store = store.private()
        self._session = session
        self._interval = interval
        self._pulse = pulse
        self._now = now
        self._on_lost = on_lost
        self._stopped = Bell(process.loop)

    def start(self) -> None:
        self._process.spawn(self._run(), strand=self._process.pulse)

    def stop(self) -> None:
        self._stopped.ring()

    async def _run(self) -> None:
        wait = self._interval
        while not await self._stopped.wait(wait):
            if self._now() - self._pulse.last > self._session.lease:
                wait = self._interval
                continue
            try:
                sent = self._now()
                if not await self._store.arun(beat(self._session.id, micros(self._session.lease))):
                    self._session.lost = True
                    asyncio.get_running_loop().call_soon(self._on_lost, context=self._process.main.context)
                    break
                self._session.acknowledge(sent, self._now())
                wait = self._interval
            except DurablyError:
                wait = max(self._interval / 4, 0.05)
