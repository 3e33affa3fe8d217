"""Coalescing: concurrent `enqueue` calls of one process share one statement, and nobody waits for a timer.

Whoever arrives while nothing is being written writes at once; those who arrive meanwhile are written together next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TypeVar

from durably.client.perloop import PerLoop
from durably.client.persist import apersist, persist
from durably.core.task import Draft
from durably.errors import Conflict, DurablyError, StoreRejected
from durably.stores.operations.accept import Accepted, accept
from durably.stores.protocol import Store

BATCH = 1000

Answers = list[Accepted | Conflict]
W = TypeVar("W", bound="_Waiting")


class _Waiting:
    __slots__ = ("answers", "drafts", "error")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.answers: Answers = []
        self.error: BaseException | None = None


class _WaitingThread(_Waiting):
    __slots__ = ("lead", "signal")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        super().__init__(drafts)
        self.lead = False
        self.signal = threading.Event()


class Intake:
    """The way of new tasks into the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._busy = False
        self._queue: list[_WaitingThread] = []
        self._loops = PerLoop(lambda loop: _LoopIntake(store, loop))

    def submit(self, drafts: Sequence[Draft]) -> Answers:
        """Accept the drafts; several threads at once share a transaction."""
        with self._lock:
            free, self._busy = not self._busy, True
            if not free:
                mine = _WaitingThread(drafts)
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

    async def asubmit(self, drafts: Sequence[Draft]) -> Answers:
        """Accept the drafts; several coroutines at once share a transaction."""
        return await self._loops.of(asyncio.get_running_loop()).submit(drafts)

    def _lead(self) -> None:
        """Write one batch, then hand the lead to the first who came meanwhile."""
        with self._lock:
            batch, self._queue = _split(self._queue)
        _write(self._store, batch)
        self._hand_over()
        for waiting in batch:
            waiting.signal.set()

    def _hand_over(self) -> None:
        with self._lock:
            heir = self._queue[0] if self._queue else None
            if heir is None:
                self._busy = False
            else:
                heir.lead = True
        if heir is not None:
            heir.signal.set()


def _split(queue: list[W]) -> tuple[list[W], list[W]]:
    size = 0
    for index, waiting in enumerate(queue):
        size += len(waiting.drafts)
        if size >= BATCH:
            return queue[: index + 1], queue[index + 1 :]
    return queue, []


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
    _hand_out(batch, answers)


def _hand_out(batch: Sequence[_Waiting], answers: Answers) -> None:
    place = 0
    for waiting in batch:
        waiting.answers = answers[place : place + len(waiting.drafts)]
        place += len(waiting.drafts)


class _LoopIntake:
    """The same for one event loop, where a flag does what a lock does between threads."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._create_future = loop.create_future
        self._create_task = loop.create_task
        self._queue: list[tuple[_Waiting, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, drafts: Sequence[Draft]) -> Answers:
        mine = _Waiting(drafts)
        done: asyncio.Future[None] = self._create_future()
        self._queue.append((mine, done))
        if self._writer is None:
            self._writer = self._create_task(self._write_all(), name="durably-intake")
        # The writer goes on if this caller is cancelled: what it has begun to accept is accepted.
        await done
        if mine.error is not None:
            raise mine.error
        return mine.answers

    async def _write_all(self) -> None:
        try:
            while self._queue:
                batch, rest = _split([waiting for waiting, _ in self._queue])
                futures = [future for _, future in self._queue[: len(batch)]]
                self._queue = self._queue[len(self._queue) - len(rest) :]
                await self._write(batch)
                for future in futures:
                    if not future.done():
                        future.set_result(None)
        finally:
            self._writer = None
            for waiting, future in self._queue:
                waiting.error = DurablyError("the event loop was stopped before the task could be accepted")
                if not future.done():
                    future.set_result(None)
            self._queue = []

    async def _write(self, batch: list[_Waiting]) -> None:
        drafts = [draft for waiting in batch for draft in waiting.drafts]
        try:
            answers = await apersist(self._store, lambda again: accept(drafts, again))
        except StoreRejected as error:
            if len(batch) == 1:
                batch[0].error = error
            else:
                for waiting in batch:
                    await self._write([waiting])
            return
        except Exception as error:
            for waiting in batch:
                waiting.error = error
            return
        _hand_out(batch, answers)
