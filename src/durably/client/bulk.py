"""Any number of drafts in batches: one is made while the one before is written, and no more than that is in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import msgspec

from durably.client.intake import Answers
from durably.core.task import Draft
from durably.errors import Conflict

BATCH = 4000
BYTES = 1 << 22
"""A batch ends with so many drafts, or when their payloads have so many bytes."""
SLICE = 100
"""So many drafts are made before whoever writes the ones before is let in again."""
UNDER_WAY = 2
"""So many turns of the loop until a request has left."""

Written = tuple[list[Draft], Answers]


class Bulk(msgspec.Struct, frozen=True):
    """What `enqueue_many` did."""

    accepted: int
    existing: int
    """Those whose unique key was already held by a task with the same arguments."""


class Tally:
    """Counts answers; a conflict among them is raised."""

    def __init__(self) -> None:
        self._accepted = self._existing = 0

    def add(self, answers: Answers) -> None:
        for answer in answers:
            if isinstance(answer, Conflict):
                raise answer
            self._existing += answer.existing
        self._accepted += len(answers)

    @property
    def total(self) -> Bulk:
        return Bulk(self._accepted - self._existing, self._existing)


def _filling(batch: list[Draft], source: Iterator[Draft]) -> Iterator[None]:
    """Fill a batch, a few drafts at a time."""
    size = 0
    while len(batch) < BATCH and size < BYTES and (part := list(islice(source, SLICE))):
        batch += part
        size += sum([len(draft.payload) for draft in part])
        yield


def batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """All of them, batch by batch."""
    source = iter(drafts)
    while batch := _made(source):
        yield batch


def _made(source: Iterator[Draft]) -> list[Draft]:
    """The next batch."""
    batch: list[Draft] = []
    for _ in _filling(batch, source):
        time.sleep(0)
    return batch


async def _amade(source: Iterator[Draft]) -> list[Draft]:
    """The asynchronous twin."""
    batch: list[Draft] = []
    for _ in _filling(batch, source):
        await asyncio.sleep(0)
    return batch


def written(write: Callable[[list[Draft]], Answers], drafts: Iterable[Draft]) -> Iterator[Written]:
    """Every batch with its answers. It is made here, and written in a thread."""
    source = iter(drafts)
    with ThreadPoolExecutor(1, thread_name_prefix="durably-bulk") as thread:
        before: tuple[list[Draft], Future[Answers]] | None = None
        while batch := _made(source):
            if before is not None:
                yield before[0], before[1].result()
            before = batch, thread.submit(write, batch)
        if before is not None:
            yield before[0], before[1].result()


async def awritten(
    write: Callable[[list[Draft]], Awaitable[Answers]], drafts: Iterable[Draft]
) -> AsyncGenerator[Written, None]:
    """The asynchronous twin."""
    source = iter(drafts)
    before: tuple[list[Draft], asyncio.Future[Answers]] | None = None
    try:
        while batch := await _amade(source):
            if before is not None:
                yield before[0], await before[1]
            before = batch, asyncio.ensure_future(write(batch))
            for _ in range(UNDER_WAY):
                await asyncio.sleep(0)
        if before is not None:
            yield before[0], await before[1]
    finally:
        if before is not None:
            before[1].cancel()
