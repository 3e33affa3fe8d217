"""How destinations stand: asked before an attempt, and written after it if it has shown something new.

Nothing that goes wrong here changes what became of a message: a condition that cannot be written is learned again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from durably.client.definition import Definition
from durably.client.engine import Engine
from durably.client.perloop import PerLoop
from durably.core.delivery import (
    Condition,
    Dead,
    Destination,
    Go,
    Outcome,
    Standing,
    Verdict,
    Wait,
    admit,
    settle,
)
from durably.core.moment import SECOND
from durably.core.task import full_queue
from durably.deliveries.brakes import Brakes
from durably.deliveries.lessons import Lesson, Lessons, learned
from durably.deliveries.loader import Loaded, Loader
from durably.deliveries.writer import Writer
from durably.errors import DurablyError, GivenUp, Permanent, Snooze
from durably.observe.events import Event
from durably.observe.events import Kind as EventKind
from durably.stores.operations.deliver import change_and_tell

log = logging.getLogger("durably.deliveries")

QUEUE = "deliveries"
STORE_AWAY = 5.0
"""Seconds until another try when the store does not answer."""
ROUNDS = 20
TOLD: Mapping[Standing, EventKind] = {
    Standing.ACTIVE: "destination_active",
    Standing.THROTTLED: "destination_throttled",
    Standing.SUSPENDED: "destination_suspended",
    Standing.DISABLED: "destination_disabled",
    Standing.GONE: "destination_gone",
}


class DestinationChange(msgspec.Struct, frozen=True):
    """What a hook receives as its argument `change`."""

    destination: str
    before: str
    standing: str
    reason: str


class Register:
    """The destinations of an application, as its deliveries see them."""

    def __init__(self, engine: Engine) -> None:
        self.hook: Definition[..., Any] | None = None
        """The task that is told when a destination stands otherwise than before."""
        self._engine = engine
        self._store = engine.store
        self._loaders = PerLoop(lambda loop: Loader(engine.store, loop))
        self._writers = PerLoop(lambda loop: Writer(engine.store, loop))
        self._brakes = PerLoop(lambda loop: Brakes(engine.store, loop))
        self._lessons = PerLoop(lambda _: Lessons(self._learn))

    async def look_up(
        self, loop: asyncio.AbstractEventLoop, namespace: str, name: str, message: str | None = None
    ) -> Loaded:
        """The destination as it is now, and the message."""
        return await self._loaders.of(loop).load((namespace, name), message)

    async def _read_again(self, destination: Destination) -> Destination | None:
        loop = asyncio.get_running_loop()
        return (await self.look_up(loop, destination.namespace, destination.name)).destination

    async def admitted(self, destination: Destination, task: str, now: int, *, paced: bool = False) -> Destination:
        """The destination, once the rules let this delivery pass; else the task learns why it must wait."""
        for _ in range(ROUNDS):
            answer = admit(destination.rules, destination.condition, task, now, paced=paced)
            if type(answer) is Go and answer.condition is None:
                return destination
            match answer:
                case Go(condition) if condition is not None:
                    written = await self._written(destination, condition)
                    if written is not None:
                        return written
                    again = await self._read_again(destination)
                    if again is None:
                        raise Permanent(f"the destination {destination.name!r} is not known any more")
                    destination = again
                case Wait(seconds, reason):
                    await self.hold(destination, seconds)
                    raise Snooze(seconds, reason)
                case Dead():
                    raise given_up(answer)
        raise Snooze(STORE_AWAY, f"the destination {destination.name!r} changes all the time")

    async def settled(self, destination: Destination, outcome: Outcome, spent: int, now: int, chance: float) -> Verdict:
        """What becomes of the message; and how the destination stands after this is written, if that has changed."""
        if outcome.alarming:
            log.warning("look at the destination %s: %s", destination.name, outcome.reason)
            self._engine.events.emit(Event("destination_alarming", name=destination.name, reason=outcome.reason))
        verdict, condition = settle(destination.rules, destination.condition, outcome, spent, now, chance)
        try:
            if condition != destination.condition:
                lessons = self._lessons.of(asyncio.get_running_loop())
                await lessons.learn(Lesson(destination, outcome, spent, now, chance))
        except DurablyError as error:
            log.warning("what was learned about %s could not be written: %s", destination.name, error)
        return verdict

    async def _learn(self, lessons: list[Lesson]) -> None:
        destination = max((one.destination for one in lessons), key=lambda one: one.version)
        for _ in range(ROUNDS):
            condition = learned(destination, lessons)
            if condition == destination.condition:
                return
            written = await self._written(destination, condition)
            if written is not None:
                await self._follow(destination, written, max(one.now for one in lessons))
                return
            again = await self._read_again(destination)
            if again is None:
                return
            destination = again

    async def _follow(self, before: Destination, after: Destination, now: int) -> None:
        """Hold the others back, or let them go; and tell."""
        if after.condition.until > now:
            await self.hold(after, (after.condition.until - now) / SECOND)
        elif before.condition.until or before.condition.breaker != "closed":
            await self.release(after)
        if before.condition.standing is not after.condition.standing:
            kind = TOLD[after.condition.standing]
            self._engine.events.emit(Event(kind, name=after.name, reason=after.condition.reason or None))

    async def _written(self, destination: Destination, condition: Condition) -> Destination | None:
        changed = msgspec.structs.replace(destination, condition=condition)
        before = destination.condition.standing
        if self.hook is not None and before is not condition.standing:
            change = DestinationChange(destination.name, str(before), str(condition.standing), condition.reason)
            told = self.hook.call(change=change).draft()
            if await self._store.arun(change_and_tell(changed, told)):
                return msgspec.structs.replace(changed, version=changed.version + 1)
            return None
        if await self._writers.of(asyncio.get_running_loop()).write(changed):
            return msgspec.structs.replace(changed, version=changed.version + 1)
        return None

    async def hold(self, destination: Destination, seconds: float) -> None:
        """Let those that need no order wait for so long, unless there is another way for them."""
        if destination.rules.order == "unordered" and destination.rules.fallback is None:
            await self._brakes.of(asyncio.get_running_loop()).hold(_line(destination), seconds)

    async def release(self, destination: Destination) -> None:
        """Let those go that need no order."""
        if destination.rules.order == "unordered":
            await self._brakes.of(asyncio.get_running_loop()).release(_line(destination))


def given_up(dead: Dead) -> Permanent:
    """What a delivery raises that becomes a dead letter."""
    return Permanent(dead.reason) if dead.certain else GivenUp(dead.reason)


def _line(destination: Destination) -> tuple[str, str]:
    return full_queue(destination.namespace, QUEUE), destination.line
