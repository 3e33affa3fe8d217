"""Mail, as an application uses it: transports, sending, and how each recipient stands."""

from __future__ import annotations

import builtins
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.message import Message as AnyMessage
from typing import Any, Unpack

import msgspec

from durably.client.definition import Call, Definition
from durably.client.engine import Engine
from durably.client.plan import Plan, arun, run
from durably.core.brief import brief
from durably.core.codec import encode
from durably.core.delivery import Message
from durably.core.moment import as_datetime
from durably.deliveries.channel import Delivery
from durably.deliveries.deliveries import Deliveries, Tries, delivery_info
from durably.deliveries.destinations import DestinationInfo
from durably.deliveries.dispatch import Memory
from durably.deliveries.options import RuleOptions
from durably.errors import BadOption, MissingPackage, UnknownTask
from durably.mail.compose import MailOptions, Post, compose
from durably.mail.dkim import Dkim
from durably.mail.info import STATES, About, MailInfo, MailState, MailSummary, mail_state, recipient_infos
from durably.mail.letter import Letter
from durably.mail.library import Templates
from durably.mail.local import Console, Files
from durably.mail.results import once_more
from durably.mail.sifted import Sifted
from durably.mail.suppressions import Suppressions
from durably.mail.templates import Rendered
from durably.observe.events import Event
from durably.stores.operations.control import revive
from durably.stores.operations.deliver import Sent, deliveries_of, is_id, message_of
from durably.stores.operations.mail import Accepted, Listed, Row, accept_mail, find_mail, list_mails
from durably.stores.operations.read import get
from durably.stores.statement import Operation
from durably.worker.context import current

HOOK = "durably.mail.dead"
PATIENCE: RuleOptions = {
    "order": "unordered",
    "schedule": [*(5.0 * 2**step for step in range(10)), *[3600.0] * 48],
    "jitter": 0.25,
    "timeout": 60.0,
    "concurrency": 100,
    "gone_after": None,
}
"""After 5 seconds, then twice as long each time, up to an hour, for two days. A server of ours that is away for long is
no reason to give up what it should send. The connections are fewer than the mails
that are under way: while some are sent, others are taken from the store, or reported to it."""
SCHEMES = {"smtp": "smtp", "smtps": "smtp", "console": "console", "file": "file"}
"""The channel that each kind of address needs."""
_EXAMPLE = MailInfo("", "dead", None, About("", "", [], 0), None, "", as_datetime(0), "", None, [])


