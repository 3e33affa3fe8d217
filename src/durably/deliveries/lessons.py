"""What attempts have shown about their destinations. Many may fail in the same moment: what they have shown is written
together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from durably.core.delivery import Condition, Destination, Outcome, settle


class Lesson(msgspec.Struct, frozen=True):
    """One attempt: the destination as it was read before, and what came of it."""

    destination: Destination
    outcome: Outcome
    spent: int
    now: int
    chance: float


def learned(destination: Destination, lessons: list[Lesson]) -> Condition:
    """How a destination stands after all of these."""
    condition = destination.condition
    for one in lessons:
        _, condition = settle(destination.rules, condition, one.outcome, one.spent, one.now, one.chance)
    return condition


class Lessons:
    """Writes for one event loop: while some lessons about a destination are being written, others gather."""

    def __init__(self, write: Callable[[list[Lesson]], Awaitable[None]]) -> None:
        self._write = write
        self._gathering: dict[tuple[str, str], list[tuple[Lesson, asyncio.Future[None]]]] = {}

    async def learn(self, lesson: Lesson) -> None:
        """Return when it is written, or could not be."""
        place = (lesson.destination.namespace, lesson.destination.name)
        others = self._gathering.get(place)
        if others is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            others.append((lesson, done))
            await done
            return
        others = self._gathering[place] = []
        try:
            await self._write([lesson])
            while others:
                await self._write_gathered(others)
        finally:
            del self._gathering[place]
            _release(others)

    async def _write_gathered(self, others: list[tuple[Lesson, asyncio.Future[None]]]) -> None:
        batch = others[:]
        others.clear()
        try:
            await self._write([lesson for lesson, _ in batch])
        finally:
            _release(batch)


def _release(batch: list[tuple[Lesson, asyncio.Future[None]]]) -> None:
    for _, done in batch:
        if not done.done():
            done.set_result(None)
