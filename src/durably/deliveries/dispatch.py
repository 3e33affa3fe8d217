"""The handler of every delivery: ask the rules, call the channel, and do what follows from the outcome."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from durably.client.engine import Engine
from durably.core.brief import brief
from durably.core.delivery import (
    Again,
    Condition,
    Dead,
    Destination,
    Done,
    Go,
    Kind,
    Message,
    Outcome,
    Standing,
    Verdict,
    Wait,
    admit,
    settle,
)
from durably.core.moment import SECOND, micros
from durably.core.retry import MAX_ATTEMPTS, Retry
from durably.core.task import clean, full_queue
from durably.deliveries.channel import Channel, Delivery
from durably.deliveries.loader import Loader
from durably.deliveries.vault import Vault
from durably.errors import BadOption, Permanent, RetryAfter, Snooze
from durably.observe.events import Event
from durably.observe.events import Kind as EventKind
from durably.stores.operations.deliver import change_destination, hold_line, release_line
from durably.worker.context import Context, current

log = logging.getLogger("durably.deliveries")

QUEUE = "deliveries"
NO_CHANNEL = 30.0
"""Seconds until a delivery is looked at again whose channel is not declared here."""
LENIENCY = 5.0
"""Seconds that a channel gets beyond its timeout, to say what happened."""
SUSPECTS = 20
"""So many attempts at once go to peers that failed the last time: the others keep their pace, however many are dead."""
PATIENCE = 3.0
"""Seconds, about, until another try to get one of these places."""
ROUNDS = 20
UNTIL_TOLD = Retry.constant(attempts=MAX_ATTEMPTS, delay=0)
"""The rules of the destination decide when to try again, and when to give up."""
TOLD: Mapping[Standing, EventKind] = {
    Standing.ACTIVE: "destination_active",
    Standing.THROTTLED: "destination_throttled",
    Standing.SUSPENDED: "destination_suspended",
    Standing.DISABLED: "destination_disabled",
    Standing.GONE: "destination_gone",
}


left_out: ContextVar[frozenset[str]] = ContextVar("durably_left_out", default=frozenset())
"""Deliveries that are not tried here, since they just were."""
NOT_TWICE = 1.0


class Delivered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a delivery that reached its peer."""

    status: int | None = None
    body: str = ""
    possible_duplicate: bool = False


class Memory(msgspec.Struct, frozen=True):
    """What one attempt tells the next."""

    possible_duplicate: bool = False


def line_of(namespace: str, name: str) -> str:
    """The limit group in which unordered deliveries to a destination wait."""
    return f"to {full_queue(namespace, name)}"


