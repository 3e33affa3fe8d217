"""Runs a scenario: lets everything happen that it says, then waits for everything to end, and reckons up."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from durably.core.explain import explain
from durably.core.moment import SECOND
from durably.stores.operations.control import set_limit
from durably.stores.operations.read import evidence
from durably.testing.simulation.arrivals import Arrivals
from durably.testing.simulation.database import IN_MEMORY, Database
from durably.testing.simulation.envelopes import Envelopes
from durably.testing.simulation.loop import Deadlock
from durably.testing.simulation.office import Outside
from durably.testing.simulation.people import People
from durably.testing.simulation.reach import Reach
from durably.testing.simulation.rest import Rest
from durably.testing.simulation.scenario import HORIZON, Jam, Jump, Outage, Scenario, Spoiling
from durably.testing.simulation.snapshot import Snapshot
from durably.testing.simulation.stage import Stage
from durably.testing.simulation.workers import Post
from durably.testing.simulation.world import Tamper, World, repeatable

PATIENCE = 120.0
"""Virtual seconds within which everything must end once nothing is disturbed any more."""
AT_ONCE = 150.0
"""Seconds more, if somebody announced something and could not say that it gives up what it tried at once."""
LONG = 4
"""Seconds for which impatient people do not wait."""
VERY_LONG = 60
"""Seconds for which nobody waits, if it is not for a peer."""
BUSY = 60.0
"""Operations per second that a worker with nothing to do may send at most."""


class Outcome(msgspec.Struct, frozen=True):
    """How a simulation went."""

    scenario: Scenario
    violations: list[str]
    trace: list[str]
    operations: int
    seconds: float
    """In virtual time."""
    happened: Counter[str]
    """How often which fault struck, and what workers said."""

    @property
    def seed(self) -> int:
        return self.scenario.seed


class Director:
    """One simulation, from the first boot to the reckoning."""

    def __init__(self, scenario: Scenario, tamper: Tamper | None = None, database: Database = IN_MEMORY) -> None:
        self.world = World(scenario, tamper, database)
        self._scenario = scenario
        self._watcher = self.world.watcher
        stage = Stage(self.world)
        self._outside = Outside.of(self.world, stage)
        self._people = People(self.world, stage, self._outside)
        self._posts = [Post(self.world, stage, self._outside, index, crew) for index, crew in enumerate(scenario.crews)]

    def run(self) -> Outcome:
        """The whole simulation."""
        world = self.world
        with repeatable(world):
            try:
                world.loop.run_until_complete(self._until_failed())
            except Deadlock as deadlock:
                world.complain(str(deadlock))
            seconds = round(world.loop.time(), 3)
            world.bury()
        happened = world.ledger.struck + Counter(f"says {told.event.kind}" for told in world.ledger.told)
        operations = world.network.operations
        return Outcome(self._scenario, world.violations, world.trace.lines, operations, seconds, happened)

    async def _until_failed(self) -> None:
        performing = asyncio.create_task(self._perform())
        await asyncio.wait([performing, self.world.failed], return_when=asyncio.FIRST_COMPLETED)
        if performing.done():
            performing.result()

    async def _perform(self) -> None:
        await self._disturb()
        self._trace("nothing more is disturbed")
        for post in self._posts:
            post.enlighten()
        if not await self._come_to_rest(held_back):
            return
        if self._watcher.now.tasks:
            await self._idle()
        await self._people.open_queues()
        if any(play.note for play in self._scenario.plays):
            await self._people.reread()
        if not await self._come_to_rest(lambda _: set()):
            return
        await self._tidied()
        await asyncio.gather(*(post.close() for post in self._posts))
        now, remains = self._watcher.refresh(), self.world.remains()
        scenario, ledger, trace = self._scenario, self.world.ledger, self.world.trace
        complaints = [
            *Rest(scenario, ledger, self._watcher, trace, now, remains).complaints(),
            *Arrivals(scenario, ledger, self._watcher.replayed, trace, now, remains).complaints(),
        ]
        if self._people.writer is not None:
            complaints += Envelopes(scenario, ledger, await self._people.writer.report()).complaints()
        if self._people.announcer is not None:
            complaints += Reach(scenario, ledger, await self._people.announcer.report()).complaints()
        for complaint in complaints:
            self.world.complain(complaint)

    def _trace(self, what: str) -> None:
        self.world.trace.say("director", what)

    async def _disturb(self) -> None:
        """Everything that the scenario says, until its end; then the weather is calm and everyone goes on."""
        scenario, people = self._scenario, self._people
        for limit in scenario.limits:
            self.world.store.run(set_limit(limit.gate, limit.concurrency, limit.rate, limit.burst))
        if self._outside is not None and people.office is not None:
            self._outside.found(people.office)
        self._watcher.refresh()
        for post in self._posts:
            post.boot()
        agenda: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = [
            *((at, functools.partial(people.enqueue, play)) for play in scenario.plays for at in play.at),
            *((cancel.at, functools.partial(people.cancel, cancel)) for cancel in scenario.cancels),
            *((order.at, functools.partial(people.order, order)) for order in scenario.orders),
            *((blow.at, functools.partial(self._posts[blow.worker].strike, blow)) for blow in scenario.blows),
            *((outage.at, functools.partial(self._outage, outage)) for outage in scenario.outages),
            *((jam.at, functools.partial(self._jam, jam)) for jam in scenario.jams),
            *((jump.at, functools.partial(self._jump, jump)) for jump in scenario.jumps),
            *((spoiling.at, functools.partial(self._spoil, spoiling)) for spoiling in scenario.spoilings),
            *((at, self._upgrade) for at in scenario.upgrades),
        ]
        if people.post is not None:
            agenda += [(letter.at, functools.partial(people.post.publish, letter)) for letter in scenario.letters]
            agenda += [(errand.at, functools.partial(people.post.run, errand)) for errand in scenario.errands]
        if people.writer is not None:
            agenda += [(at, functools.partial(people.writer.send, one)) for one in scenario.missives for at in one.at]
            agenda += [(chore.at, functools.partial(people.writer.run, chore)) for chore in scenario.chores]
        if people.announcer is not None:
            agenda += [
                (at, functools.partial(people.announcer.announce, one)) for one in scenario.notices for at in one.at
            ]
            agenda += [(doing.at, functools.partial(people.announcer.run, doing)) for doing in scenario.doings]
        doing = [asyncio.create_task(_later(at, what)) for at, what in agenda]
        await asyncio.sleep(HORIZON)
        self.world.network.calm = True
        await asyncio.gather(*doing)

    async def _outage(self, outage: Outage) -> None:
        self.world.strikes("outage", "network", "nobody reaches the store")
        self.world.network.down += 1
        await asyncio.sleep(outage.lasting)
        self.world.network.come_back(outage.stagger)
        self.world.trace.say("network", "the store is back")

    async def _jam(self, jam: Jam) -> None:
        self.world.strikes("write lock", "someone", "holds the store's write lock")
        self.world.network.jammed += 1
        await asyncio.sleep(jam.lasting)
        self.world.network.jammed -= 1
        self.world.trace.say("someone", "lets go of the store's write lock")

    async def _jump(self, jump: Jump) -> None:
        way = "forward" if jump.by > 0 else "back"
        self.world.strikes(f"clock set {way}", "someone", f"sets the clock {way} by {abs(jump.by):g} s")
        self.world.wall.shift += jump.by

    async def _spoil(self, spoiling: Spoiling) -> None:
        for task in [row.id for row in self._watcher.now.tasks.values()]:
            if self._watcher.numbers[task] == spoiling.number:
                self.world.spoil(task, spoiling.column)

    async def _upgrade(self) -> None:
        self.world.upgrade()

    async def _come_to_rest(self, excused: Callable[[Snapshot], set[str]]) -> bool:
        """Wait until nothing is live but what is excused; keys that wait for a person get one."""
        until = self.world.loop.time() + PATIENCE + (AT_ONCE if self._scenario.sorts else 0.0)
        while waiting := self._watcher.now.tasks.keys() - excused(self._watcher.now):
            if self.world.loop.time() > until:
                for task in sorted(waiting, key=self.world.trace.called):
                    facts = self.world.store.run(evidence(task))
                    why = explain(facts).sentence if facts is not None else "It is gone."
                    self.world.complain(f"{self.world.trace.called(task)} does not come to an end. {why}")
                return False
            if any(key.state == "paused" for key in self._watcher.now.keys.values()):
                await self._people.unpause_keys()
            if self._people.post is not None:
                await self._people.post.mend()
            for task in sorted(waiting & self._put_off()):
                await self._people.give_up(task)
            await asyncio.sleep(0.5)
        return True

    def _put_off(self) -> set[str]:
        """The tasks that will not be tried for so long that people give them up."""
        if self._scenario.patient and not self._scenario.sorts:
            return set()
        late = self.world.store.clock.now() + (VERY_LONG if self._scenario.patient else LONG) * SECOND
        rows = self._watcher.now.tasks.values()
        return {row.id for row in rows if row.state in ("delayed", "blocked") and row.ready_at > late}

    async def _idle(self) -> None:
        """Nothing can be done: the workers must not wear out the store."""
        before = self.world.network.operations
        await asyncio.sleep(3.0)
        rate = (self.world.network.operations - before) / 3.0 / len(self._posts)
        if rate > BUSY:
            self.world.complain(f"each worker sends {rate:.0f} operations a second although nothing can be done")

    async def _tidied(self) -> None:
        """Give the workers the time to sweep up after the last task."""
        for _ in range(int(2 * self._scenario.lease) + 5):
            now = self._watcher.refresh()
            left = self._watcher.left_behind(now)
            if not (left or now.turns or now.keys or now.lines or self.world.remains().permits or now.cancels):
                break
            await asyncio.sleep(1.0)


def held_back(now: Snapshot) -> set[str]:
    """The tasks that need not end while some queues are paused or draining, and those behind them in their keys."""
    held = set()
    for row in now.tasks.values():
        state, cutoff = now.queues.get(row.queue, ("active", None))
        if state == "paused" or (cutoff is not None and row.created_at > cutoff):
            held.add(row.id)
    keys = {now.tasks[task].turn for task in held} - {None}
    return held | {row.id for row in now.tasks.values() if row.turn in keys}


async def _later(at: float, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(at)
    await what()