class Mail:
    """Mail through transports, which are destinations; each mail is a delivery that knows its recipients."""

    def __init__(self, engine: Engine, namespace: str, deliveries: Deliveries) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace
        self._deliveries = deliveries
        self._hook: Definition[..., Any] | None = None
        self.followers: builtins.list[Callable[[MailInfo], Call[Any] | None]] = []
        """Who else must know of every mail that nobody gets, and what each does then: a task, which may run twice."""
        self.sender: str | None = None
        """In whose name mails are sent that name nobody."""
        self.suppressions = Suppressions(engine, namespace)
        self.templates = Templates(engine, namespace)
        deliveries.channels["console"] = Sifted(Console(), self.suppressions, self._follow)
        deliveries.channels["file"] = Sifted(Files(), self.suppressions, self._follow)
        with suppress(MissingPackage):
            self.configure()

    def configure(
        self,
        *,
        hostname: str | None = None,
        dkim: Dkim | Sequence[Dkim] = (),
        trust: ssl.SSLContext | None = None,
        connections: int = 10,
    ) -> None:
        """Choose what this machine calls itself, the keys that sign what it sends, whom it believes, and how many
        connections it opens to each transport."""
        try:
            from durably.mail.smtp import Smtp
        except ImportError as error:
            raise MissingPackage(f"mail needs the package aiosmtplib: pip install 'durably[smtp]' ({error})") from error
        keys = [dkim] if isinstance(dkim, Dkim) else [*dkim]
        smtp = Smtp(trust=trust, hostname=hostname, dkim=keys, connections=connections)
        self._deliveries.channels["smtp"] = Sifted(smtp, self.suppressions, self._follow)

    def add_transport(
        self, name: str, address: str, *, password: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """Add a transport: `smtp://user@mail.example.org:587`, `smtps://...`, `file:///var/outbox`, or `console:`.

        TLS is required, unless `?tls=none`.
        """
        chosen: RuleOptions = {**PATIENCE, **options}
        return self._deliveries.destinations.add(name, address, channel=_channel(address), secret=password, **chosen)

    async def aadd_transport(
        self, name: str, address: str, *, password: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """The asynchronous twin of add_transport."""
        chosen: RuleOptions = {**PATIENCE, **options}
        channel = _channel(address)
        return await self._deliveries.destinations.aadd(name, address, channel=channel, secret=password, **chosen)

    def on_dead(self, task: Definition[..., Any]) -> Definition[..., Any]:
        """Let this task be told, with one argument `mail`, of every mail that is given up.

        It is accepted because of the dead letter, in a task of its own: a crash in between cannot lose it.
        """
        try:
            task.signature.encode((), {"mail": _EXAMPLE})
        except TypeError as error:
            raise BadOption(f"on_dead: the task must take one argument `mail`: {error}") from None
        self._hook = task
        return task

    def send(self, what: str | AnyMessage | None = None, /, **options: Unpack[MailOptions]) -> Accepted:
        """Accept a mail: a template by its name, a message that is ready, or the words in `subject` and `text`.

        It goes out once for everybody who is named. With a `key` that was used before nothing is accepted, and the
        answer is the mail of that time.
        """
        within = options.get("within")
        trying = self._deliveries.tries(options.get("at_once"), within, "mail.asend")
        post = run(self._store, self._composed(what, options))
        accepted, sent = self._deliveries.accept(lambda again, fresh: self._accepting(post, again, fresh), within)
        self._deliveries.try_at_once(sent or [], trying, within)
        return accepted

    async def asend(self, what: str | AnyMessage | None = None, /, **options: Unpack[MailOptions]) -> Accepted:
        """The asynchronous twin of send."""
        within = options.get("within")
        trying = self._deliveries.tries(options.get("at_once"))
        post = await arun(self._store, self._composed(what, options))
        accepted, sent = await self._deliveries.aaccept(
            lambda again, fresh: self._accepting(post, again, fresh), within
        )
        await self._deliveries.atry_at_once(sent or [], trying, within)
        return accepted

    async def aready(self, transport: str = "main") -> bool:
        """Whether mails can be accepted at all: there is such a transport, and somebody in whose name they are sent."""
        try:
            await self._deliveries.destinations.aget(transport)
        except UnknownTask:
            return False
        return self.sender is not None

    def preview(self, template: str, *, context: Mapping[str, Any] | None = None, locale: str = "") -> Rendered:
        """What a template would say."""
        return run(self._store, self.templates.rendering(template, context or {}, locale))

    async def apreview(self, template: str, *, context: Mapping[str, Any] | None = None, locale: str = "") -> Rendered:
        """The asynchronous twin of preview."""
        return await arun(self._store, self.templates.rendering(template, context or {}, locale))

    def get(self, mail: str) -> MailInfo:
        """How a mail stands, by its id or its key, and each of its recipients."""
        return run(self._store, self._found(mail))

    async def aget(self, mail: str) -> MailInfo:
        """The asynchronous twin of get."""
        return await arun(self._store, self._found(mail))

    def list(
        self, *, state: MailState | None = None, before: str | None = None, limit: int = 50
    ) -> builtins.list[MailSummary]:
        """Mails, the newest first, from those `before` an id."""
        return [self._summary(one) for one in self._store.run(self._listing(state, before, limit))]

    async def alist(
        self, *, state: MailState | None = None, before: str | None = None, limit: int = 50
    ) -> builtins.list[MailSummary]:
        """The asynchronous twin of list."""
        return [self._summary(one) for one in await self._store.arun(self._listing(state, before, limit))]

    def source(self, mail: str) -> bytes:
        """A mail as it is sent, with all its headers."""
        return run(self._store, self._read(mail))[2].source

    async def asource(self, mail: str) -> bytes:
        """The asynchronous twin of source."""
        return (await arun(self._store, self._read(mail)))[2].source

    def resend(self, mail: str) -> MailInfo:
        """Try a mail again that has come to its end, for those of its recipients who did not get it."""
        return run(self._store, self._resent(mail))

    async def aresend(self, mail: str) -> MailInfo:
        """The asynchronous twin of resend."""
        return await arun(self._store, self._resent(mail))

    async def tell(self, letter: dict[str, Any]) -> None:
        """What follows the dead letter of a mail: the hook is told of it, in a task of its own."""
        tasks = await self._store.arun(get([letter["id"]]))
        if not tasks:
            return
        message = msgspec.json.decode(self._engine.codec.decode(tasks[0].payload))["message"]
        mail = await arun(self._store, self._found(message))
        if self._hook is not None:
            current().then(self._hook.call(mail=mail))
        for call in self._follow_ups(mail):
            current().then(call)

    async def _follow(self, delivery: Delivery, reason: str) -> None:
        """What follows when everybody whom a mail is for gets no mail: accepted before the mail is called off."""
        if self.followers:
            mail = await arun(self._store, self._found(delivery.message.id))
            mail = msgspec.structs.replace(mail, state="cancelled", reason=reason)
            drafts = [call.draft() for call in self._follow_ups(mail)]
            spawned = [
                self._engine.respawn(draft, delivery.task, delivery.attempt, index)
                for index, draft in enumerate(drafts)
            ]
            if spawned:
                await self._engine.aaccept(spawned, None)

    def _follow_ups(self, mail: MailInfo) -> builtins.list[Call[Any]]:
        calls = [follow(mail) for follow in self.followers]
        return [call for call in calls if call is not None]

    def _composed(self, what: Any, options: MailOptions) -> Plan[Post]:
        return compose(self._engine, self._namespace, self.templates, what, options, self.sender)

    def _accepting(self, post: Post, again: bool, fresh: bool) -> Operation[tuple[Accepted, Tries | None]]:
        return accept_mail(post.row, self._deliveries.accepting(post.message, [post.target], again, fresh, HOOK))

    def _read(self, mail: str) -> Plan[tuple[Row, About, Letter]]:
        if not isinstance(mail, str):
            raise BadOption(f"mail: {brief(mail)} must be the id of a mail, or its key")
        row: Row | None = yield find_mail(self._namespace, mail)
        message: Message | None = None
        if row is not None:
            message = yield message_of(row.id)
        if row is None or message is None:
            raise UnknownTask(f"there is no mail {mail!r}")
        try:
            about = msgspec.json.decode(self._engine.codec.decode(row.about), type=About)
            return row, about, msgspec.msgpack.decode(self._engine.codec.decode(message.body), type=Letter)
        except Exception as error:
            raise BadOption(f"the mail {mail!r} cannot be read: {type(error).__name__}: {error}") from None

    def _found(self, mail: str) -> Plan[MailInfo]:
        row, about, made = yield from self._read(mail)
        sent: builtins.list[Sent] = yield deliveries_of(row.id, self._namespace)
        if not sent:
            raise UnknownTask(f"there is no mail {mail!r}")
        one = delivery_info(sent[0], self._engine.codec)
        state = mail_state(None if one.info is None else one.info.state)
        recipients = recipient_infos(made.recipients, one.kept, state, one.interrupted)
        accepted = as_datetime(row.created_at)
        # What became of the task is no word about the mail: nobody discarded that.
        reason = None if one.reason is None else one.reason.removeprefix("discarded: ")
        return MailInfo(
            row.id, state, reason, about, row.key, one.destination, accepted, one.task, one.info, recipients
        )

    def _resent(self, mail: str) -> Plan[MailInfo]:
        found = yield from self._found(mail)
        if found.state in ("waiting", "forgotten"):
            raise BadOption(f"the mail {mail!r} is {found.state}: only what has come to its end can be sent again")
        missing = [one.address for one in found.recipients if one.state != "sent"]
        if not missing:
            raise BadOption(f"the mail {mail!r} was sent to everybody: there is nobody to send it to again")
        against = yield from self.suppressions.asking(missing, found.about.category)
        if len(against) == len(missing):
            first, why = next(iter(against.items()))
            raise BadOption(
                f"the mail {mail!r} would reach nobody: {first} is {why.reason}: take it off the list first"
            )
        revived: bool = yield revive(found.task, (yield from self._remembered(found.id)))
        if not revived:
            raise BadOption(f"the mail {mail!r} has changed meanwhile: look at it again")
        self._engine.events.emit(Event("replayed", found.task))
        return (yield from self._found(found.id))

    def _remembered(self, mail: str) -> Plan[bytes | None]:
        """What a new cycle must know of the one before, whatever becomes of its attempts: who has the mail, or may."""
        row, _, made = yield from self._read(mail)
        sent: builtins.list[Sent] = yield deliveries_of(row.id, self._namespace)
        one = delivery_info(sent[0], self._engine.codec)
        if one.info is None:
            return None
        memory = Memory(
            one.possible_duplicate, kept=once_more(made.recipients, one.kept, one.interrupted), charged=True
        )
        return self._engine.payload(one.info.name, encode(memory, "what is kept of a mail"))

    def _listing(self, state: str | None, before: str | None, limit: int) -> Operation[builtins.list[Listed]]:
        if state is not None and state not in STATES:
            raise BadOption(f"state: {brief(state)} must be one of {', '.join(STATES)}")
        if before is not None and not is_id(before):
            raise BadOption(f"before: {brief(before)} is not the id of a mail")
        return list_mails(self._namespace, before, None if state is None else STATES[state], limit)

    def _summary(self, one: Listed) -> MailSummary:
        try:
            about = msgspec.json.decode(self._engine.codec.decode(one.mail.about), type=About)
        except Exception:
            about = None
        accepted = as_datetime(one.mail.created_at)
        return MailSummary(one.mail.id, mail_state(one.state), about, one.mail.key, one.transport, accepted)


def _channel(address: str) -> str:
    """The channel that an address needs."""
    scheme = address.partition(":")[0].lower() if isinstance(address, str) else ""
    if scheme not in SCHEMES:
        raise BadOption(
            f"transport: {brief(address)} must look like smtp://user@mail.example.org:587, smtps://..., "
            "file:///var/outbox or console:"
        )
    return SCHEMES[scheme]
