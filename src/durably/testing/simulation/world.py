"""The simulated world: one loop, one store, the network to it, and everyone who watches."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

from durably.client.engine import Engine
from durably.core.ids import Ids
from durably.core.moment import HostClock
from durably.testing.simulation.database import IN_MEMORY, Database, TimedStore, alter
from durably.testing.simulation.ledger import Ledger
from durably.testing.simulation.loop import VirtualLoop, WallClock
from durably.testing.simulation.network import Network, SimulatedStore
from durably.testing.simulation.process import Process
from durably.testing.simulation.rules import Watcher
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.snapshot import Remains, look, remains
from durably.testing.simulation.trace import Trace

Tamper = Callable[[TimedStore], None]
"""Breaks the store before a simulation begins, to see whether that is found."""


class World:
    """What everyone in a simulation shares."""

    def __init__(self, scenario: Scenario, tamper: Tamper | None = None, database: Database = IN_MEMORY) -> None:
        self.scenario = scenario
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._unhandled)
        self.wall = WallClock(self.loop)
        self.database = database
        self.store = database.borrow()
        self.store.clock = HostClock(self.wall, self.loop.time)
        self.altered = False
        """Whether the schema is another one than at the beginning."""
        if tamper is not None:
            tamper(self.store)
        self.trace = Trace(self.loop)
        self.ledger = Ledger()
        self.watcher = Watcher(
            functools.partial(look, self.store, database.prefix), self.trace, self.ledger, self.complain, scenario
        )
        self.network = Network(
            self.loop,
            self.store,
            scenario.weather,
            self.source("network"),
            self.trace,
            self.ledger.struck,
            self.watcher.observe,
            self.complain,
        )
        self.violations: list[str] = []
        self.failed: asyncio.Future[None] = self.loop.create_future()
        """Done as soon as anything is wrong."""
        self.processes: list[Process] = []

    def source(self, what: str) -> random.Random:
        """Randomness for one purpose; it follows from the seed, and nobody else draws from it."""
        return random.Random(f"{what} {self.scenario.seed}")

    def process(self, name: str, *, mortal: bool = False) -> Process:
        """A new process."""
        process = Process(self.loop, HostClock(self.wall, self.loop.time), name, self.trace, mortal=mortal)
        self.processes.append(process)
        return process

    def engine(self, process: Process) -> Engine:
        """The engine as this process has it."""
        store = SimulatedStore(self.network, process)
        return Engine(store, clock=process.clock, ids=Ids(process.clock, self.source(f"ids of {process.name}")))

    def remains(self) -> Remains:
        """What is of interest in the store only in the end."""
        return remains(self.store, self.database.prefix)

    def spoil(self, task: str, column: str) -> None:
        """Write something into a live task's row that nobody can read."""
        table, garbage = f"{self.database.prefix}tasks", self.database.garbage
        alter(self.store, f"UPDATE {table} SET {column} = {garbage} WHERE CAST(id AS TEXT) = '{task}'")
        self.ledger.spoiled.add(task)
        self.strikes("bad row", "someone", f"spoils the {column} of {self.trace.called(task)}")
        self.watcher.refresh()

    def upgrade(self) -> None:
        """Add to the schema what a version to come may add, while everyone is at work."""
        prefix, self.altered = self.database.prefix, True
        alter(
            self.store,
            f"ALTER TABLE {prefix}tasks ADD COLUMN colour TEXT",
            f"ALTER TABLE {prefix}history ADD COLUMN colour TEXT",
            f"CREATE TABLE {prefix}colours (name TEXT PRIMARY KEY)",
        )
        self.strikes("newer schema", "someone", "upgrades the schema")

    def strikes(self, fault: str, who: str, what: str) -> None:
        """A fault strikes."""
        self.ledger.struck[fault] += 1
        self.trace.say(who, what)

    def complain(self, complaint: str) -> None:
        """Something is wrong."""
        self.violations.append(complaint)
        self.trace.say("VIOLATION", complaint)
        if not self.failed.done():
            self.failed.set_result(None)

    def bury(self) -> None:
        """Let everything that is left unwind, unseen: a task that is dropped would complain when it is collected."""
        self.trace.closed = True
        self.network.over = True
        for process in self.processes:
            process.release()
        for _ in range(100):
            left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.database.give_back(self.store, altered=self.altered)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.network.over:
            self.complain(f"{context['message']}: {context.get('exception')!r}")


@contextlib.contextmanager
def repeatable(world: World) -> Iterator[None]:
    """Randomness that nobody injected is the same every time, and what the engine logs becomes part of the story."""
    logger, handler, state = logging.getLogger("durably"), _ToTrace(world.trace), random.getstate()
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    random.seed(world.scenario.seed)
    try:
        yield
    finally:
        random.setstate(state)
        logger.removeHandler(handler)
        logger.propagate = propagate


class _ToTrace(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        self._trace.say("log", f"{record.name}: {record.getMessage()}")
