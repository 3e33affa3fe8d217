"""Reporting: decisions are committed in batches, as soon as the commit before has returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import Literal

import msgspec

from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.lifecycle import complete_anew, fail
from durably.core.moment import SECOND
from durably.core.retry import Retry
from durably.core.task import Failure, State, Task
from durably.errors import StoreRejected, StoreUnavailable
from durably.observe.events import Event, Events, Kind

log = logging.getLogger("durably.report")

BATCH = 2000
FEW = 8
"""A commit waits a moment for more if fewer than one in so many of those that run have ended."""
MOMENT = 0.002
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

Decide = Callable[[Task], Change]
Lane = Literal["all", "keyed"]
Commit = Callable[[Sequence[Change]], Awaitable[list[Verdict]]]


class Report(msgspec.Struct, frozen=True, gc=False):
    """What became of an attempt: the task as it was claimed, how to decide, and what to call it."""

    task: Task
    decide: Decide | Change
    """How to decide; of a success it is known at once what becomes of the task as it was claimed."""
    kind: Kind
    duration: float = 0.0
    error: str | None = None
    details: bytes | None = None
    """What the attempt leaves behind."""


class Reporter:
    """Commits reports in order of arrival; when no commit is in flight, everything that waits goes into the next.

    A commit of keyed tasks takes several statements. Those that end meanwhile are committed beside it.
    """

    def __init__(
        self,
        commit: Commit,
        events: Events,
        seal: Callable[[Change], Change],
        limit: int,
        settled: Callable[[], None],
        running: Callable[[], int],
    ) -> None:
        self._commit = commit
        self._events = events
        self._seal = seal
        self._limit = limit
        self._settled = settled
        self._running = running
        self._waiting: list[Report] = []
        self._settling: dict[Lane, list[Report]] = {}
        self._taken: dict[Lane, set[str | None]] = {"all": set(), "keyed": set()}
        self._arrived: dict[Lane, asyncio.Event] = {"all": asyncio.Event(), "keyed": asyncio.Event()}
        self._anything, self._anything_keyed = self._arrived.values()
        self._closing = False
        self._stranded: set[int] = set()
        self.freeing: set[str] = set()
        """Tasks whose success is not committed yet, and lets their keys or lines go on."""

    @property
    def full(self) -> bool:
        """Whether so much is unreported that nothing more should be claimed."""
        return len(self._waiting) + sum(map(len, self._settling.values())) >= self._limit

    def add(self, report: Report, *, last: bool = True) -> None:
        """Hand over a report; it is committed as soon as possible. Of a key's tasks, the last lets others follow."""
        self._waiting.append(report)
        self._anything.set()
        task = report.task
        if task.key is None and task.gate is None:
            return
        if task.key is not None:
            self._anything_keyed.set()
        if last and report.kind == "completed" and (task.key is not None or not task.limited):
            self.freeing.add(task.id)

    @property
    def unsettled(self) -> set[str]:
        """The tasks about which a report waits to be committed."""
        return {report.task.id for report in self._open()}

    @property
    def tokens(self) -> set[int]:
        """The tokens of those tasks, and of those that stay leased since nothing about them can be stored."""
        return self._stranded.union([report.task.token for report in self._open()])

    def _open(self) -> Iterator[Report]:
        return chain(*self._settling.values(), self._waiting)

    async def run(self) -> None:
        """Commit until closed and empty."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._run("all"), name="durably-reporter-all")
            lanes.create_task(self._run("keyed"), name="durably-reporter-keyed")

    async def _run(self, lane: Lane) -> None:
        while True:
            await self._let_gather()
            while not (batch := self._take(lane)):
                if self._closing:
                    return
                self._arrived[lane].clear()
                await self._arrived[lane].wait()
                await self._let_gather()
            self._settling[lane] = batch
            await self._settle(batch)
            self._settling[lane] = []
            self._taken[lane].clear()
            if self.freeing:
                self.freeing.difference_update([report.task.id for report in batch])
            self._settled()

    async def _let_gather(self) -> None:
        """While many more run than have ended, one commit for several saves more than the moment costs."""
        if 0 < len(self._waiting) * FEW < self._running() and not self._closing:
            await asyncio.sleep(MOMENT)

    def _take(self, lane: Lane) -> list[Report]:
        """What is committed next: everything that waits, or while that is being done, what has a key.

        Two commits about one key would only wait for each other. Keys of one name in other queues wait too.
        """
        barred = self._taken["keyed"] if lane == "all" else {None, *self._taken["all"]}
        waiting = self._waiting
        passed: list[Report] = []
        for place in range(0, len(waiting), BATCH):
            some = waiting[place : place + BATCH]
            keys = {report.task.key for report in some}
            if not keys.isdisjoint(barred):
                passed += [report for report in some if report.task.key in barred]
                some = [report for report in some if report.task.key not in barred]
            if some:
                self._waiting = passed + waiting[place + BATCH :]
                self._taken[lane] = keys - barred - {None}
                return some
        return []

    def close(self) -> None:
        """Let `run` return once everything is settled."""
        self._closing = True
        for arrived in self._arrived.values():
            arrived.set()

    async def _settle(self, batch: list[Report], *, refused: bool = False) -> None:
        """Commit a batch. One bad row splits it; a store that is away is waited for."""
        pending, changes = batch, self._all_decided(batch)
        pause = FIRST_PAUSE
        while pending:
            try:
                verdicts = await self._commit(changes)
            except StoreUnavailable as error:
                log.warning("%d results wait for the store: %s", len(pending), error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            except StoreRejected as error:
                if refused:
                    log.error("nothing about task %s can be stored; it stays leased: %s", batch[0].task.id, error)
                    self._stranded.add(batch[0].task.token)
                    return
                if len(pending) == 1:
                    await self._settle([_refused(pending[0], error)], refused=True)
                    return
                middle = len(pending) // 2
                await self._settle(pending[:middle])
                await self._settle(pending[middle:])
                return
            pending, changes = self._judge(pending, verdicts)

    def _judge(self, reports: list[Report], verdicts: list[Verdict]) -> tuple[list[Report], list[Change]]:
        """Tell of what was committed and of what came too late; what must be decided again is answered."""
        again: list[Report] = []
        changes: list[Change] = []
        applied = [verdict.change for verdict in verdicts if isinstance(verdict, Applied)]
        if len(applied) == len(reports):
            if self._events.observed:
                self._tell_all(reports, applied)
            return again, changes
        for report, verdict in zip(reports, verdicts, strict=True):
            if isinstance(verdict, Applied):
                self._tell(report, verdict.change)
                continue
            current = verdict.current
            ours = current is not None and current.token == report.task.token
            if ours and current is not None and current.state == State.LEASED:
                again.append(report)
                changes.append(self._decided(report, current))
            elif current is not None and landed(verdict.change, current):
                self._tell(report, verdict.change)
            else:
                self._fence(report, verdict)
        return again, changes

    def _all_decided(self, reports: list[Report]) -> list[Change]:
        """What becomes of each task as it was claimed; most were done, and nothing follows."""
        return [
            one if type(one := report.decide) is Change and not one.spawned else self._decided(report, report.task)
            for report in reports
        ]

    def _decided(self, report: Report, task: Task) -> Change:
        """The decision about the task as it is now; one that cannot be made is a failure of this task alone."""
        try:
            decide = report.decide
            change = complete_anew(decide, task) if isinstance(decide, Change) else decide(task)
            if report.details is not None and change.state is not State.DONE:
                change = msgspec.structs.replace(change, details=report.details)
            return self._seal(change)
        except Exception as error:
            log.exception("the outcome of task %s could not be decided", task.id)
            # Without its options, which may be what cannot be used.
            bare = msgspec.structs.replace(task, options=None)
            return fail(bare, Failure.of(error, permanent=True), Retry.never(), 0.0)

    def _tell_all(self, reports: Sequence[Report], changes: Sequence[Change]) -> None:
        emit, done = self._events.emit, State.DONE
        for report, change in zip(reports, changes, strict=True):
            if change.state is done:
                task = change.task
                emit(Event(report.kind, task.id, task.name, task.queue, task.attempt, task.session, report.duration))
            else:
                self._tell(report, change)

    def _tell(self, report: Report, change: Change) -> None:
        task, kind = change.task, report.kind
        facts = (task.id, task.name, task.queue, task.attempt, task.session, report.duration, change.due_in / SECOND)
        self._events.emit(Event(kind, *facts, change.reason, report.error))
        after = aftermath(change, kind)
        if after is not None:
            self._events.emit(Event(after, *facts, change.reason, report.error))

    def _fence(self, report: Report, verdict: Stale) -> None:
        task = report.task
        log.warning("the result of task %s came too late: its lease was lost, and nothing was written", task.id)
        reason = (
            "unknown" if verdict.current is None else f"{verdict.current.state} under token {verdict.current.token}"
        )
        self._events.emit(Event("fenced", task.id, task.name, task.queue, task.attempt, task.session, reason=reason))


def landed(change: Change, current: Task) -> bool:
    """Whether the task is what our change made of it, and only the answer was lost.

    Its token alone does not say so: a lapse leaves it as it was, but counts one crash more than we decided on. Nor does
    its version: of a key whose tasks run ahead only the head is charged for a lapse, and the others stay as they were.
    """
    same = current.state == change.state and current.crashes == change.crashes
    return same and current.token == change.task.token


def aftermath(change: Change, kind: Kind) -> Kind | None:
    """The event that follows: whatever happened, an end is announced as one, and so is a key that pauses."""
    if change.pause:
        return "key_paused"
    if change.state == State.DEAD:
        return "dead"
    return "cancelled" if change.state == State.CANCELLED and kind != "cancelled" else None


def _refused(report: Report, error: StoreRejected) -> Report:
    """The store would not take this one row: the attempt counts as failed for good, and says so."""
    failure = Failure.of(error, permanent=True)
    log.error("the store refused the outcome of task %s: %s", report.task.id, error)
    return Report(report.task, lambda task: fail(task, failure, Retry.never(), 0.0), "failed", error=failure.message)
