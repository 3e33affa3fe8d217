"""Mail, as an application uses it: transports, sending, and how each recipient stands."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import msgspec

from durably.client.engine import Engine
from durably.core.task import State
from durably.deliveries.deliveries import Deliveries, DeliveryInfo, Publication
from durably.deliveries.destinations import DestinationInfo
from durably.deliveries.options import RuleOptions
from durably.errors import BadOption, UnknownTask
from durably.mail.letter import Attachment, Letter, letter
from durably.mail.results import Recipient, kept

CHANNEL = "smtp"
KIND = "durably.mail"
PATIENCE: RuleOptions = {
    "order": "unordered",
    "schedule": [*(5.0 * 2**step for step in range(10)), *[3600.0] * 48],
    "jitter": 0.25,
    "timeout": 60.0,
}
"""After 5 seconds, then twice as long each time, up to an hour, for two days."""


class RecipientInfo(msgspec.Struct, frozen=True):
    """How a mail to one recipient stands."""

    address: str
    state: Literal["waiting", "sent", "refused", "given up"]
    said: str
    """What its server said last, or why nobody could be asked."""
    possible_duplicate: bool
    """Whether it may have got the mail twice."""


class MailInfo(msgspec.Struct, frozen=True):
    """How a mail stands."""

    id: str
    task: str
    transport: str
    state: str
    reason: str | None
    recipients: builtins.list[RecipientInfo]


class Mail:
    """Mail through transports, which are destinations whose channel is `smtp`."""

    def __init__(self, engine: Engine, deliveries: Deliveries) -> None:
        self._engine = engine
        self._deliveries = deliveries

    def add_transport(
        self, name: str, address: str, *, password: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """Add a transport: `smtp://user@mail.example.org:587`, or `smtps://`. TLS is required, unless `?tls=none`."""
        chosen: RuleOptions = {**PATIENCE, **options}
        return self._deliveries.destinations.add(name, address, channel=CHANNEL, secret=password, **chosen)

    async def aadd_transport(
        self, name: str, address: str, *, password: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """The asynchronous twin of add_transport."""
        chosen: RuleOptions = {**PATIENCE, **options}
        return await self._deliveries.destinations.aadd(name, address, channel=CHANNEL, secret=password, **chosen)

    def send(
        self,
        *,
        sender: str,
        to: str | Sequence[str],
        subject: str,
        text: str | None = None,
        html: str | None = None,
        cc: str | Sequence[str] = (),
        bcc: str | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        attachments: Sequence[Attachment] = (),
        transport: str = "main",
        within: Any = None,
        at_once: bool = False,
    ) -> str:
        """Accept a mail; its id. It goes out through the transport, once for everybody who is named."""
        return self._deliveries.publish(
            KIND,
            self._written(sender, to, subject, text, html, cc, bcc, headers, attachments),
            transport,
            within=within,
            at_once=at_once,
        ).id

    async def asend(
        self,
        *,
        sender: str,
        to: str | Sequence[str],
        subject: str,
        text: str | None = None,
        html: str | None = None,
        cc: str | Sequence[str] = (),
        bcc: str | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        attachments: Sequence[Attachment] = (),
        transport: str = "main",
        within: Any = None,
        at_once: bool = False,
    ) -> str:
        """The asynchronous twin of send."""
        sent: Publication = await self._deliveries.apublish(
            KIND,
            self._written(sender, to, subject, text, html, cc, bcc, headers, attachments),
            transport,
            within=within,
            at_once=at_once,
        )
        return sent.id

    def get(self, mail: str) -> MailInfo:
        """How a mail stands, and each of its recipients."""
        return self._told(mail, self._deliveries.message(mail).body, self._deliveries.report(mail))

    async def aget(self, mail: str) -> MailInfo:
        """The asynchronous twin of get."""
        return self._told(mail, (await self._deliveries.amessage(mail)).body, await self._deliveries.areport(mail))

    def _written(
        self,
        sender: str,
        to: str | Sequence[str],
        subject: str,
        text: str | None,
        html: str | None,
        cc: str | Sequence[str],
        bcc: str | Sequence[str],
        headers: Mapping[str, str] | None,
        attachments: Sequence[Attachment],
    ) -> bytes:
        made = letter(
            id=self._engine.ids.task(None),
            now=self._engine.clock.now(),
            sender=sender,
            to=to,
            cc=cc,
            bcc=bcc,
            subject=subject,
            text=text,
            html=html,
            headers=headers,
            attachments=attachments,
        )
        return msgspec.json.encode(made)

    def _told(self, mail: str, body: bytes, deliveries: Sequence[DeliveryInfo]) -> MailInfo:
        if not deliveries:
            raise UnknownTask(f"there is no mail {mail!r}")
        try:
            made = msgspec.json.decode(body, type=Letter)
        except msgspec.MsgspecError:
            raise BadOption(f"the message {mail!r} is not a mail") from None
        [one] = deliveries
        state = "forgotten" if one.info is None else str(one.info.state)
        results = kept(made.recipients, one.kept)
        recipients = [
            RecipientInfo(address, _state(found, state), found.said, one.possible_duplicate and found.state == "sent")
            for address, found in results.items()
        ]
        return MailInfo(mail, one.task, one.destination, state, one.reason, recipients)


def _state(found: Recipient, mail: str) -> Literal["waiting", "sent", "refused", "given up"]:
    return "given up" if found.state == "waiting" and mail in (State.DEAD, State.CANCELLED) else found.state
