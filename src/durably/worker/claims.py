"""Asking the store for work: where to begin to look, what to do about an answer that was lost, when to sleep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from durably.core.moment import SECOND
from durably.core.task import Task
from durably.errors import DurablyError
from durably.stores.operations.claim import Claim, Range, alone_waits, claim, next_due, sleep, wake
from durably.stores.operations.quick import can_be_quick, claim_plain
from durably.stores.operations.sweep import forget_claims, held, notes_claims
from durably.stores.protocol import UNHEARD, Store
from durably.worker.session import Session

log = logging.getLogger("durably.claims")

SWEEP = 20
"""Every so many claims one looks below the floor, where a transaction that committed late may have landed; but not for
more than about one part in so many of the time, however long that takes."""
SOON = 0.5
"""So long after a sweep there is another, though there were not so many claims."""
HURRY = SECOND // 5
"""How far a worker looks back in the midst of many tasks, since a sweep comes soon. While somebody holds back what can
be vacuumed, each claim passes by all that was claimed in that time."""
NOT_AT_ONCE = 0.02
MANY = 100
"""From so many claims on it is worth a statement to let the store forget those that are settled."""


class Claims:
    """What a worker remembers between two claims. Each begins with another queue, so that none starves the others."""

    def __init__(self, store: Store, queues: tuple[str, ...], chance: random.Random, ahead: int = 1) -> None:
        self._store = store
        self._queues = queues
        self._chance = chance
        self._ahead = ahead
        self._floors: dict[Range, int] = {}
        self._count = 0
        self._asleep = False
        self._settles_at = 0.0
        """When everybody knows that it fell asleep."""
        self._looked_at = 0.0
        """When the last claim that was answered began."""
        self._in_doubt = False
        self._leasing = 0
        self._quiet = asyncio.Condition()
        self._checked_at = 0.0
        self._plain = False
        self._sweeps = 0
        self._swept_at = 0
        self._sweep_by: float | None = None
        """When there must be a sweep, however few the claims; from the first claim on."""
        self._sweep_from = 0.0
        self._noted: set[int] = set()

    def forget(self) -> None:
        """A new session begins."""
        self._floors.clear()
        self._asleep = False
        self._in_doubt = False
        self._noted.clear()

    def note(self, tasks: Iterable[Task]) -> None:
        """These are known to be leased: the store keeps a note of their claims until it is told to forget them."""
        if notes_claims(self._store.queries):
            self._noted.update([task.token for task in tasks if task.key is None])

    async def forget_settled(self, session: Session, in_flight: Callable[[], set[int]]) -> None:
        """Let the store forget the claims of which nothing is in flight any more."""
        if len(self._noted) < MANY:
            return
        settled = self._noted - in_flight()
        if settled:
            with contextlib.suppress(DurablyError):
                await self._store.arun(forget_claims(session.id, sorted(settled)))
                self._noted -= settled

    @asynccontextmanager
    async def leasing(self) -> AsyncIterator[None]:
        """Something beside the claims may lease tasks: what the session holds is not judged until they are known."""
        async with self._quiet:
            self._leasing += 1
        try:
            yield
        finally:
            async with self._quiet:
                self._leasing -= 1
                self._quiet.notify_all()

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """Nothing is being leased, nor can be for so long."""
        async with self._quiet:
            await self._quiet.wait_for(lambda: not self._leasing)
            yield

    def doubt(self) -> None:
        """Something that may have leased tasks had no answer."""
        self._in_doubt = True

    def doubtful(self, session: Session, now: float) -> bool:
        """Whether to ask what the session holds: a claim had no answer, or it was long ago.

        A claim that was given up for lost may reach the store later than the question that followed it.
        """
        return self._in_doubt or now - self._checked_at > session.lease

    async def claim(
        self, session: Session, room: int, *, fresh: bool, alone: bool = False, lightly: bool = False
    ) -> Claim | None:
        """Claim up to `room` tasks; None when no answer came.

        A fresh look begins below every floor. A light one may pass by what is not plain, since another follows soon.
        """
        self._count += 1
        began = asyncio.get_running_loop().time()
        if self._sweep_by is None:
            self._sweep_by = began + SOON
        due = self._count - self._swept_at >= SWEEP or began >= self._sweep_by
        sweep = due and began >= self._sweep_from
        floors = {} if fresh or sweep else self._floors
        # Each sweep begins with another queue too: one that fills all the room must not hide the others for ever.
        self._sweeps += sweep
        first = (self._sweeps if sweep else self._count) % len(self._queues)
        queues = self._queues[first:] + self._queues[:first]
        try:
            found = None
            if self._plain and not alone:
                found = await self._store.arun(claim_plain(session.id, queues, room, floors=floors))
                if found is None and lightly:
                    return Claim(live=True)
            if found is None:
                wanted = claim(session.id, queues, room, floors=floors, alone=alone, ahead=self._ahead)
                found = await self._store.arun(wanted)
                self._plain = found.plain and can_be_quick(self._store.queries)
        except DurablyError as error:
            log.warning("nothing can be claimed at the moment: %s", error)
            self.doubt()
            return None
        self._looked_at = began
        if sweep:
            now = asyncio.get_running_loop().time()
            self._swept_at, self._sweep_by, self._sweep_from = self._count, now + SOON, now + (now - began) * SWEEP
        if len(found.tasks) < room:
            self._floors.update(found.floors)
        else:
            self._floors.update({place: min(at, found.now - HURRY) for place, at in found.reached.items()})
        if fresh and not found.tasks:
            self._floors.clear()
        return found

    async def orphans(self, session: Session, known: set[str], now: float) -> list[Task] | None:
        """What a claim without an answer had leased: held by the session, and not known to its worker."""
        try:
            leased = await self._store.arun(held(session.id))
        except DurablyError as error:
            log.warning("nothing can be claimed at the moment: %s", error)
            return None
        self._in_doubt = False
        self._checked_at = now
        return [task for task in leased if task.id not in known]

    async def someone_waits_alone(self) -> bool:
        """Whether a task on its last crash life still waits for a process of its own."""
        with contextlib.suppress(DurablyError):
            return await self._store.arun(alone_waits(self._queues))
        return True

    async def fall_asleep(self, session: Session) -> bool:
        """Tell the store that this session sleeps; whether it was news, so that one more claim must follow."""
        if self._asleep or not self._store.sleeps:
            return False
        with contextlib.suppress(DurablyError):
            await self._store.arun(sleep(session.id, self._queues))
            self._asleep = True
            self._settles_at = asyncio.get_running_loop().time() + UNHEARD
        return self._asleep

    async def wake_up(self, session: Session) -> None:
        """Tell the store that this session polls again, so that an enqueue need not notify."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(DurablyError):
                await self._store.arun(wake(session.id))

    async def idle_time(self, found: Claim, poll: float) -> float:
        """How long to wait for a hint: the poll, with jitter, or until a key or a limit may let something pass.

        Not for long until it has looked once since everybody knows that it sleeps.
        """
        early = self._settles_at - self._looked_at
        idle = early if early > 0 else self.pause(poll)
        if found.again_in is not None:
            idle = min(idle, found.again_in / SECOND)
        with contextlib.suppress(DurablyError):
            soon = await self._store.arun(next_due(self._queues))
            if soon.turns is not None:
                idle = min(idle, max((soon.turns - soon.now) / SECOND, NOT_AT_ONCE))
        return max(idle, 0.001)

    def pause(self, poll: float) -> float:
        """The poll interval, jittered so that workers do not march in step."""
        return poll * self._chance.uniform(0.7, 1.0)
