"""The handlers behind notifications: one route, one digest, and what follows when nobody could be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from durably.client.definition import Call
from durably.client.engine import Engine
from durably.client.plan import arun
from durably.core.delivery import Kind as Came
from durably.core.delivery import Outcome
from durably.core.ids import derived
from durably.core.moment import micros
from durably.core.task import Draft, Options, clean, full_queue, pack_options
from durably.deliveries.doubt import may_have_arrived
from durably.errors import BadOption, Instruction, Permanent, RetryAfter, Snooze
from durably.mail.library import Templates
from durably.mail.templates import Rendered
from durably.notifications.asking import Linker, Resolver, ask
from durably.notifications.catalogue import Catalogue, Kind
from durably.notifications.channel import Note, NotificationChannel
from durably.notifications.people import Person, quiet_for, usable
from durably.notifications.words import plain
from durably.stores.operations.notify import (
    INBOX,
    Item,
    Place,
    Preference,
    Route,
    Row,
    add_route,
    close_digest,
    collect,
    preferences,
    route_of,
    throttle,
    was_read,
)
from durably.stores.operations.read import get
from durably.worker.context import Context, current

log = logging.getLogger("durably.notifications")

ROUTE, DIGEST, DEAD = "durably.route", "durably.digest", "durably.undelivered"
QUEUE = "notifications"
UNKNOWN_HERE = 30.0
"""Seconds until a route is looked at again whose kind or channel is not declared here."""
MISCONFIGURED = 300.0
INFRA = 30.0
LEAST_THROTTLE = 5.0
LIMIT = 60.0
"""Seconds that a channel has for one attempt."""
CONFIRMED = "permanent: "
"""How the reason begins if it is certain that a channel does not reach somebody."""
READ = "it was read"


class Routed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a route that came to its end."""

    state: str
    reason: str = ""
    via: str = ""
    """The mail that it became, or the digest that it waits for."""
    possible_duplicate: bool = False
    left_out: list[str] = []
    """The routes that a digest left out, since they were read."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt tells the next."""

    possible_duplicate: bool = False
    reason: str = ""
    counted: bool = False
    """Whether it counts among those that may come in a time."""


