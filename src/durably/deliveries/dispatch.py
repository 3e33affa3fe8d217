"""The handler of every delivery: ask the rules, call the channel, and do what follows from the outcome."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

import msgspec

from durably.client.engine import Engine
from durably.core.brief import brief
from durably.core.delivery import Again, Dead, Destination, Done, Dropped, Kind, Message, Outcome, Verdict, diverts
from durably.core.moment import SECOND, micros
from durably.core.retry import MAX_ATTEMPTS, Retry
from durably.core.task import clean
from durably.deliveries.acquaintance import Acquaintances
from durably.deliveries.channel import Channel, Delivery
from durably.deliveries.doubt import may_have_arrived
from durably.deliveries.limits import Limits
from durably.deliveries.register import STORE_AWAY, Register, given_up
from durably.deliveries.vault import Vault
from durably.errors import Discard, DurablyError, GivenUp, Instruction, Permanent, RetryAfter, Snooze
from durably.worker.context import Context, current

log = logging.getLogger("durably.deliveries")

NO_CHANNEL = 30.0
"""Seconds until a delivery is looked at again whose channel is not declared here."""
LENIENCY = 5.0
"""Seconds that a channel gets beyond its timeout, to say what happened."""
SLOW = 0.5
"""Seconds after which an attempt that waits for its peer keeps no other one waiting."""
SUSPECTS = 20
"""So many attempts at once go to peers that failed the last time: the others keep their pace, however many are dead."""
MOMENT = 0.1
"""Seconds for which others wait here to see whether a peer answers the first messages."""
PROVING = 1.0
"""Seconds, about, until another try to send more to a peer that has not answered yet."""
PATIENCE = 3.0
"""Seconds, about, until another try to get one of these places."""
NOT_TWICE = 1.0
UNFORESEEN = 60.0
"""Seconds until another try after something that nobody has thought of."""
UNTIL_TOLD = Retry.constant(attempts=MAX_ATTEMPTS, delay=0)
"""The rules of the destination decide when to try again, and when to give up."""


class Driven(msgspec.Struct, frozen=True):
    """Attempts that somebody asks for here and now, and not a worker."""

    tried: frozenset[str] = frozenset()
    """Deliveries that are not tried, since they just were."""
    forced: bool = False
    """Whether they are made out of turn, and not charged."""


DRIVEN: ContextVar[Driven | None] = ContextVar("durably_driven", default=None)


class Delivered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a delivery that reached its peer."""

    status: int | None = None
    body: str = ""
    possible_duplicate: bool = False
    kept: Any = None


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt tells the next."""

    possible_duplicate: bool = False
    reason: str = ""
    """Why it was not charged."""
    kept: Any = None
    """What the channel wants to know again."""
    charged: bool = False
    """Whether the attempt used up the schedule: if the next one is the first again, somebody has replayed it."""
    cut: bool = False
    """Whether what is kept is from before an attempt that could not say what it had done."""
    diverted: bool = False
    """Whether it is the fallback alone that may have it."""


PERHAPS = Memory(possible_duplicate=True, cut=True)


class Dispatcher:
    """Delivers, in whatever worker runs it."""

    def __init__(
        self,
        engine: Engine,
        namespace: str,
        channels: Mapping[str, Channel],
        vault: Vault,
        chance: random.Random | None = None,
    ) -> None:
        self._engine = engine
        self._namespace = namespace
        self._channels = channels
        self._vault = vault
        self.register = Register(engine)
        self._chance = chance or random.Random()
        self._suspects = 0
        self._limits = Limits()
        self._peers = Acquaintances()
        self._unproven: set[str] = set()
        """Peers for whose first answer others were held back."""

    async def deliver(self, message: str, destination: str) -> Delivered:
        """One attempt."""
        task, driven = current(), DRIVEN.get()
        if driven is not None and task.id in driven.tried:
            raise Snooze(NOT_TWICE, "it was tried a moment ago")
        try:
            loop = asyncio.get_running_loop()
            loaded = await self.register.look_up(loop, self._namespace, destination, message)
        except DurablyError as error:
            raise Snooze(STORE_AWAY, str(error)) from error
        if loaded.destination is None:
            raise Permanent(f"the destination {destination!r} is not known any more")
        if loaded.message is None:
            raise Permanent(f"the message {message} is not kept any more")
        suspect = loaded.destination.condition.failures > 0
        if suspect and self._suspects >= SUSPECTS:
            await self._hold_back(loaded.destination, PATIENCE, "other peers that failed are tried first")
        self._suspects += suspect
        try:
            return await self._delivered(loop, loaded.destination, loaded.message, loaded.now, task)
        except Instruction:
            raise
        except Exception as error:
            log.exception("the delivery %s failed in a way that nobody has thought of", task.id)
            raise RetryAfter(UNFORESEEN, f"{type(error).__name__}: {error}") from error
        finally:
            self._suspects -= suspect

    async def _delivered(
        self, loop: asyncio.AbstractEventLoop, destination: Destination, message: Message, at: int, task: Context
    ) -> Delivered:
        """One attempt, as far as the rules of the destination allow it at this moment."""
        monotonic = self._engine.clock.monotonic
        began = monotonic()
        memory, driven = remembered(task.details), DRIVEN.get()
        forced = driven is not None and driven.forced
        try:
            if task.attempt > 1 and await may_have_arrived(self._engine.store, task):
                memory = _cut(memory)
            bound = memory.possible_duplicate and not memory.diverted
            way = await self._way(loop, destination, task, at, began, bound)
        except DurablyError as error:
            raise Snooze(STORE_AWAY, str(error)) from error
        outcome = await self._tried(loop, way, message, task, memory)
        after = _after(memory, outcome, way.name != destination.name)
        verdict = await self._settled(way, outcome, task, at + micros(monotonic() - began))
        if not bound and way.name == destination.name and destination.rules.fallback is not None and diverts(outcome):
            now = at + micros(monotonic() - began)
            other = await self._fallback(loop, destination, task, now)
            if other is not None:
                outcome = await self._tried(loop, other, message, task, after)
                after = _after(after, outcome, True)
                verdict = await self._settled(other, outcome, task, at + micros(monotonic() - began))
        match verdict:
            case Done():
                doubtful = memory.possible_duplicate or outcome.possible_duplicate
                return Delivered(outcome.status, outcome.body, doubtful, after.kept)
            case Again(seconds, reason, True) if not forced:
                task.leave(msgspec.structs.replace(after, charged=True))
                raise _told(RetryAfter(seconds, reason))
            case Dead() if not (forced and outcome.kind in (Kind.TRANSIENT, Kind.UNKNOWN)):
                task.leave(msgspec.structs.replace(after, charged=True))
                raise _told(given_up(verdict))
            case Dropped(reason):
                task.leave(msgspec.structs.replace(after, charged=True))
                raise _told(Discard(reason))
            case _:
                # No attempt is charged, and none is noted: the reason is kept with the task.
                task.leave(msgspec.structs.replace(after, reason=verdict.reason))
                raise Snooze(verdict.seconds if isinstance(verdict, Again) else NO_CHANNEL, verdict.reason)

    async def _way(
        self,
        loop: asyncio.AbstractEventLoop,
        destination: Destination,
        task: Context,
        at: int,
        began: float,
        bound: bool,
    ) -> Destination:
        """Where it goes now: to its destination; or if that takes nothing at the moment, to its fallback.

        It is `bound` to its destination if that may have it already.
        """
        self._channel(destination)
        if DRIVEN.get() is None and not await self._may_begin(loop, destination.name, began):
            self._unproven.add(destination.name)
            await self._hold_back(destination, PROVING, "the peer has not answered the first messages yet")
        try:
            return await self.register.admitted(destination, task.id, at)
        except (Snooze, GivenUp):
            other = None if bound else await self._fallback(loop, destination, task, at)
            if other is None:
                raise
            return other

    async def _may_begin(self, loop: asyncio.AbstractEventLoop, name: str, now: float) -> bool:
        """Whether one more may be on its way to this peer, as far as it shows in a moment."""
        until = now + MOMENT
        while not self._peers.may_begin(name, now):
            if now >= until or not await self._peers.news(name, loop, until - now):
                return False
            now = self._engine.clock.monotonic()
        return True

    async def _fallback(
        self, loop: asyncio.AbstractEventLoop, destination: Destination, task: Context, at: int
    ) -> Destination | None:
        """The other way of a destination, if there is one that may be tried now."""
        if destination.rules.fallback is None:
            return None
        try:
            found = (await self.register.look_up(loop, self._namespace, destination.rules.fallback)).destination
            if found is None or found.channel not in self._channels:
                return None
            return await self.register.admitted(found, task.id, at, paced=True)
        except (Snooze, Permanent, DurablyError) as error:
            log.info("no fallback for %s: %s", destination.name, error)
            return None

    def _channel(self, destination: Destination) -> Channel:
        channel = self._channels.get(destination.channel)
        if channel is None:
            reason = f"this worker has no channel {destination.channel!r}: see deliveries.channels"
            raise Snooze(NO_CHANNEL, reason)
        return channel

    async def _tried(
        self,
        loop: asyncio.AbstractEventLoop,
        destination: Destination,
        message: Message,
        task: Context,
        memory: Memory,
    ) -> Outcome:
        """What came of it, which tells whether the peer answers."""
        outcome: Outcome | None = None
        self._peers.begin(destination.name)
        try:
            channel = self._channel(destination)
            outcome = await self._attempt(loop, channel, destination, message, task, memory)
        finally:
            answered = outcome is not None and not outcome.unreachable and outcome.kind is not Kind.UNKNOWN
            self._peers.end(destination.name, self._engine.clock.monotonic(), answered=answered)
        if answered and destination.name in self._unproven:
            self._unproven.discard(destination.name)
            await self._let_on(destination)
        return outcome

    async def _let_on(self, destination: Destination) -> None:
        """The peer has answered: those that were held back for that may begin."""
        try:
            await self.register.release(destination)
        except DurablyError as error:
            log.warning("those that wait for %s do so a little longer: %s", destination.name, error)

    async def _settled(self, destination: Destination, outcome: Outcome, task: Context, now: int) -> Verdict:
        return await self.register.settled(destination, outcome, task.spent, now, self._chance.random())

    async def _hold_back(self, destination: Destination, seconds: float, reason: str) -> NoReturn:
        """Not now; and nobody behind this one is worth a look before."""
        wait = seconds * (1 + self._chance.random())
        try:
            await self.register.hold(destination, wait)
        except DurablyError as error:
            raise Snooze(STORE_AWAY, str(error)) from error
        raise Snooze(wait, reason)

    async def _attempt(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        destination: Destination,
        message: Message,
        task: Context,
        memory: Memory,
    ) -> Outcome:
        """What the channel says; whatever else it does is an outcome too."""
        try:
            body = self._engine.codec.decode(message.body)
        except Exception as error:
            reason = f"the message cannot be decoded: {type(error).__name__}: {error}"
            return Outcome(kind=Kind.PERMANENT, reason=clean(reason, 500), asked=False)
        plain = message if body is message.body else msgspec.structs.replace(message, body=body)
        now = self._engine.clock.now()
        try:
            secrets = self._vault.open(destination.secrets, destination.namespace, destination.name, now)
        except DurablyError as error:
            return Outcome(kind=Kind.MISCONFIGURED, reason=str(error))
        delivery = Delivery(
            task.id,
            task.attempt,
            plain,
            destination,
            secrets,
            memory.possible_duplicate,
            now / SECOND,
            memory.kept,
            task.spent,
            memory.charged and task.spent <= task.crashes + 1,
            memory.cut,
        )
        limit = self._limits.limit_with_a_call(loop, destination.rules.timeout + LENIENCY, task.lend, SLOW)
        # From now on the peer may have it, whatever interrupts this attempt.
        task.leave(PERHAPS if memory.kept is None else _cut(memory))
        try:
            if memory.possible_duplicate and await _was_taken(channel, delivery):
                return Outcome(kind=Kind.OK, reason="an earlier attempt had reached the peer")
            outcome = await channel.deliver(delivery)
        except asyncio.CancelledError:
            if limit.was_it():
                reason = f"the channel {destination.channel!r} did not return"
                return Outcome(kind=Kind.UNKNOWN, reason=reason, breaks=True)
            raise
        except Exception as error:
            log.exception("the channel %s failed", destination.channel)
            return Outcome(kind=Kind.UNKNOWN, reason=clean(f"{type(error).__name__}: {error}", 500), asked=False)
        finally:
            limit.stop()
        return _checked(outcome, destination.channel)


def _cut(memory: Memory) -> Memory:
    """What is known after an attempt that could not say what it had done."""
    return msgspec.structs.replace(memory, possible_duplicate=True, reason="", cut=True, diverted=False)


def _after(memory: Memory, outcome: Outcome, diverted: bool) -> Memory:
    """What is known after an attempt; what its channel does not say stays as it was."""
    silent, unknown = outcome.kept is None, outcome.kind is Kind.UNKNOWN
    doubtful, fresh = memory.possible_duplicate, outcome.possible_duplicate or unknown
    return Memory(
        doubtful or fresh,
        kept=memory.kept if silent else outcome.kept,
        charged=silent and memory.charged,
        cut=silent and (memory.cut or unknown),
        diverted=(memory.diverted if doubtful else fresh) and (diverted or not fresh),
    )


def _checked(outcome: object, channel: str) -> Outcome:
    """What a channel answered, if that is an outcome; if not, nobody knows what has become of the message."""
    if not isinstance(outcome, Outcome):
        reason = f"the channel {channel!r} answered {brief(outcome)} instead of an Outcome"
        return Outcome(kind=Kind.UNKNOWN, reason=reason, asked=False)
    if outcome.kind is Kind.OK and outcome.body == "" and outcome.learned is None and type(outcome.reason) is str:
        return outcome
    try:
        plain = msgspec.convert(msgspec.structs.asdict(outcome), Outcome)
        return msgspec.structs.replace(plain, reason=clean(plain.reason, 500), body=clean(plain.body, 2000))
    except (msgspec.ValidationError, DurablyError) as error:
        reason = clean(f"the channel {channel!r} answered with an Outcome that makes no sense: {error}", 500)
        return Outcome(kind=Kind.UNKNOWN, reason=reason, asked=False)


def _told(instruction: Instruction) -> Instruction:
    """What the peer said is all there is to know: where it is raised here tells nobody anything."""
    instruction.traced = False
    return instruction


def remembered(details: Any) -> Memory:
    """What an attempt has left behind."""
    if details is None:
        return Memory()
    try:
        return msgspec.convert(details, Memory | None) or Memory()
    except msgspec.ValidationError:
        return Memory()


async def _was_taken(channel: Channel, delivery: Delivery) -> bool:
    """Whether the peer already has it, as far as the channel can tell."""
    reconcile: Any = getattr(channel, "reconcile", None)
    return reconcile is not None and (await reconcile(delivery)) is True
