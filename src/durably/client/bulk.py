"""Any number of drafts in batches: one is made while the one before is written, and no more than that is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from durably.client.intake import Answers, Told
from durably.client.persist import persist
from durably.core.task import Draft
from durably.errors import Conflict, StoreUnavailable
from durably.stores.operations.accept import accept
from durably.stores.protocol import Store
from durably.stores.start import Started
from durably.stores.statement import Operation

BATCH = 4000
BYTES = 1 << 22
"""A batch ends with so many drafts, or when their payloads have so many bytes."""
SLICE = 50
"""So many drafts are made before the writing of the ones before may go on."""
UNDER_WAY = 2
"""So many turns of the loop until a request has left."""


class Bulk(msgspec.Struct, frozen=True):
    """What `enqueue_many` did."""

    accepted: int
    existing: int
    """Those whose unique key was already held by a task with the same arguments."""


class Tally:
    """Counts answers; a conflict among them is raised."""

    def __init__(self) -> None:
        self._accepted = self._existing = 0

    def count(self, answers: Answers) -> None:
        for answer in answers:
            if isinstance(answer, Conflict):
                raise answer
            self._existing += answer.existing
        self._accepted += len(answers)

    @property
    def total(self) -> Bulk:
        return Bulk(self._accepted - self._existing, self._existing)


def _filling(batch: list[Draft], slices: Iterator[list[Draft]]) -> Iterator[None]:
    """Fill a batch, slice by slice."""
    size = 0
    for part in slices:
        batch += part
        size += sum([len(draft.payload) for draft in part])
        yield
        if len(batch) >= BATCH or size >= BYTES:
            return


def batches(slices: Iterator[list[Draft]]) -> Iterator[list[Draft]]:
    """All of them, batch by batch."""
    while batch := _made(slices, None):
        yield batch


def _made(slices: Iterator[list[Draft]], before: Writing | None) -> list[Draft]:
    """The next batch."""
    batch: list[Draft] = []
    for _ in _filling(batch, slices):
        if before is not None:
            before.go_on()
    return batch


async def _amade(slices: Iterator[list[Draft]]) -> list[Draft]:
    """The asynchronous twin."""
    batch: list[Draft] = []
    for _ in _filling(batch, slices):
        await asyncio.sleep(0)
    return batch


class Writing:
    """A batch that is being written."""

    def __init__(self, store: Store, batch: list[Draft], op: Operation[Answers]) -> None:
        self.batch = batch
        self._store = store
        self._started: Started[Answers] = store.start(op)
        self.go_on = self._started.go_on

    def result(self) -> Answers:
        """Its answers; what may have landed unseen is sent again."""
        try:
            return self._started.result()
        except StoreUnavailable as error:
            if not error.fleeting:
                raise
            return persist(self._store, lambda _: accept(self.batch, again=True))


def write(store: Store, told: Told, slices: Iterator[list[Draft]]) -> Bulk:
    """Write all of them; what was accepted is told while the next batch is written."""
    tally = Tally()
    writing: Writing | None = None
    try:
        while batch := _made(slices, writing):
            op = accept(batch)
            before, writing = writing, None
            answers = [] if before is None else _counted(tally, told, before)
            writing = Writing(store, batch, op)
            if before is not None:
                for place in range(0, len(answers), SLICE):
                    told(before.batch[place : place + SLICE], answers[place : place + SLICE])
                    writing.go_on()
        if writing is not None:
            before, writing = writing, None
            told(before.batch, _counted(tally, told, before))
    finally:
        if writing is not None:
            with suppress(Exception):
                told(writing.batch, writing.result())
    return tally.total


async def awrite(submit: Callable[[list[Draft]], asyncio.Future[Answers]], slices: Iterator[list[Draft]]) -> Bulk:
    """The asynchronous twin; whoever writes tells what was accepted."""
    tally = Tally()
    writing: asyncio.Future[Answers] | None = None
    try:
        while batch := await _amade(slices):
            if writing is not None:
                tally.count(await writing)
            writing = submit(batch)
            for _ in range(UNDER_WAY):
                await asyncio.sleep(0)
        if writing is not None:
            tally.count(await writing)
    finally:
        if writing is not None:
            writing.cancel()
    return tally.total


def _counted(tally: Tally, told: Told, writing: Writing) -> Answers:
    """The answers, unless there is a conflict among them: nothing more is written after that."""
    answers = writing.result()
    try:
        tally.count(answers)
    except Conflict:
        told(writing.batch, answers)
        raise
    return answers
