"""Group commit: what several coroutines want written at the same time shares one transaction, and one fsync."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from durably.errors import StoreUnavailable
from durably.stores.statement import Operation, Statement

MOST = 50
"""So many share a transaction at most."""

Job = Operation[Any] | Statement
"""What is wanted: an operation, or one statement of an operation whose steps are taken elsewhere."""

Write = Callable[[list[Job]], list[Any]]


class _Waiting:
    __slots__ = ("answer", "error", "future", "job", "loop")

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Together:
    """Writes in a thread, in order of arrival: whatever has arrived goes into the next transaction."""

    def __init__(self, thread: ThreadPoolExecutor, write: Write) -> None:
        self._thread = thread
        self._write = write
        self._lock = threading.Lock()
        self._arrived: list[_Waiting] = []
        self._busy = False

    async def run(self, job: Job) -> Any:
        """Do it; it is committed when this returns."""
        mine = _Waiting(job, asyncio.get_running_loop())
        with self._lock:
            self._arrived.append(mine)
            if not self._busy:
                self._thread.submit(self._write_next)
                self._busy = True
        return await mine.future

    def _write_next(self) -> None:
        """Write what has arrived. What arrives meanwhile is next, behind the reads that have waited for the thread."""
        with self._lock:
            batch, self._arrived = self._arrived[:MOST], self._arrived[MOST:]
        try:
            self._write_batch(batch)
        finally:
            with self._lock:
                self._busy = bool(self._arrived)
                if self._busy:
                    self._thread.submit(self._write_next)

    def _write_batch(self, batch: list[_Waiting]) -> None:
        """One transaction for all; if it cannot be, one for each, so that only those fail that must."""
        try:
            answers = self._write([waiting.job for waiting in batch])
        except BaseException as error:
            # A store that is away is away for all of them, and each would wait as long again to find out.
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                for waiting in batch:
                    waiting.error = error
                _tell(batch)
            else:
                for waiting in batch:
                    self._write_batch([waiting])
            return
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer = answer
        _tell(batch)


def _tell(batch: list[_Waiting]) -> None:
    for loop in {waiting.loop for waiting in batch}:
        # Whoever closed its loop waits no longer.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, [waiting for waiting in batch if waiting.loop is loop])


def _settle(batch: list[_Waiting]) -> None:
    for waiting in batch:
        waiting.settle()