class Router:
    """Brings notifications to people."""

    def __init__(
        self,
        engine: Engine,
        namespace: str,
        kinds: Catalogue,
        channels: Mapping[str, NotificationChannel],
        templates: Templates,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace
        self._kinds = kinds
        self._channels = channels
        self._templates = templates
        self.resolver: Resolver | None = None
        self.linker: Linker | None = None
        self.follow: Callable[[str, str], Call[Any]] | None = None
        """The task that follows a route which reaches nobody, for a reason."""

    def draft(self, route: Route, kind: Kind, *, gate: str | None = None, delayed: bool = True) -> Draft:
        """The task that goes a route."""
        plain = {"notification": route.notification, "recipient": route.recipient, "channel": route.channel}
        wait = kind.channels.get(route.channel, 0.0) if delayed else 0.0
        return self._draft(route.id, ROUTE, plain, kind, route.channel, wait, gate)

    def _draft(
        self, task: str, name: str, plain: Any, kind: Kind, channel: str, wait: float, gate: str | None = None
    ) -> Draft:
        queue = full_queue(self._namespace, QUEUE)
        options = None
        if channel in kind.fallback:
            options = pack_options(Options(on_dead=DEAD, on_dead_queue=queue))
        payload = self._engine.payload(name, msgspec.json.encode(plain))
        return Draft(task, name, queue, payload, due_in=micros(wait), gate=gate, options=options)

    async def route(self, notification: str, recipient: str, channel: str) -> Routed:
        """One attempt to bring a notification to one recipient over one channel."""
        task = current()
        found = await self._store.arun(route_of(task.id, self._namespace))
        if found is None:
            raise Permanent("the notification is not kept any more")
        route, row = found
        kind, way = self._known(row.kind, channel)
        if route.digest is not None:
            return Routed("collected", via=route.digest)
        doubtful = await self._may_have_come(task)
        if await self._seen(kind, channel, [row.id], recipient) == [row.id]:
            return Routed("skipped", READ, possible_duplicate=doubtful)
        person, odd = await self._person(recipient)
        reason = await self._unwanted(kind, channel, recipient, person)
        if reason is not None:
            self._without_address(kind, channel, person, task)
            return Routed("skipped", reason, possible_duplicate=doubtful)
        assert person is not None
        place = Place(self._namespace, recipient, kind.name, channel)
        if not kind.critical and channel in kind.digest:
            digest = await self._collected(route, kind, place)
            return Routed("collected", via=digest)
        if not await self._let_through(kind, place, person, task):
            return Routed("skipped", _too_many(kind), possible_duplicate=doubtful)
        routed = await self._send(way, kind, person, place, [Item(route.id, row.id, row.data)], task, doubtful)
        return _annotated(routed, odd)

    async def digest(self, recipient: str, kind: str, channel: str) -> Routed:
        """One attempt to send what was collected for one recipient, in one message."""
        task = current()
        known, way = self._known(kind, channel)
        place = Place(self._namespace, recipient, kind, channel)
        items = await self._store.arun(close_digest(place, task.id))
        doubtful = await self._may_have_come(task)
        seen = await self._seen(known, channel, [one.notification for one in items], recipient)
        left_out = [one.route for one in items if one.notification in seen]
        items = [one for one in items if one.notification not in seen]
        if not items:
            return Routed("skipped", READ, possible_duplicate=doubtful)
        person, odd = await self._person(recipient)
        reason = await self._unwanted(known, channel, recipient, person)
        if reason is not None:
            self._without_address(known, channel, person, task)
            return Routed("skipped", reason, possible_duplicate=doubtful)
        assert person is not None
        if not await self._let_through(known, place, person, task):
            return Routed("skipped", _too_many(known), possible_duplicate=doubtful)
        routed = await self._send(way, known, person, place, items, task, doubtful)
        return msgspec.structs.replace(_annotated(routed, odd), left_out=left_out)

    async def undelivered(self, letter: dict[str, Any]) -> None:
        """What follows the dead letter of a route or a digest."""
        await self.fall_back(letter["id"], letter["reason"])

    async def fall_back(self, task: str, reason: str) -> None:
        """Try the next channel, if it is certain that this one reaches nobody."""
        if not reason.startswith(CONFIRMED):
            return
        found = await self._store.arun(route_of(task, self._namespace))
        routes = [found] if found is not None else await self._of_digest(task)
        for route, row in routes:
            kind = self._kinds.get(row.kind)
            if kind is None:
                raise Snooze(UNKNOWN_HERE, f"this worker knows no notifications of the kind {row.kind!r}")
            await self._fall_back(kind, route)

    async def _fall_back(self, kind: Kind, route: Route) -> None:
        other = kind.fallback.get(route.channel)
        if other is not None:
            new = route_to(route.notification, self._namespace, route.recipient, other)
            await self._store.arun(add_route(new, self.draft(new, kind, delayed=False)))

    def _without_address(self, kind: Kind, channel: str, person: Person | None, task: Context) -> None:
        """Who has no address for a channel surely cannot be reached over it: another is tried once that is written."""
        if person is not None and not _reachable(person, channel) and channel in kind.fallback:
            assert self.follow is not None
            task.then(self.follow(task.id, f"{CONFIRMED}no address for {channel}"))

    async def _of_digest(self, task: str) -> list[tuple[Route, Row]]:
        tasks = await self._store.arun(get([task]))
        if not tasks or tasks[0].name != DIGEST:
            return []
        told = msgspec.json.decode(self._engine.codec.decode(tasks[0].payload))
        place = Place(self._namespace, told["recipient"], told["kind"], told["channel"])
        items = await self._store.arun(close_digest(place, task))
        found = [await self._store.arun(route_of(one.route, self._namespace)) for one in items]
        return [one for one in found if one is not None]

    def _known(self, name: str, channel: str) -> tuple[Kind, NotificationChannel]:
        kind, way = self._kinds.get(name), self._channels.get(channel)
        if kind is None:
            _put_off(UNKNOWN_HERE, f"this worker knows no notifications of the kind {name!r}")
        if way is None:
            _put_off(UNKNOWN_HERE, f"this worker has no channel {channel!r}: see notifications.channels")
        return kind, way

    async def _seen(self, kind: Kind, channel: str, notifications: list[str], recipient: str) -> list[str]:
        if not kind.cancel_on_read or channel == INBOX:
            return []
        return [one for one in notifications if await self._store.arun(was_read(one, recipient))]

    async def _person(self, recipient: str) -> tuple[Person | None, list[str]]:
        """Who a recipient is, and what is odd about that."""
        if self.resolver is None:
            _put_off(UNKNOWN_HERE, "nobody tells who the recipients are: see notifications.resolver")
        person = await ask(self.resolver, recipient)
        if person is None:
            return None, []
        if not isinstance(person, Person):
            raise BadOption(f"resolver: it answered {type(person).__name__} for {recipient!r} instead of a Person")
        person, odd = usable(person)
        for what in odd:
            log.warning("the recipient %s is known with something that makes no sense: %s", recipient, what)
        return person, odd

    async def _unwanted(self, kind: Kind, channel: str, recipient: str, person: Person | None) -> str | None:
        """Why somebody gets nothing over this channel."""
        if person is None:
            return "nobody knows the recipient"
        if not _reachable(person, channel):
            return f"no address for {channel}"
        if kind.critical:
            return None
        said = await self._store.arun(preferences(self._namespace, recipient))
        return None if wanted(said, kind.name, channel) else "the recipient does not want it"

    async def _let_through(self, kind: Kind, place: Place, person: Person, task: Context) -> bool:
        """Whether it may be sent now: not in quiet hours, and not if there were too many."""
        if kind.critical or place.channel == INBOX:
            return True
        now = datetime.fromtimestamp(self._engine.clock.now() / 1_000_000, UTC)
        wait = quiet_for(person, now)
        if wait > 0:
            _put_off(wait, f"quiet hours until {person.quiet[1] if person.quiet else ''} ({person.timezone})")
        memory = remembered(task.details)
        if kind.throttle is None or memory.counted:
            return True
        most, window = kind.throttle
        kept = msgspec.structs.replace(memory, counted=True)
        counting = throttle(place, micros(window), most, task.id, task.token, task.packed(kept))
        if not await self._store.arun(counting):
            return False
        task.leave(kept)
        return True

    async def _collected(self, route: Route, kind: Kind, place: Place) -> str:
        window = kind.digest[place.channel]
        told = {"recipient": place.recipient, "kind": kind.name, "channel": place.channel}
        draft = self._draft(derived(route.id, 1, "digest", None), DIGEST, told, kind, place.channel, window)
        return await self._store.arun(collect(route.id, place, draft, micros(window)))

    async def _send(
        self,
        way: NotificationChannel,
        kind: Kind,
        person: Person,
        place: Place,
        items: list[Item],
        task: Context,
        doubtful: bool,
    ) -> Routed:
        note = await self._note(kind, person, place, items, task, doubtful, getattr(way, "renders", False))
        counted = kind.throttle is not None
        task.leave(Memory(possible_duplicate=True, counted=counted))
        try:
            async with asyncio.timeout(LIMIT):
                outcome = await way.send(note) or Outcome(kind=Came.OK)
        except Instruction:
            raise
        except TimeoutError:
            outcome = Outcome(kind=Came.UNKNOWN, reason=f"the channel was not done within {LIMIT:g} s")
        except Exception as error:
            log.exception("the channel %s failed", place.channel)
            outcome = Outcome(kind=Came.UNKNOWN, reason=clean(f"{type(error).__name__}: {error}", 500))
        if not isinstance(outcome, Outcome):
            outcome = Outcome(kind=Came.UNKNOWN, reason=f"the channel answered {type(outcome).__name__}")
        return _settled(outcome, task, doubtful, counted)

    async def _may_have_come(self, task: Context) -> bool:
        """Whether an earlier attempt may have reached somebody, although nobody can say so."""
        return remembered(task.details).possible_duplicate or await may_have_arrived(self._store, task)

    async def _note(
        self, kind: Kind, person: Person, place: Place, items: list[Item], task: Context, doubtful: bool, raw: bool
    ) -> Note:
        data = [msgspec.json.decode(self._engine.codec.decode(one.data)) for one in items]
        context = {**(data[0] if isinstance(data[0], dict) else {"data": data[0]})}
        context |= {"items": data, "recipient": place.recipient, "kind": kind.name}
        template = kind.templates.get(place.channel)
        title, text, html = plain(kind, data)
        if template is not None and not raw:
            rendered = await self._rendered(template, context, person.locale)
            title, text, html = rendered.subject, rendered.text or "", rendered.html
        return Note(
            id=task.id,
            notification=items[0].notification,
            kind=kind.name,
            recipient=place.recipient,
            address=person.addresses.get(place.channel, place.recipient),
            locale=person.locale,
            data=data[0],
            items=data,
            title=title,
            text=text,
            html=html,
            template=template,
            context=context,
            category=kind.category,
            unsubscribe=await self._link(kind, place),
            attempt=task.attempt,
            possible_duplicate=doubtful,
        )

    async def _rendered(self, template: str, context: dict[str, Any], locale: str) -> Rendered:
        """What a template says; one that cannot say anything will not do so later."""
        try:
            return await arun(self._store, self._templates.rendering(template, context, locale))
        except BadOption as error:
            raise _told(Permanent(str(error))) from None

    async def _link(self, kind: Kind, place: Place) -> str | None:
        """Where the recipient can unsubscribe, if there is something to unsubscribe from."""
        if self.linker is None or not kind.category:
            return None
        link: str | None = await ask(self.linker, place.recipient, kind.category)
        return link


def _reachable(person: Person, channel: str) -> bool:
    return channel == INBOX or bool(person.addresses.get(channel))


def _annotated(routed: Routed, odd: list[str]) -> Routed:
    """The same, with what was odd about its recipient."""
    return msgspec.structs.replace(routed, reason="; ".join(one for one in (routed.reason, *odd) if one))


def _put_off(seconds: float, reason: str) -> NoReturn:
    """Not now; the reason is kept for people who look."""
    task = current()
    task.leave(msgspec.structs.replace(remembered(task.details), reason=reason))
    raise Snooze(seconds, reason)


def route_to(notification: str, namespace: str, recipient: str, channel: str) -> Route:
    """The way of a notification to a recipient over a channel: always the same one."""
    task = derived(notification, 1, msgspec.json.encode([recipient, channel]).decode(), None)
    return Route(task, notification, namespace, recipient, channel)


def wanted(said: list[Preference], kind: str, channel: str) -> bool:
    """What a recipient wants: the most special of what it has said, where the kind comes before the channel."""
    known = {(one.kind, one.channel): one.wanted for one in said}
    for place in ((kind, channel), (kind, ""), ("", channel), ("", "")):
        if place in known:
            return known[place]
    return True


def remembered(details: Any) -> Memory:
    """What an attempt has left behind."""
    try:
        return msgspec.convert(details or {}, Memory)
    except msgspec.ValidationError:
        return Memory()


def _settled(outcome: Outcome, task: Context, doubtful: bool, counted: bool) -> Routed:
    """What becomes of a route; or the instruction that says it."""
    doubtful = doubtful or outcome.possible_duplicate or outcome.kind is Came.UNKNOWN
    task.leave(Memory(doubtful, outcome.reason, counted))
    match outcome.kind:
        case Came.OK:
            via = outcome.kept if isinstance(outcome.kept, str) else ""
            return Routed("sent", outcome.reason, via, doubtful)
        case Came.UNWANTED:
            return Routed("skipped", outcome.reason, possible_duplicate=doubtful)
        case Came.PERMANENT | Came.GONE:
            raise _told(Permanent(outcome.reason or "the channel refused it"))
        case Came.MISCONFIGURED:
            log.warning("a notification channel is misconfigured: %s", outcome.reason)
            raise Snooze(MISCONFIGURED, f"misconfigured: {outcome.reason}")
        case Came.INFRA:
            raise Snooze(INFRA, outcome.reason)
        case Came.THROTTLED:
            raise Snooze(max(outcome.retry_after or 0.0, LEAST_THROTTLE), outcome.reason)
        case _:
            raise _told(RetryAfter(outcome.retry_after or 0.0, outcome.reason or "the channel failed"))


def _told(instruction: Instruction) -> Instruction:
    instruction.traced = False
    return instruction


def _too_many(kind: Kind) -> str:
    most, window = kind.throttle or (0, 0.0)
    return f"throttled: {most} in {window:g} s"