class Dispatcher:
    """Delivers, in whatever worker runs it."""

    def __init__(self, engine: Engine, namespace: str, channels: Mapping[str, Channel], vault: Vault) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace
        self._channels = channels
        self._vault = vault
        self._chance = random.Random()
        self._suspects = 0
        self._loaders: WeakKeyDictionary[asyncio.AbstractEventLoop, Loader] = WeakKeyDictionary()

    async def deliver(self, message: str, destination: str) -> Delivered:
        """One attempt."""
        task = current()
        if task.id in left_out.get():
            raise Snooze(NOT_TWICE, "it was tried a moment ago")
        place = (self._namespace, destination)
        loaded = await self._loader().load(place, message)
        if loaded.destination is None:
            raise Permanent(f"the destination {destination!r} is not known any more")
        if loaded.message is None:
            raise Permanent(f"the message {message} is not kept any more")
        suspect = loaded.destination.condition.failures > 0
        if suspect and self._suspects >= SUSPECTS:
            raise Snooze(PATIENCE * (1 + self._chance.random()), "other peers that failed are tried first")
        self._suspects += suspect
        try:
            return await self._delivered(loaded.destination, loaded.message, loaded.now, task)
        finally:
            self._suspects -= suspect

    async def _delivered(self, destination: Destination, message: Message, at: int, task: Context) -> Delivered:
        """One attempt, as far as the rules of the destination allow it at this moment."""
        began = time.monotonic()
        peer = await self._admitted(destination, task.id, at)
        channel = self._channels.get(peer.channel)
        if channel is None:
            raise Snooze(NO_CHANNEL, f"this worker has no channel named {peer.channel!r}: see deliveries.channels")
        doubtful = _is_doubtful(task)
        outcome = await self._attempt(channel, peer, message, task, doubtful)
        now = at + micros(time.monotonic() - began)
        verdict = await self._settled(peer, outcome, task.spent, now)
        if outcome.kind is Kind.UNKNOWN and not doubtful:
            await task.asave(Memory(possible_duplicate=True))
        match verdict:
            case Done():
                return Delivered(outcome.status, outcome.body, doubtful)
            case Again(seconds, reason, charged):
                raise RetryAfter(seconds, reason) if charged else Snooze(seconds, reason)
            case Dead(reason):
                raise Permanent(reason.removeprefix("permanent: "))

    def _loader(self) -> Loader:
        loop = asyncio.get_running_loop()
        loader = self._loaders.get(loop)
        if loader is None:
            loader = self._loaders[loop] = Loader(self._store)
        return loader

    async def _admitted(self, destination: Destination, task: str, now: int) -> Destination:
        """The destination, once the rules let this delivery pass; else the task learns why it must wait."""
        for _ in range(ROUNDS):
            answer = admit(destination.rules, destination.condition, task, now)
            match answer:
                case Go(None):
                    return destination
                case Go(condition) if condition is not None:
                    written = await self._written(destination, condition)
                    if written is not None:
                        return written
                    destination = await self._again(destination)
                case Wait(seconds, reason):
                    await self._hold(destination, seconds)
                    raise Snooze(seconds, reason)
                case Dead(reason):
                    raise Permanent(reason)
        raise RetryAfter(1.0, f"the destination {destination.name!r} changes all the time")

    async def _attempt(
        self, channel: Channel, destination: Destination, message: Message, task: Context, doubtful: bool
    ) -> Outcome:
        """What the channel says; whatever else it does is an outcome too."""
        try:
            secrets = self._vault.open(destination.secrets, f"{destination.namespace}/{destination.name}")
        except BadOption as error:
            return Outcome(kind=Kind.MISCONFIGURED, reason=str(error))
        plain = msgspec.structs.replace(message, body=self._engine.codec.decode(message.body))
        delivery = Delivery(task.id, task.attempt, plain, destination, secrets, doubtful)
        try:
            async with asyncio.timeout(destination.rules.timeout + LENIENCY):
                if doubtful and await _was_taken(channel, delivery):
                    return Outcome(kind=Kind.OK, reason="an earlier attempt had reached the peer")
                outcome = await channel.deliver(delivery)
        except TimeoutError:
            return Outcome(kind=Kind.UNKNOWN, reason=f"the channel {destination.channel!r} did not return", breaks=True)
        except Exception as error:
            log.exception("the channel %s failed", destination.channel)
            return Outcome(kind=Kind.TRANSIENT, reason=clean(f"{type(error).__name__}: {error}", 500))
        if not isinstance(outcome, Outcome):
            return Outcome(
                kind=Kind.TRANSIENT,
                reason=f"the channel {destination.channel!r} answered {brief(outcome)} instead of an Outcome",
            )
        return msgspec.structs.replace(outcome, reason=clean(outcome.reason, 500), body=clean(outcome.body, 2000))

    async def _settled(self, destination: Destination, outcome: Outcome, spent: int, now: int) -> Verdict:
        """Write how the destination stands after this, if that has changed; what becomes of the message."""
        chance = self._chance.random()
        for _ in range(ROUNDS):
            verdict, condition = settle(destination.rules, destination.condition, outcome, spent, now, chance)
            if condition == destination.condition:
                return verdict
            written = await self._written(destination, condition)
            if written is not None:
                await self._follow(destination, written, now)
                return verdict
            destination = await self._again(destination)
        log.warning("what was learned about %s could not be written: it changes all the time", destination.name)
        return verdict

    async def _follow(self, before: Destination, after: Destination, now: int) -> None:
        """Hold the others back, or let them go; and tell."""
        if after.condition.until > now:
            await self._hold(after, (after.condition.until - now) / SECOND)
        elif before.condition.until or before.condition.breaker != "closed":
            await self._release(after)
        if before.condition.standing is not after.condition.standing:
            kind = TOLD[after.condition.standing]
            self._engine.events.emit(Event(kind, name=after.name, reason=after.condition.reason or None))

    async def _written(self, destination: Destination, condition: Condition) -> Destination | None:
        changed = msgspec.structs.replace(destination, condition=condition)
        if await self._store.arun(change_destination(changed)):
            return msgspec.structs.replace(changed, version=changed.version + 1)
        return None

    async def _again(self, destination: Destination) -> Destination:
        loaded = await self._loader().load((destination.namespace, destination.name), "")
        if loaded.destination is None:
            raise Permanent(f"the destination {destination.name!r} is not known any more")
        return loaded.destination

    async def _hold(self, destination: Destination, seconds: float) -> None:
        if destination.rules.order == "unordered":
            queue = full_queue(destination.namespace, QUEUE)
            await self._store.arun(hold_line(queue, _line(destination), micros(seconds)))

    async def _release(self, destination: Destination) -> None:
        if destination.rules.order == "unordered":
            await self._store.arun(release_line(_line(destination)))


def _line(destination: Destination) -> str:
    return line_of(destination.namespace, destination.name)


def _is_doubtful(task: Context) -> bool:
    """Whether an earlier attempt may have reached the peer: it said so, or died before it could."""
    if task.crashes:
        return True
    try:
        return msgspec.convert(task.details, Memory | None) == Memory(possible_duplicate=True)
    except msgspec.ValidationError:
        return False


async def _was_taken(channel: Channel, delivery: Delivery) -> bool:
    """Whether the peer already has it, as far as the channel can tell."""
    reconcile: Any = getattr(channel, "reconcile", None)
    return reconcile is not None and (await reconcile(delivery)) is True
