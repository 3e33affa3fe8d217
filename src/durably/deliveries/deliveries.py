"""Deliveries, as an application uses them: publish a message to an audience, and see who got it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import msgspec

from durably.client.definition import Definition
from durably.client.engine import Engine
from durably.client.info import TaskInfo, readable, task_info
from durably.client.loop import synchronously
from durably.client.persist import apersist, persist
from durably.core.brief import brief
from durably.core.codec import Codec, encode
from durably.core.delivery import Destination, Message
from durably.core.ids import derived
from durably.core.moment import micros
from durably.core.options import text
from durably.core.task import Draft, Options, State, full_queue, pack_options
from durably.deliveries.audience import Audience, Target, To, resolved
from durably.deliveries.channel import Channel
from durably.deliveries.destinations import Destinations
from durably.deliveries.dispatch import Dispatcher, remembered
from durably.deliveries.drive import Driver
from durably.deliveries.guard import Guard
from durably.deliveries.register import QUEUE, DestinationChange
from durably.deliveries.vault import Secret, Vault
from durably.deliveries.webhooks import new_secret
from durably.errors import BadOption, DurablyError, UnknownTask
from durably.stores.callers.hooks import after_commit
from durably.stores.operations.deliver import Sent, deliveries_of, message_of, publish
from durably.stores.statement import Operation

P = ParamSpec("P")
T = TypeVar("T")
Tries = list[tuple[Destination, str]]
"""Destinations, and the tasks that bring them a message."""
log = logging.getLogger("durably.deliveries")

TASK = "durably.deliver"
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
RESERVED = frozenset(
    {
        "connection",
        "content-digest",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "digest",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "signature",
        "signature-input",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Publication(msgspec.Struct, frozen=True):
    """A message that was accepted, and the tasks that bring it to each destination."""

    id: str
    deliveries: dict[str, str]
    """The task for each destination."""
    refused: dict[str, str] = {}
    """Members of an audience whose address can never be delivered to, and why."""


class DeliveryInfo(msgspec.Struct, frozen=True):
    """How the delivery of a message to one destination stands."""

    destination: str
    task: str
    info: TaskInfo | None
    """None once its history has been pruned."""
    reason: str | None = None
    """Why it ended without arriving, or has not arrived yet."""
    possible_duplicate: bool = False
    """Whether an attempt may have arrived whose answer did not come."""
    kept: Any = None
    """What the channel wants to know at the next attempt, or wanted to have known."""
    interrupted: bool = False
    """Whether an attempt was cut off after that, which could not say what it had done."""


class Deliveries:
    """Messages to peers."""

    def __init__(
        self,
        engine: Engine,
        namespace: str,
        *,
        secrets_key: str | Sequence[str] | None = None,
        at_once: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        keys = [secrets_key] if isinstance(secrets_key, str) else secrets_key
        self._engine = engine
        self._namespace = namespace
        self._vault = Vault(keys)
        self._at_once = at_once
        self.channels: dict[str, Channel] = _usual_channels()
        """How messages get there, by name. It can be changed while workers run."""
        self._trying: set[asyncio.Task[None]] = set()
        self.dispatcher = Dispatcher(engine, namespace, self.channels, self._vault, chance)
        self.destinations = Destinations(engine, namespace, self._vault, self._check)

        engine.leaving.append(self.aclose)

    def drive_with(self, driver: Driver) -> None:
        """Let deliveries be driven from here too, and not only by workers."""
        self.destinations.driver = driver

    async def aclose(self) -> None:
        """Let first attempts end, and close what the channels keep open on the running event loop."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(task for task in self._trying if task.get_loop() is loop), return_exceptions=True)
        for channel in self.channels.values():
            close: Any = getattr(channel, "aclose", None)
            if close is not None:
                await close()

    def audience(self, find: Callable[P, Iterable[Any]]) -> Callable[P, Audience]:
        """Declare how an audience is found; calling it names one, which is looked up when a message is published."""

        def named(*args: P.args, **kwargs: P.kwargs) -> Audience:
            return Audience(find, args, kwargs)

        return named

    def on_change(self, task: Definition[..., Any]) -> Definition[..., Any]:
        """Let this task be told, with one argument `change`, whenever a peer makes its destination stand otherwise.

        It is accepted together with the change: a crash in between cannot lose it. Pauses and resumes are not told.
        """
        try:
            task.signature.encode((), {"change": DestinationChange("acme", "active", "gone", "")})
        except TypeError as error:
            raise BadOption(f"on_change: the task must take one argument `change`: {error}") from None
        self.dispatcher.register.hook = task
        return task

    def publish(
        self,
        kind: str,
        body: Any,
        to: To,
        *,
        sender: str | None = None,
        channel: str = "webhook",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Publication:
        """Accept a message and one delivery for each of the audience, all of them or none.

        A destination that is not known yet is added, with `channel`. Bytes are sent as they are, anything else as JSON.
        With `at_once` the first attempts are made here, before this returns, and within a transaction after its commit,
        if its connection can tell; workers make the others. None does what the application does by default.
        """
        trying = self.tries(at_once, within, "deliveries.apublish")
        message, targets, refused = self._prepared(kind, body, to, sender, channel, content_type, headers)
        sent = self.accept(lambda again, fresh: self.accepting(message, targets, again, fresh), within)
        self.try_at_once(sent, trying, within)
        return _published(message, sent, refused)

    async def apublish(
        self,
        kind: str,
        body: Any,
        to: To,
        *,
        sender: str | None = None,
        channel: str = "webhook",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Publication:
        """The asynchronous twin of publish."""
        trying = self.tries(at_once)
        message, targets, refused = self._prepared(kind, body, to, sender, channel, content_type, headers)
        sent = await self.aaccept(lambda again, fresh: self.accepting(message, targets, again, fresh), within)
        await self.atry_at_once(sent, trying, within)
        return _published(message, sent, refused)

    def accepting(
        self, message: Message, targets: Sequence[Destination], again: bool, fresh: bool, on_dead: str | None = None
    ) -> Operation[Tries]:
        """Accept a message; `on_dead` is the task that is told of every dead letter."""
        draft = self._drafting(message, on_dead)
        return publish(message, targets, draft, complete=self._complete, again=again, fresh=fresh)

    def accept(self, make: Callable[[bool, bool], Operation[T]], within: Any) -> T:
        """Run what `make` answers, in the caller's transaction or again until it is known to have landed."""
        if within is not None:
            return self._engine.store.caller(within).run(make(False, True))
        return persist(self._engine.store, lambda again: make(again, False))

    async def aaccept(self, make: Callable[[bool, bool], Operation[T]], within: Any) -> T:
        """The asynchronous twin of accept."""
        if within is not None:
            return await self._engine.store.caller(within).arun(make(False, True))
        return await apersist(self._engine.store, lambda again: make(again, False))

    def tries(self, at_once: bool | None, within: Any = None, twin: str | None = None) -> bool:
        """Whether the first attempts are made here; who asks for that where it cannot be is told before anything is
        accepted, and what the application does by default is left to the workers there."""
        blocked = within is None and twin is not None and asyncio._get_running_loop() is not None
        if at_once is None:
            return self._at_once and self.destinations.driver is not None and not blocked
        if at_once and self.destinations.driver is None:
            raise BadOption("at_once: the first attempts need the application that the deliveries belong to")
        if at_once and blocked:
            raise BadOption(f"at_once: an event loop is running here, use `await {twin}(...)`")
        return at_once

    def try_at_once(self, sent: Tries, trying: bool, within: Any) -> None:
        """Make the first attempts here, if that is wanted: now, or after the caller's commit."""
        if trying and within is not None:
            after_commit(within, lambda: self._try_soon(sent))
        elif trying:
            synchronously(self._engine, self._try(sent), "deliveries.apublish()")

    async def atry_at_once(self, sent: Tries, trying: bool, within: Any) -> None:
        """The asynchronous twin of try_at_once."""
        if trying and within is not None:
            after_commit(within, lambda: self._try_soon(sent))
        elif trying:
            await self._try(sent)

    def report(self, message: str) -> list[DeliveryInfo]:
        """Who got a message, who did not, why, and when it is tried again."""
        return self._reported(self._engine.store.run(deliveries_of(message, self._namespace)))

    async def areport(self, message: str) -> list[DeliveryInfo]:
        """The asynchronous twin of report."""
        return self._reported(await self._engine.store.arun(deliveries_of(message, self._namespace)))

    def message(self, message: str) -> Message:
        """The message itself."""
        return self._opened(message, self._engine.store.run(message_of(message)))

    async def amessage(self, message: str) -> Message:
        """The asynchronous twin of message."""
        return self._opened(message, await self._engine.store.arun(message_of(message)))

    def _opened(self, message: str, found: Message | None) -> Message:
        if found is None:
            raise UnknownTask(f"there is no message {message!r}")
        return msgspec.structs.replace(found, body=self._engine.codec.decode(found.body))

    def _try_soon(self, sent: Tries) -> None:
        """Make the first attempts after a commit: here, or beside what runs on this event loop."""
        loop = asyncio._get_running_loop()
        if loop is None:
            synchronously(self._engine, self._try(sent), "deliveries.apublish()")
        else:
            trying = loop.create_task(self._try(sent), name="durably-first-attempts")
            self._trying.add(trying)
            trying.add_done_callback(self._trying.discard)

    async def _try(self, sent: Tries) -> None:
        """Make the first attempts; whatever goes wrong is left to the workers."""
        driver = self.destinations.driver
        if driver is not None and sent:
            try:
                await driver.round([destination for destination, _ in sent], len(sent))
            except Exception as error:
                log.warning("the first attempts are left to the workers: %s", error)

    def _reported(self, found: list[Sent]) -> list[DeliveryInfo]:
        return [delivery_info(one, self._engine.codec) for one in found]

    def _check(self, channel: str, address: str) -> None:
        """Let the channel refuse an address before anything waits for it."""
        check: Any = getattr(self.channels.get(channel), "check", None)
        if check is not None:
            check(address)

    def _prepared(
        self,
        kind: str,
        body: Any,
        to: To,
        sender: str | None,
        channel: str,
        content_type: str,
        headers: Mapping[str, str] | None,
    ) -> tuple[Message, list[Destination], dict[str, str]]:
        plain = body if isinstance(body, bytes) else encode(body, f"the message {kind!r}")
        message = Message(
            self._engine.ids.task(None),
            text(kind, "kind"),
            self._engine.payload(f"message {kind}", plain),
            _value("content_type", content_type),
            _checked(headers or {}),
            None if sender is None else text(sender, "sender"),
        )
        targets: list[Destination] = []
        refused: dict[str, str] = {}
        for target in resolved(to, sender):
            try:
                targets.append(self._destination(target, channel))
            except DurablyError as error:
                if not target.found:
                    raise
                refused[target.name] = str(error)
        return message, targets, refused

    def _destination(self, target: Target, channel: str) -> Destination:
        """What becomes of a target if it is not known yet."""
        chosen = target.channel or channel
        if target.address is not None:
            self._check(chosen, target.address)
        return Destination(self._namespace, target.name, chosen, target.address or "", self.destinations.rules)

    def _complete(self, destination: Destination) -> Destination:
        """A new webhook is signed, if there is a key to keep its secret with."""
        if destination.channel != "webhook" or self._vault.empty:
            return destination
        sealed = self._vault.seal([Secret(new_secret())], destination.namespace, destination.name)
        return msgspec.structs.replace(destination, secrets=sealed)

    def _drafting(self, message: Message, on_dead: str | None) -> Callable[[Destination], Draft]:
        queue = full_queue(self._namespace, QUEUE)
        options = pack_options(Options(on_dead=on_dead, on_dead_queue=queue)) if on_dead is not None else None

        def draft(destination: Destination) -> Draft:
            rules, name = destination.rules, destination.name
            ordered = rules.order == "fifo"
            plain = msgspec.json.encode({"message": message.id, "destination": name})
            return Draft(
                derived(message.id, 1, name, name if ordered else None),
                TASK,
                queue,
                self._engine.payload(TASK, plain),
                key=name if ordered else None,
                policy=rules.policy if ordered else None,
                gate=None if ordered else destination.line,
                options=options,
                expires_in=micros(rules.expires),
            )

        return draft


def _usual_channels() -> dict[str, Channel]:
    """Webhooks, if what they need is installed: `pip install 'durably[http]'`."""
    found: dict[str, Channel] = {}
    with suppress(ImportError):
        from durably.deliveries.client import Client
        from durably.deliveries.http import Webhook

        found["webhook"] = Webhook(Client(Guard()))
    return found


def delivery_info(sent: Sent, codec: Codec) -> DeliveryInfo:
    row = sent.task
    if row is None:
        return DeliveryInfo(sent.destination, sent.id, None)
    memory, info = remembered(readable(row.details, codec)), task_info(row, codec)
    done = info.result if info.state == State.DONE and isinstance(info.result, dict) else None
    doubtful = row.crashes > 0 or memory.possible_duplicate if done is None else bool(done.get("possible_duplicate"))
    kept = memory.kept if done is None else done.get("kept")
    late = None if info.state == State.DONE else memory.reason or sent.error
    interrupted = done is None and (row.crashes > 0 or memory.cut)
    return DeliveryInfo(sent.destination, sent.id, info, info.reason or late, doubtful, kept, interrupted)


def _published(message: Message, sent: Tries, refused: dict[str, str]) -> Publication:
    return Publication(message.id, {destination.name: task for destination, task in sent}, refused)


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not HEADER.fullmatch(name):
            raise BadOption(f"headers: {brief(name)} is not the name of a header")
        if name.lower() in RESERVED or name.lower().startswith("webhook-"):
            raise BadOption(f"headers: {name} is set by the channel itself")
        checked[name.lower()] = _value(f"headers: {name}", value)
    return checked


def _value(what: str, value: str) -> str:
    if not isinstance(value, str) or not value.strip() or not VALUE.fullmatch(value):
        raise BadOption(f"{what}: {brief(value)} must be text, without line breaks or other control characters")
    return value
