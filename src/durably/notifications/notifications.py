"""Notifications, as an application uses them: a catalogue, people, channels, and `notify`."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from durably.client.definition import Call
from durably.client.engine import Engine
from durably.client.loop import synchronously
from durably.client.persist import apersist, persist
from durably.client.plan import Plan, arun, run
from durably.core.brief import brief
from durably.core.codec import encode
from durably.core.moment import Duration, micros
from durably.core.options import text
from durably.core.retry import Retry
from durably.core.task import Draft, clean, full_queue
from durably.deliveries.guard import Guard
from durably.errors import BadOption, DurablyError, StoreUnavailable, UnknownTask
from durably.mail.info import MailInfo
from durably.mail.mail import Mail
from durably.notifications.asking import Linker, Resolver
from durably.notifications.catalogue import Catalogue, Kind
from durably.notifications.channel import NotificationChannel
from durably.notifications.channels import InboxChannel, MailChannel
from durably.notifications.inbox import Inbox, Preferences
from durably.notifications.info import NotificationInfo, notification_info
from durably.notifications.router import DEAD, QUEUE, Router, route_to
from durably.stores.callers.hooks import after_commit
from durably.stores.operations.claim import claim_of
from durably.stores.operations.deliver import is_id
from durably.stores.operations.notify import (
    ROUTE_KEY,
    Found,
    Route,
    Row,
    Stands,
    find_notifications,
    list_notifications,
    notify,
    prune_throttles,
)
from durably.stores.statement import Operation
from durably.worker.execute import AnyDefinition
from durably.worker.options import worker_options
from durably.worker.worker import Surroundings, Worker

log = logging.getLogger("durably.notifications")
R = TypeVar("R", bound=Resolver)
L = TypeVar("L", bound=Linker)

PATIENCE = Retry.exponential(attempts=8, base="10s", factor=2.0, cap="10m", jitter=0.25)
"""How often a route is tried, and when."""
COUNTED_FOR = 30 * 86_400.0
"""Seconds for which it is known how many notifications somebody got, however short the window is."""
MOST_RECIPIENTS = 10_000
MOST_AT_ONCE = 100


class Notified(msgspec.Struct, frozen=True):
    """A notification that was accepted."""

    id: str
    new: bool = True
    """Whether there was none of its kind with the same key."""
    problem: str | None = None
    """What is wrong with it: it is kept, but nobody gets it."""


class Intent(msgspec.Struct, frozen=True):
    """A notification that is ready to be accepted."""

    row: Row
    routes: builtins.list[Route] = []
    drafts: builtins.list[Draft] = []
    line: str = ""


class Notifications:
    """What happened, for those who want to know."""

    def __init__(self, engine: Engine, namespace: str, mail: Mail, *, at_once: bool = False) -> None:
        self._engine = engine
        self._at_once = at_once
        self._store = engine.store
        self._namespace = namespace
        self.kinds = Catalogue()
        """Every kind that is declared, by its name."""
        self.channels: dict[str, NotificationChannel] = {
            "inbox": InboxChannel(engine, namespace),
            "mail": MailChannel(mail),
            **_over_http(),
            **_over_apprise(),
        }
        """How people are reached, by name. It can be changed while workers run."""
        self._templates = mail.templates
        self.router = Router(engine, namespace, self.kinds, self.channels, mail.templates)
        self.inbox = Inbox(engine, namespace, self.kinds)
        self.preferences = Preferences(engine, namespace)
        self._definitions: dict[str, AnyDefinition] = {}
        self._surroundings: Surroundings | None = None
        self._trying: set[asyncio.Task[None]] = set()
        engine.pruning.append(self._pruning)
        engine.arriving.append(self._acheck)
        engine.leaving.append(self.aclose)

    def serve_with(self, *definitions: AnyDefinition, surroundings: Surroundings | None = None) -> None:
        """The tasks behind notifications, and what first attempts get from outside."""
        self._definitions = {one.name: one for one in definitions}
        self._surroundings = surroundings
        self.router.follow = self._following

    async def aclose(self) -> None:
        """Let first attempts end, and close what the channels keep open on the running event loop."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(task for task in self._trying if task.get_loop() is loop), return_exceptions=True)
        for channel in self.channels.values():
            close: Any = getattr(channel, "aclose", None)
            if close is not None:
                await close()

    def kind(
        self,
        name: str,
        channels: Sequence[str] | Mapping[str, Duration],
        *,
        schema: Any = None,
        critical: bool = False,
        templates: Mapping[str, str] | None = None,
        fallback: Mapping[str, str] | None = None,
        digest: Duration | Mapping[str, Duration] | None = None,
        throttle: str | None = None,
        cancel_on_read: bool = False,
        category: str = "",
    ) -> Kind:
        """Declare a kind of notification.

        - `channels` are tried at once, or after the delays that are given with them.
        - `schema` is the type of the data, as msgspec has it: what does not fit is recorded as malformed.
        - `critical` ones ignore preferences, quiet hours, digests and throttling.
        - `templates` names the template for each channel; without one the data is shown line by line.
        - `fallback` names the channel to try when one is confirmed not to reach somebody, or there is no address.
        - `digest` collects for a window, and sends one message; the inbox is left out unless it is named.
        - `throttle`, such as "5/1h", is for each recipient and channel: what is too much is skipped.
        - `cancel_on_read` calls off what is still on its way when it was read in the inbox.
        - `category` is what people can unsubscribe from, by mail.
        """
        return self.kinds.add(
            name,
            channels,
            schema=schema,
            critical=critical,
            templates=templates,
            fallback=fallback,
            digest=digest,
            throttle=throttle,
            cancel_on_read=cancel_on_read,
            category=category,
        )

    def resolver(self, find: R) -> R:
        """Let this function tell who a recipient is: a `Person`, or None for nobody.

        As with tasks, a coroutine runs on the event loop, and a plain function in a thread.
        """
        self.router.resolver = find
        return find

    def unsubscribe_link(self, find: L) -> L:
        """Let this function tell where a recipient can unsubscribe from a category, by one click in a mail program.

        It is asked for the mails of kinds with a `category`; its answer is an `https:` link that takes a POST, a
        `mailto:` link, or None.
        """
        self.router.linker = find
        return find

    def notify(
        self,
        kind: str,
        recipient: str | Sequence[str],
        data: Any = None,
        *,
        key: str | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Notified:
        """Accept a notification with one route for each recipient and channel, all of them or none.

        The same kind and key is the same notification. What is malformed is recorded and answered, and never raised.
        With `at_once` the first attempts are made here, and within a transaction after its commit; None does what the
        application does by default.
        """
        blocked = within is None and asyncio._get_running_loop() is not None
        if at_once and blocked:
            raise BadOption("at_once: an event loop is running here, use `await app.anotify(...)`")
        trying = self._at_once and not blocked if at_once is None else at_once
        run(self._store, self._checked())
        intent = self._intent(kind, recipient, data, key, trying)
        if within is not None:
            stands = self._store.caller(within).run(self._accepting(intent, False, True))
        else:
            stands = persist(self._store, lambda again: self._accepting(intent, again, False))
        if trying and stands.new and within is not None:
            after_commit(within, lambda: self._try_soon(intent))
        elif trying and stands.new:
            synchronously(self._engine, self._try(intent), "app.anotify()")
        return Notified(stands.id, stands.new, stands.problem)

    async def anotify(
        self,
        kind: str,
        recipient: str | Sequence[str],
        data: Any = None,
        *,
        key: str | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Notified:
        """The asynchronous twin of notify."""
        trying = self._at_once if at_once is None else at_once
        await arun(self._store, self._checked())
        intent = self._intent(kind, recipient, data, key, trying)
        if within is not None:
            stands = await self._store.caller(within).arun(self._accepting(intent, False, True))
        else:
            stands = await apersist(self._store, lambda again: self._accepting(intent, again, False))
        if trying and stands.new and within is not None:
            after_commit(within, lambda: self._try_soon(intent))
        elif trying and stands.new:
            await self._try(intent)
        return Notified(stands.id, stands.new, stands.problem)

    def get(self, notification: str) -> NotificationInfo:
        """A notification, and how each of its routes stands."""
        return self._one(notification, self._store.run(self._finding(notification)))

    async def aget(self, notification: str) -> NotificationInfo:
        """The asynchronous twin of get."""
        return self._one(notification, await self._store.arun(self._finding(notification)))

    def list(
        self, *, kind: str | None = None, recipient: str | None = None, before: str | None = None, limit: int = 50
    ) -> builtins.list[NotificationInfo]:
        """Notifications, the newest first, from those `before` an id."""
        return self._infos(self._store.run(self._listing(kind, recipient, before, limit)))

    async def alist(
        self, *, kind: str | None = None, recipient: str | None = None, before: str | None = None, limit: int = 50
    ) -> builtins.list[NotificationInfo]:
        """The asynchronous twin of list."""
        return self._infos(await self._store.arun(self._listing(kind, recipient, before, limit)))

    def mail_died(self, mail: MailInfo) -> Call[Any] | None:
        """What follows when nobody gets a mail that a route had become: another channel may reach its recipient."""
        if mail.key is None or not mail.key.startswith(ROUTE_KEY):
            return None
        route, reason = mail.key.removeprefix(ROUTE_KEY), mail.reason or ""
        return self._following(route, reason)

    def _following(self, route: str, reason: str) -> Call[Any]:
        return self._definitions[DEAD].call(letter={"id": route, "reason": reason})

    def _checked(self) -> Plan[None]:
        """Refuse kinds that name what is not there, before the first of them is used."""
        if self.kinds.unchecked:
            templates: set[str] = set()
            if any(kind.templates for kind in self.kinds.unchecked):
                templates = yield from self._templates.names()
            self.kinds.check(self.channels, templates)

    async def _acheck(self) -> None:
        """The same before a worker begins, which waits for its store by itself."""
        with suppress(StoreUnavailable):
            await arun(self._store, self._checked())

    def _pruning(self, limit: int) -> Operation[int]:
        """Forget what throttling has counted in windows that are over."""
        longest = max((kind.throttle[1] for kind in self.kinds.values() if kind.throttle is not None), default=0.0)
        return prune_throttles(self._namespace, micros(max(longest, COUNTED_FOR)), limit)

    def _finding(self, notification: str) -> Operation[builtins.list[Found]]:
        return find_notifications(self._namespace, [text(notification, "notification")])

    def _listing(
        self, kind: str | None, recipient: str | None, before: str | None, limit: int
    ) -> Operation[builtins.list[Found]]:
        if before is not None and not is_id(text(before, "before")):
            raise BadOption(f"before: {brief(before)} is not the id of a notification")
        return list_notifications(self._namespace, before, kind, recipient, limit)

    def _one(self, notification: str, found: builtins.list[Found]) -> NotificationInfo:
        if not found:
            raise UnknownTask(f"there is no notification {notification!r}")
        return notification_info(found[0], self._engine.codec)

    def _infos(self, found: builtins.list[Found]) -> builtins.list[NotificationInfo]:
        return [notification_info(one, self._engine.codec) for one in found]

    def _accepting(self, intent: Intent, again: bool, fresh: bool) -> Operation[Stands]:
        return notify(intent.row, intent.routes, intent.drafts, again, fresh)

    def _intent(self, kind: Any, recipient: Any, data: Any, key: Any, at_once: bool) -> Intent:
        """What is to be accepted: the notification with its routes, or that somebody meant one."""
        notification = self._engine.ids.task(QUEUE)
        try:
            known = self._kind(kind)
            recipients = _recipients(recipient)
            plain = encode(msgspec.convert(data, known.schema) if known.schema is not None else data, "its data")
            row = Row(
                notification,
                self._namespace,
                known.name,
                self._engine.payload(f"notification {known.name}", plain),
                None if key is None else text(key, "key"),
            )
        except Exception as error:
            # What the application's own types raise is no better a reason to fail in its face.
            problem = clean(f"{kind if isinstance(kind, str) else brief(kind)}: {_told(error)}", 500)
            log.warning("a notification is malformed, and kept as such: %s", problem)
            return Intent(self._malformed(notification, kind, recipient, data, key, problem))
        line = f"{QUEUE}/{notification}" if at_once else ""
        routes = [
            route_to(notification, self._namespace, one, channel) for one in recipients for channel in known.channels
        ]
        return Intent(row, routes, [self.router.draft(one, known, gate=line or None) for one in routes], line)

    def _kind(self, kind: Any) -> Kind:
        if not isinstance(kind, str) or kind not in self.kinds:
            raise BadOption(f"no such kind is declared; there are {', '.join(sorted(self.kinds)) or 'none'}")
        return self.kinds[kind]

    def _malformed(self, notification: str, kind: Any, recipient: Any, data: Any, key: Any, problem: str) -> Row:
        """Whatever can be kept of it."""
        kept: Any = {"recipient": brief(recipient), "data": brief(data)}
        with suppress(Exception):
            kept = msgspec.json.decode(encode({"recipient": recipient, "data": data}, "it"))
        try:
            stored = self._engine.payload("notification", msgspec.json.encode(kept))
        except DurablyError:
            stored = self._engine.codec.encode(msgspec.json.encode({"data": brief(data)}))
        name = clean(kind, 200) if isinstance(kind, str) and kind else "?"
        known = None
        with suppress(BadOption):
            known = None if key is None else text(key, "key")
        return Row(notification, self._namespace, name, stored, known, problem)

    def _try_soon(self, intent: Intent) -> None:
        """Make the first attempts after a commit: here, or beside what runs on this event loop."""
        loop = asyncio._get_running_loop()
        if loop is None:
            synchronously(self._engine, self._try(intent), "app.anotify()")
        else:
            trying = loop.create_task(self._try(intent), name="durably-first-attempts")
            self._trying.add(trying)
            trying.add_done_callback(self._trying.discard)

    async def _try(self, intent: Intent) -> None:
        """Make the first attempts; whatever goes wrong is left to the workers."""
        room = min(len(intent.routes), MOST_AT_ONCE)
        if not room:
            return
        queue = full_queue(self._namespace, QUEUE)
        options = worker_options((queue,), concurrency=room, lease=150.0)
        worker = Worker(self._engine, self._definitions, options, surroundings=self._surroundings)
        try:
            await worker.one_pass(room, lambda session: claim_of(session, queue, [], [intent.line], room))
        except Exception as error:
            log.warning("the first attempts are left to the workers: %s", error)


def _told(error: Exception) -> str:
    """What an exception says; those that are not meant for people say what they are too."""
    try:
        said = str(error)
    except Exception:
        said = ""
    expected = isinstance(error, DurablyError | msgspec.ValidationError | TypeError | ValueError)
    return said if expected and said else f"{type(error).__name__}: {said}"


def _recipients(given: Any) -> builtins.list[str]:
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not listed:
        raise BadOption(f"recipient: {brief(given)} must be a name, or a list of names")
    if len(listed) > MOST_RECIPIENTS:
        raise BadOption(
            f"recipient: {len(listed):,} are too many for one notification; {MOST_RECIPIENTS:,} are allowed"
        )
    return builtins.list(dict.fromkeys(text(one, "recipient") for one in listed))


def _over_http() -> dict[str, NotificationChannel]:
    with suppress(ImportError):
        from durably.deliveries.client import Client
        from durably.notifications.http import HttpChannel

        return {"http": HttpChannel(Client(Guard()))}
    return {}


def _over_apprise() -> dict[str, NotificationChannel]:
    with suppress(ImportError):
        from durably.notifications.apprise import AppriseChannel

        return {"apprise": AppriseChannel()}
    return {}
