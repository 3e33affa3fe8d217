"""The workers: each post boots the production worker in a process of its own, again and again."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from durably.errors import StoreUnavailable
from durably.observe.events import Event
from durably.testing.simulation.ledger import Told
from durably.testing.simulation.loop import OUTSIDE
from durably.testing.simulation.office import Office, Outside, surroundings
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import QUEUES, Blow, Crew
from durably.testing.simulation.stage import Stage
from durably.testing.simulation.world import World
from durably.worker.options import WorkerOptions
from durably.worker.worker import Worker

UNTOLD = frozenset({"enqueued", "started"})
"""Events that the trace tells in other words."""


class Incarnation:
    """A worker in its process."""

    def __init__(self, process: Process, worker: Worker, running: asyncio.Task[Any]) -> None:
        self.process = process
        self.worker = worker
        self.running = running
        self.stopped = False
        """Whether it was asked to leave."""

    def stop(self) -> None:
        """Ask it to leave in good order."""
        self.stopped = True
        asyncio.get_running_loop().call_soon(self.worker.stop, context=self.process.main.context)


class Post:
    """A worker's place: whoever dies there is followed by a new incarnation."""

    def __init__(self, world: World, stage: Stage, outside: Outside | None, index: int, crew: Crew) -> None:
        self._world = world
        self._stage = stage
        self._outside = outside
        self._name = f"w{index + 1}"
        self._crew = crew
        self._chance = world.source(f"fate of {self._name}")
        self._away = 0.0
        self._closed = False
        self._incarnations: list[Incarnation] = []
        # They are all kept: a worker that was cut off would otherwise be collected, and run its cleanup.

    @property
    def current(self) -> Incarnation | None:
        """Who is at work there, if anyone is."""
        last = self._incarnations[-1]
        return last if last.process.alive else None

    def boot(self) -> None:
        """Begin a new incarnation."""
        if self._closed:
            return
        world, crew, name = self._world, self._crew, f"{self._name}.{len(self._incarnations) + 1}"
        process = world.process(name, mortal=True)
        engine = world.engine(process)
        engine.events.subscribe(functools.partial(self._hear, name))
        office = None if self._outside is None else Office(self._outside, engine, process)
        options = WorkerOptions(
            QUEUES if office is None else (*QUEUES, *office.queues),
            concurrency=crew.concurrency,
            lease=crew.lease,
            heartbeat=crew.lease / 4,
            poll=crew.poll,
            grace=crew.grace,
            stuck_limit=max(1, crew.concurrency // 2),
            scan=crew.scan,
            ahead=crew.ahead,
        )
        calm = world.network.calm
        definitions = self._stage.declare(engine, process, rare=crew.knows_rare or calm, old=crew.old and not calm)
        if office is not None:
            definitions |= office.definitions
        worker = Worker(engine, definitions, options, surroundings=surroundings(world, engine, process, name))
        world.trace.say(name, f"boots: {crew.concurrency} slots, a lease of {crew.lease:g} s")
        running = process.spawn(worker.run())
        incarnation = Incarnation(process, worker, running)
        running.add_done_callback(functools.partial(self._left, incarnation), context=OUTSIDE)
        process.mourners.append(functools.partial(self._mourn, process))
        self._incarnations.append(incarnation)

    async def strike(self, blow: Blow) -> None:
        """Something befalls the one who is at work."""
        current = self.current
        if current is None:
            return
        self._world.ledger.struck[f"blow: {blow.kind}"] += 1
        match blow.kind:
            case "crash":
                self._away = blow.lasting
                current.process.crash("it is killed")
            case "restart":
                self._away = blow.lasting
                self._world.trace.say(current.process.name, "is asked to leave")
                current.stop()
            case "stop" | "block":
                current.process.freeze(heart=blow.kind == "stop")
                await asyncio.sleep(blow.lasting)
                current.process.thaw()

    def enlighten(self) -> None:
        """See to it that whoever works here has new code, and knows every task."""
        if (self._crew.old or not self._crew.knows_rare) and self.current is not None:
            self.current.stop()

    async def close(self) -> None:
        """Stop in good order, for good."""
        self._closed = True
        if self.current is not None:
            self.current.stop()
            process, running = self.current.process, self.current.running
            _, late = await asyncio.wait([running], timeout=60)
            # A zombie that thaws only now may still be killed by its own task.
            if late and process.alive:
                self._world.complain(f"{process.name} did not leave within a minute")

    def _hear(self, worker: str, event: Event) -> None:
        world = self._world
        world.ledger.told.append(Told(world.loop.time(), worker, event))
        if event.kind not in UNTOLD:
            about = f" {world.trace.called(event.task)}" if event.task else ""
            reason = f": {event.reason}" if event.reason else ""
            world.trace.say(worker, f"says {event.kind}{about}{reason}")
        if event.kind == "session_lost" and world.watcher.now.live(event.session):
            world.complain(f"{worker} gives up a session that lives")

    def _mourn(self, process: Process) -> None:
        for execution in self._world.ledger.running():
            if execution.worker == process.name:
                execution.ended, execution.ending = self._world.loop.time(), "crashed"
        self._again(self._chance.uniform(0.1, 2.0))

    def _left(self, incarnation: Incarnation, running: asyncio.Task[Any]) -> None:
        """A worker's `run` has ended: in good order, or it should not have."""
        if self._world.network.over or running.cancelled():
            return
        process, error = incarnation.process, running.exception()
        process.exit()
        # One that is asked to leave before it has reached the store says so.
        if error is not None and not (incarnation.stopped and isinstance(error, StoreUnavailable)):
            self._world.complain(f"{process.name} ended with {error!r}")
        self._world.trace.say(process.name, "leaves")
        self._again(0.1)

    def _again(self, usual: float) -> None:
        away, self._away = self._away or usual, 0.0
        self._world.loop.call_later(away, self.boot, context=OUTSIDE)
