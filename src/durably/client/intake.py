"""Coalescing: concurrent `enqueue` calls of one process share one statement, and nobody waits for a timer.

Whoever arrives while nothing is being written writes at once; those who arrive meanwhile are written together next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from durably.client.perloop import PerLoop
from durably.client.persist import apersist, persist
from durably.core.task import Draft
from durably.errors import Conflict, DurablyError, StoreRejected
from durably.stores.operations.accept import Accepted, accept
from durably.stores.protocol import Store

BATCH = 1000

Answers = list[Accepted | Conflict]
Told = Callable[[Sequence[Draft], Answers], Any]
"""Whom to tell what was accepted."""


class _Waiting:
    __slots__ = ("answers", "drafts", "error", "lead", "signal")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.answers: Answers = []
        self.error: BaseException | None = None
        self.lead = False
        self.signal = threading.Event()


class Intake:
    """The way of new tasks into the store."""

    def __init__(self, store: Store, told: Told) -> None:
        self._store = store
        self._told = told
        self._lock = threading.Lock()
        self.busy = False
        """Whether somebody writes at the moment, for itself or for all who wait."""
        self._queue: list[_Waiting] = []
        self._loops = PerLoop(lambda loop: _LoopIntake(store, told, loop))

    def submit(self, drafts: Sequence[Draft]) -> Answers:
        """Accept the drafts; several threads at once share a transaction."""
        answers = self._submitted(drafts)
        self._told(drafts, answers)
        return answers

    def asubmit(self, drafts: Sequence[Draft]) -> asyncio.Future[Answers]:
        """Accept the drafts; several coroutines at once share a transaction."""
        return self._loops.of(asyncio.get_running_loop()).submit(drafts)

    def _submitted(self, drafts: Sequence[Draft]) -> Answers:
        with self._lock:
            free, self.busy = not self.busy, True
            if not free:
                mine = _Waiting(drafts)
                self._queue.append(mine)
        if free:
            try:
                return persist(self._store, lambda again: accept(drafts, again))
            finally:
                self._hand_over()
        mine.signal.wait()
        if mine.lead:
            self._lead()
        if mine.error is not None:
            raise mine.error
        return mine.answers

    def _lead(self) -> None:
        """Write one batch, then hand the lead to the first who came meanwhile."""
        with self._lock:
            count = _together(len(waiting.drafts) for waiting in self._queue)
            batch, self._queue = self._queue[:count], self._queue[count:]
        _write(self._store, batch)
        self._hand_over()
        for waiting in batch:
            waiting.signal.set()

    def _hand_over(self) -> None:
        with self._lock:
            heir = self._queue[0] if self._queue else None
            if heir is None:
                self.busy = False
            else:
                heir.lead = True
        if heir is not None:
            heir.signal.set()


def _together(sizes: Iterable[int]) -> int:
    """How many of those who wait are written together."""
    count = drafts = 0
    for size in sizes:
        count += 1
        drafts += size
        if drafts >= BATCH:
            break
    return count


def _write(store: Store, batch: Sequence[_Waiting]) -> None:
    drafts = [draft for waiting in batch for draft in waiting.drafts]
    try:
        answers = persist(store, lambda again: accept(drafts, again))
    except StoreRejected as error:
        if len(batch) == 1:
            batch[0].error = error
        else:
            for waiting in batch:
                _write(store, [waiting])
        return
    except BaseException as error:
        for waiting in batch:
            waiting.error = error
        return
    place = 0
    for waiting in batch:
        waiting.answers = answers[place : place + len(waiting.drafts)]
        place += len(waiting.drafts)


_Awaited = tuple[Sequence[Draft], "asyncio.Future[Answers]"]


class _LoopIntake:
    """The same for one event loop, where a flag does what a lock does between threads."""

    def __init__(self, store: Store, told: Told, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._told = told
        self._create_future = loop.create_future
        self._create_task = loop.create_task
        self._queue: list[_Awaited] = []
        self._writer: asyncio.Task[None] | None = None

    def submit(self, drafts: Sequence[Draft]) -> asyncio.Future[Answers]:
        # The writer goes on if this caller is cancelled: what it has begun to accept is accepted.
        mine: _Awaited = (drafts, self._create_future())
        self._queue.append(mine)
        if self._writer is None:
            self._writer = self._create_task(self._write_all(), name="durably-intake")
        return mine[1]

    async def _write_all(self) -> None:
        try:
            while self._queue:
                count = _together([len(drafts) for drafts, _ in self._queue])
                batch, self._queue = self._queue[:count], self._queue[count:]
                await self._write(batch)
        finally:
            self._writer = None
            for _, future in self._queue:
                if not future.done():
                    future.set_exception(DurablyError("the event loop was stopped before the task could be accepted"))
            self._queue = []

    async def _write(self, batch: list[_Awaited]) -> None:
        drafts = [draft for some, _ in batch for draft in some]
        try:
            answers = await apersist(self._store, lambda again: accept(drafts, again))
        except StoreRejected as error:
            if len(batch) > 1:
                for one in batch:
                    await self._write([one])
            else:
                _fail(batch, error)
            return
        except Exception as error:
            _fail(batch, error)
            return
        self._told(drafts, answers)
        place = 0
        for some, future in batch:
            if not future.done():
                future.set_result(answers[place : place + len(some)])
            place += len(some)


def _fail(batch: list[_Awaited], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
