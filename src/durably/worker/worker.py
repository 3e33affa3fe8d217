"""The worker: claims what there is room for, runs it, reports it, and looks after what others left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from durably.client.engine import Engine
from durably.core.task import Task
from durably.errors import DurablyError
from durably.observe.events import Event
from durably.stores.operations.claim import Claim, claim
from durably.stores.operations.commit import set_progress
from durably.stores.operations.keys import Behind
from durably.stores.operations.settle import Went
from durably.stores.operations.sweep import cancelled
from durably.stores.protocol import Wakeups
from durably.stores.statement import Operation
from durably.worker.chains import Chains
from durably.worker.claims import Claims
from durably.worker.context import Context
from durably.worker.execute import AnyDefinition
from durably.worker.options import WorkerOptions
from durably.worker.relay import Relay
from durably.worker.report import Reporter
from durably.worker.running import Running
from durably.worker.scanners import Expirer, Promoter, Pruner, Reaper, Scanner, supervise
from durably.worker.session import Heartbeat, Session
from durably.worker.tenure import MakeHeartbeat, Tenure

log = logging.getLogger("durably.worker")

LINGER = 0.005
LINGERS = 4
SELDOM = 3
"""Who found no more than so many tasks since it last slept goes to sleep sooner: the next one comes with a notice."""
FEW = 32
"""So many are claimed for all the free slots at once: to do it in two halves would not pay."""
ALONE_CHECK = 1.0
"""How often a worker that drains for a lonely task asks whether someone else has taken it."""
LAST_FLUSH = 5.0
"""Seconds that results get to reach the store at the end, if it does not answer and the grace period is shorter."""


class Surroundings(msgspec.Struct, frozen=True):
    """What a worker gets from outside, so that a simulation can bring its own."""

    chance: random.Random
    heartbeat: MakeHeartbeat
    wakeups: Callable[[], Wakeups]


Claiming = Callable[[str], Operation[Claim]]
"""A claim for the session with this id."""


class Worker:
    """One worker. `run` serves until `stop`; `one_pass` is a single round for tests."""

    def __init__(
        self,
        engine: Engine,
        definitions: Mapping[str, AnyDefinition],
        options: WorkerOptions,
        *,
        surroundings: Surroundings | None = None,
        recycle: bool = False,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._now = engine.clock.monotonic
        self._definitions = definitions
        self._options = options
        self._recycle = recycle
        given = surroundings or Surroundings(random.Random(), Heartbeat, engine.store.wakeups)
        self._chance = given.chance
        self._make_heartbeat = given.heartbeat
        self._make_wakeups = given.wakeups
        self._stopping = asyncio.Event()
        self._claims = Claims(engine.store, options.queues, given.chance, options.ahead)
        self._told_stuck = False
        self._alone_from = 0.0
        self._hungry = False
        self._progressing: set[Context] = set()
        self.recycled = False
        """Whether it stopped because too many of its slots were stuck."""

    def stop(self) -> None:
        """Stop claiming and begin to shut down; safe from signal handlers of the loop."""
        self._stopping.set()
        if self._started:
            self._wakeups.nudge()
            self._running.freed.set()

    @property
    def threaded(self) -> bool:
        """Whether its store works in a thread of this process."""
        return self._store.threaded

    @property
    def session(self) -> str | None:
        """The id of its session while it runs."""
        return self._tenure.session_id if self._started else None

    @property
    def _started(self) -> bool:
        return hasattr(self, "_running")

    async def run(self) -> None:
        """Serve until stopped, then drain for the grace period, give back what is left, and leave."""
        serving = asyncio.create_task(self._serve(), name="durably-worker")
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.stop()
            await serving
            raise

    async def one_pass(self, limit: int = 1000, claiming: Claiming | None = None) -> int:
        """One round: promote what is due, claim once, run it, report it. No task runs twice in it; how many ran.

        With `claiming`, a claim of its own is made instead of the usual one.
        """
        self._prepare()
        reporting = asyncio.create_task(self._reporter.run(), name="durably-reporter")
        try:
            await self._tenure.begin(self._stopping, beating=False)
            for scanner in self._scanners():
                await scanner.scan()
            room = min(limit, self._options.concurrency)
            usual = claim(self._current.id, self._options.queues, room)
            found = await self._store.arun(usual if claiming is None else claiming(self._current.id))
            if not found.tasks and found.alone_waiting:
                found = await self._store.arun(claim(self._current.id, self._options.queues, 1, alone=True))
            self._running.start(found.tasks, found.now, {})
            await self._running.emptied()
            await self._flush_progress()
            return len(found.tasks)
        except asyncio.CancelledError:
            self._running.release()
            await self._running.emptied()
            raise
        finally:
            self._reporter.close()
            await reporting
            self._running.close()
            await self._wakeups.close()
            await self._tenure.end()

    def _prepare(self) -> None:
        self._wakeups = self._make_wakeups()
        chains = Chains()
        self._relay = Relay(
            self._store,
            self._claims,
            self._options.queues,
            self._definitions.keys(),
            lambda: self._current.id,
            self._spare,
            self._go_on,
            self._wakeups.nudge,
            chains,
            self._options.ahead,
        )
        self._reporter = Reporter(
            self._relay.commit,
            self._engine.events,
            self._engine.sealed,
            self._options.concurrency * self._options.ahead,
            lambda: self._running.freed.set(),
            lambda: len(self._running),
        )
        self._running = Running(
            self._engine,
            self._definitions,
            self._reporter,
            self._options.concurrency,
            self._chance,
            chains,
            self._noted,
            lambda: self._current.may_start(self._now()),
            self._may_go_on,
        )
        self._loop = asyncio.get_running_loop()
        self._tenure = Tenure(
            self._engine, self._options, sorted(self._definitions), self._make_heartbeat, self._on_lost
        )

    def _scanners(self) -> list[Scanner]:
        events, scan = self._engine.events, self._options.scan
        return [
            Promoter(self._engine, list(self._options.queues), scan, self._wakeups.nudge),
            Reaper(self._engine, lambda: self._current, self._now, scan),
            Expirer(self._engine, scan),
            Pruner(self._store, events, self._options.prune, self._engine.pruning),
        ]

    @property
    def _current(self) -> Session:
        return self._tenure.session

    async def _serve(self) -> None:
        for prepare in self._engine.arriving:
            await prepare()
        self._prepare()
        await self._tenure.begin(self._stopping)
        self._engine.arrive()
        self._engine.events.emit(Event("worker_started", session=self._current.id))
        background = [
            asyncio.create_task(supervise(scanner, self._stopping), name=f"durably-{scanner.name}")
            for scanner in self._scanners()
        ]
        background.append(asyncio.create_task(self._look_after(), name="durably-look-after"))
        reporting = asyncio.create_task(self._reporter.run(), name="durably-reporter")
        claiming = asyncio.create_task(self._claim_until_stopped(), name="durably-claims")
        try:
            await asyncio.wait({claiming, reporting}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            await claiming
        finally:
            await self._shut_down(background, reporting)

    async def _shut_down(self, background: list[asyncio.Task[None]], reporting: asyncio.Task[None]) -> None:
        """Drain for the grace period, then cancel, give back with refund, and flush."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._running.emptied(), self._options.grace)
        if len(self._running):
            log.warning("%d tasks still run after the grace period and are given back", len(self._running))
            self._running.release()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._running.emptied(), min(self._options.grace, 2.0))
            self._running.let_go()
        await self._flush_progress()
        self._reporter.close()
        await self._flush(reporting)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        self._running.close()
        await self._wakeups.close()
        await self._tenure.end()
        await self._engine.leave()
        self._engine.events.emit(Event("worker_stopped"))

    async def _flush(self, reporting: asyncio.Task[None]) -> None:
        """Let the last reports be committed; a store that stays away must not keep the process from leaving."""
        done, _ = await asyncio.wait({reporting}, timeout=max(self._options.grace, LAST_FLUSH))
        if done:
            await reporting
            return
        log.error(
            "%d results could not be stored; their tasks run again when the lease is over",
            len(self._reporter.unsettled),
        )
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)

    async def _claim_until_stopped(self) -> None:
        """Claim what there is room for; wait when there is none, or nothing to claim."""
        self._hungry = True
        empty = found_since = 0
        lingers = LINGERS
        while not self._stopping.is_set():
            if self._tenure.lost.is_set():
                await self._renew()
            if not await self._settle_doubt() or not await self._room():
                continue
            found = await self._claim(fresh=empty == 1, lightly=1 < empty <= lingers)
            if found is None:
                continue
            if found.tasks:
                empty = 0
                found_since += len(found.tasks)
                self._begin(found.tasks, found.now, found.behind)
                await self._claims.wake_up(self._current)
            if found.alone_waiting and (not len(self._running) or self._now() >= self._alone_from):
                await self._run_alone()
                continue
            if found.tasks:
                continue
            empty += 1
            if empty == 1:
                continue
            lingers = LINGERS if found_since > SELDOM else LINGERS // 2
            if empty <= lingers:
                await self._wakeups.wait(LINGER)
                continue
            found_since = 0
            if not await self._claims.fall_asleep(self._current):
                await self._wakeups.wait(await self._claims.idle_time(found, self._options.poll))

    async def _room(self) -> bool:
        """Whether something may be claimed now; if not, wait until that may have changed."""
        blocked = self._free < 1 or not self._may_claim
        if len(self._running.stuck) >= self._options.stuck_limit:
            self._too_stuck()
        else:
            self._told_stuck = False
        if not blocked:
            return True
        self._running.freed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._running.freed.wait(), self._options.heartbeat / 4)
        return False

    @property
    def _free(self) -> int:
        """Slots that nobody has, and that no key is about to go on in."""
        kept = self._relay.pays or self._options.ahead > 1
        promised = len(self._reporter.freeing) if self._hungry and kept else 0
        return self._options.concurrency - len(self._running) + self._running.lent - promised

    @property
    def _may_claim(self) -> bool:
        return not self._reporter.full and self._may_lease

    @property
    def _may_lease(self) -> bool:
        return len(self._running.stuck) < self._options.stuck_limit and self._current.may_start(self._now())

    def _spare(self) -> int | None:
        """Slots for others, beside those that a commit has freed; None if nothing more is wanted."""
        wanted = self._hungry and self._may_go_on() and self._may_lease
        return max(self._free, 0) if wanted else None

    def _go_on(self, went: Went) -> None:
        """Begin what a commit has leased, unless that came too late."""
        tasks = went.tasks
        mine = [task for task in tasks if task.session == self._current.id and not self._tenure.lost.is_set()]
        if self._stopping.is_set():
            for task in mine:
                self._running.give_back(task)
        elif mine:
            self._begin(mine, went.now, went.behind)

    def _begin(self, tasks: Sequence[Task], now: int, behind: Behind) -> None:
        self._claims.note(tasks)
        self._running.start(tasks, now, behind)

    def _too_stuck(self) -> None:
        if self._told_stuck:
            return
        self._told_stuck = True
        stuck = len(self._running.stuck)
        self._engine.events.emit(Event("worker_stuck", session=self.session, count=stuck))
        if self._recycle:
            log.error("%d slots are stuck: this worker process is recycled", stuck)
            self.recycled = True
            self.stop()
        else:
            log.error("%d slots are stuck: this worker claims nothing until some return", stuck)

    async def _claim(self, *, fresh: bool, alone: bool = False, lightly: bool = False) -> Claim | None:
        """Claim for the free slots, but not for all at once: what is claimed begins while the next is asked for.

        None when it could not be done and should be tried again.
        """
        half = max(self._options.concurrency // 2, FEW)
        room = 1 if alone else min(self._free, half)
        found = await self._claims.claim(self._current, room, fresh=fresh, alone=alone, lightly=lightly)
        if found is None:
            await self._wakeups.wait(self._claims.pause(self._options.poll))
        elif not found.live:
            self._tenure.lost.set()
            return None
        return found

    async def _settle_doubt(self) -> bool:
        """Give back what a claim leased whose answer never came; now and then, look whether there is such."""
        if not self._claims.doubtful(self._current, self._now()):
            return True
        async with self._claims.settled():
            known = self._running.ids | self._reporter.unsettled
            orphans = await self._claims.orphans(self._current, known, self._now())
        if orphans is None:
            await self._wakeups.wait(self._claims.pause(self._options.poll))
            return False
        self._claims.note(orphans)
        for task in orphans:
            self._running.give_back(task)
        return True

    async def _run_alone(self) -> None:
        """A task on its last crash life waits: finish what runs, then give it the process for itself.

        The others had to wait for that: they get at least as much time before it is done again.
        """
        began = self._now()
        self._hungry = False
        try:
            await self._alone()
        finally:
            self._hungry = True
            self._alone_from = self._now() + max(self._now() - began, ALONE_CHECK)

    async def _alone(self) -> None:
        while not (await self._emptied(ALONE_CHECK) and await self._nothing_comes()):
            if not self._may_go_on() or not await self._claims.someone_waits_alone():
                return
        found = await self._claim(fresh=True, alone=True)
        if found is None or not found.tasks:
            await self._wakeups.wait(LINGER * 10)
            return
        self._begin(found.tasks, found.now, {})
        while not await self._emptied(ALONE_CHECK) and self._may_go_on():
            pass

    def _may_go_on(self) -> bool:
        """Whether nothing has interrupted it: nobody told it to stop, and it has its session."""
        return not (self._stopping.is_set() or self._tenure.lost.is_set())

    async def _emptied(self, patience: float) -> bool:
        """Whether nothing is in flight, but for what is stuck; waits for that a little."""
        if len(self._running) > len(self._running.stuck) and self._may_go_on():
            self._running.freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._running.freed.wait(), patience)
        return len(self._running) <= len(self._running.stuck)

    async def _nothing_comes(self) -> bool:
        """Whether no commit that was on its way has brought the next tasks of keys."""
        async with self._claims.settled():
            return len(self._running) <= len(self._running.stuck)

    async def _look_after(self) -> None:
        """The worker's own small duties: the loop's sign of life, cancellations, progress."""
        while True:
            self._tenure.pulse.touch(self._now())
            await self._flush_progress()
            if len(self._running):
                with contextlib.suppress(DurablyError):
                    self._running.cancel(await self._store.arun(cancelled()))
            await self._claims.forget_settled(self._current, lambda: self._running.tokens | self._reporter.tokens)
            await self._tenure.tell_stuck(len(self._running.stuck))
            await asyncio.sleep(min(0.25, self._options.lease / 16))

    async def _renew(self) -> None:
        """The session is gone: drop what runs, which belongs to others now, and begin a new one."""
        log.warning("session %s was lost; what it ran is dropped, a new session begins", self._current.id)
        self._engine.events.emit(Event("session_lost", session=self._current.id, count=len(self._running)))
        self._running.abandon()
        self._claims.forget()
        await self._tenure.renew(self._stopping)

    def _on_lost(self) -> None:
        self._running.freed.set()
        self._wakeups.nudge()

    def _noted(self, context: Context) -> None:
        self._loop.call_soon_threadsafe(self._progressing.add, context)

    async def _flush_progress(self) -> None:
        while self._progressing:
            context = self._progressing.pop()
            progress, context.pending_progress = context.pending_progress, None
            if progress is not None:
                with contextlib.suppress(DurablyError):
                    await self._store.arun(set_progress(context.id, context.token, progress, None))
