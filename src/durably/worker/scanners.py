"""Background work: one shape for all of it, supervised, with a memory for rows that keep failing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from durably.client.engine import Engine
from durably.core.change import Applied, Change
from durably.core.lifecycle import expire, lapse
from durably.core.moment import SECOND
from durably.core.task import Task
from durably.errors import StoreUnavailable
from durably.observe.events import Event, Events, Kind
from durably.stores.operations.claim import next_due
from durably.stores.operations.commit import commit
from durably.stores.operations.deliver import FIRST, prune_messages
from durably.stores.operations.notify import prune_notifications
from durably.stores.operations.sweep import bury, due, expired, lapsed, mark_dead, promote, prune
from durably.stores.protocol import Store
from durably.stores.statement import Operation
from durably.worker.report import aftermath
from durably.worker.session import Session

log = logging.getLogger("durably.scanners")

BATCH = 500
STRIKES = 3
ROUNDS = 10


class Failures:
    """Rows that failed three times in a row are left out for ten rounds, so that they never fill a batch."""

    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._until: dict[str, int] = {}
        self._round = 0

    def begin(self) -> list[str]:
        """Begin a round; the rows to skip in it."""
        self._round += 1
        for row in [row for row, until in self._until.items() if until <= self._round]:
            del self._until[row]
            self._strikes[row] = STRIKES - 1
        return list(self._until)

    def struck(self, row: str, error: Exception) -> None:
        """The row failed."""
        self._strikes[row] = self._strikes.get(row, 0) + 1
        if self._strikes[row] >= STRIKES:
            self._until[row] = self._round + ROUNDS
            log.error("%s failed %d times and is skipped for %d rounds: %s", row, STRIKES, ROUNDS, error)

    def passed(self, row: str) -> None:
        """The row did not fail: its strikes are forgotten."""
        self._strikes.pop(row, None)


class Scanner(Protocol):
    """Something to look after again and again."""

    name: str

    async def scan(self) -> float:
        """One round; the seconds until the next one."""
        ...


async def supervise(scanner: Scanner, stopping: asyncio.Event) -> None:
    """Run rounds until the worker stops; whatever a round raises is logged, and the next one comes."""
    pause = 0.0
    while not stopping.is_set():
        if pause > 0:
            try:
                await asyncio.wait_for(stopping.wait(), pause * random.uniform(0.9, 1.0))
                return
            except TimeoutError:
                pass
        try:
            pause = max(await scanner.scan(), 0.005)
        except StoreUnavailable as error:
            log.warning("%s: %s", scanner.name, error)
            pause = 1.0
        except Exception:
            log.exception("%s failed; the next round comes", scanner.name)
            pause = 1.0


async def one_by_one(rows: list[str], failures: Failures, whole: Callable[[list[str]], Awaitable[int]]) -> int:
    """Do the batch at once; if it fails, row by row, so that one bad row stops nobody else."""
    if not rows:
        return 0
    try:
        return await whole(rows)
    except StoreUnavailable:
        raise
    except Exception:
        done = 0
        for row in rows:
            try:
                done += await whole([row])
                failures.passed(row)
            except StoreUnavailable:
                raise
            except Exception as error:
                failures.struck(row, error)
        return done


class Promoter:
    """Moves what fell due to where it can be claimed, and knows when the next will."""

    name = "promoter"

    def __init__(self, engine: Engine, queues: list[str], interval: float, woken: Callable[[], None]) -> None:
        self._store = engine.store
        self._events = engine.events
        self._queues = queues
        self._interval = interval
        self._woken = woken
        self._failures = Failures()

    async def scan(self) -> float:
        ids = await self._store.arun(due(BATCH, self._failures.begin()))
        promoted = await one_by_one(ids, self._failures, self._promote)
        if promoted:
            self._events.emit(Event("promoted", count=promoted))
            self._woken()
        if len(ids) == BATCH:
            return 0.0
        soon = await self._store.arun(next_due(self._queues))
        if soon.delayed is None:
            return self._interval
        return min(max((soon.delayed - soon.now) / SECOND, 0.02), self._interval)

    async def _promote(self, ids: list[str]) -> int:
        return len(await self._store.arun(promote(ids)))


class Changer:
    """Commits decisions about rows, one by one where a batch fails, and tells what happened."""

    def __init__(self, engine: Engine, decide: Callable[[Task], Change]) -> None:
        self._store = engine.store
        self._events = engine.events
        self._decide: Callable[[Task], Change] = lambda task: engine.sealed(decide(task))
        self.failures = Failures()

    async def apply(self, tasks: list[Task], kind: Kind) -> int:
        known = {task.id: task for task in tasks}

        async def whole(ids: list[str]) -> int:
            verdicts = await self._store.arun(commit([self._decide(known[task_id]) for task_id in ids]))
            applied = [verdict.change for verdict in verdicts if isinstance(verdict, Applied)]
            if self._events.observed:
                for change in applied:
                    self._tell(change, kind)
            return len(applied)

        return await one_by_one(list(known), self.failures, whole)

    def _tell(self, change: Change, kind: Kind) -> None:
        task = change.task
        facts = (task.id, task.name, task.queue, task.attempt, task.session)
        self._events.emit(Event(kind, *facts, delay=change.due_in / SECOND, reason=change.reason))
        after = aftermath(change, kind)
        if after is not None:
            self._events.emit(Event(after, *facts, reason=change.reason))


class Reaper:
    """Declares sessions dead whose lease ran out, and takes back what they held."""

    name = "reaper"

    def __init__(
        self, engine: Engine, session: Callable[[], Session], now: Callable[[], float], interval: float
    ) -> None:
        self._store = engine.store
        self._events = engine.events
        self._session = session
        self._now = now
        self._interval = interval
        self._changer = Changer(engine, lapse)

    async def scan(self) -> float:
        if self._session().may_judge(self._now()):
            for dead in await self._store.arun(mark_dead()):
                self._events.emit(Event("session_dead", session=dead))
        tasks = await self._store.arun(lapsed(BATCH, self._changer.failures.begin()))
        if tasks:
            await self._changer.apply(tasks, "crashed")
            return 0.0 if len(tasks) == BATCH else self._interval
        await self._store.arun(bury())
        return self._interval


class Expirer:
    """Ends what waits and whose time ran out."""

    name = "expirer"

    def __init__(self, engine: Engine, interval: float) -> None:
        self._store = engine.store
        self._interval = interval
        self._changer = Changer(engine, expire)

    async def scan(self) -> float:
        tasks = await self._store.arun(expired(BATCH, self._changer.failures.begin()))
        await self._changer.apply(tasks, "expired")
        return 0.0 if len(tasks) == BATCH else self._interval


class Pruner:
    """Removes what has outlived its retention, a bounded batch at a time."""

    name = "pruner"

    def __init__(
        self, store: Store, events: Events, interval: float, others: Sequence[Callable[[int], Operation[int]]] = ()
    ) -> None:
        self._store = store
        self._others = others
        self._events = events
        self._interval = interval
        self._after = self._after_told = FIRST

    async def scan(self) -> float:
        gone = await self._store.arun(prune(BATCH))
        messages, self._after = await self._store.arun(prune_messages(self._after, BATCH))
        told, self._after_told = await self._store.arun(prune_notifications(self._after_told, BATCH))
        others = [await self._store.arun(prune_others(BATCH)) for prune_others in self._others]
        if total := gone + messages + told + sum(others):
            self._events.emit(Event("pruned", count=total))
        # Of what was to go, some may have been replayed or purged meanwhile.
        more = max([gone, *others]) >= BATCH // 2 or {self._after, self._after_told} != {FIRST}
        return 0.05 if more else self._interval
