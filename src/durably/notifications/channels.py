"""The channels that need nothing else: the inbox in the application itself, and the outbox."""

from __future__ import annotations

import msgspec

from durably.client.engine import Engine
from durably.core.delivery import Kind, Outcome
from durably.errors import BadOption, DurablyError, MissingPackage
from durably.mail.compose import MailOptions
from durably.mail.mail import Mail
from durably.notifications.channel import Note
from durably.stores.operations.notify import ROUTE_KEY, Route, put_in_inbox


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an entry of an inbox shows."""

    title: str
    text: str = ""
    html: str | None = None
    data: object = None


class InboxChannel:
    """Keeps notifications for the application to show."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._engine = engine
        self._namespace = namespace

    async def send(self, note: Note) -> Outcome | None:
        content = msgspec.json.encode(Content(note.title, note.text, note.html, note.data))
        route = Route(note.id, note.notification, self._namespace, note.recipient, "inbox")
        sealed = self._engine.payload("inbox", content)
        await self._engine.store.arun(put_in_inbox(route, note.kind, sealed))
        return None


class MailChannel:
    """Hands notifications to the outbox, which knows what becomes of them; each once, whatever happens in between."""

    renders = True

    def __init__(self, mail: Mail, transport: str = "main") -> None:
        self._mail = mail
        self._transport = transport

    async def send(self, note: Note) -> Outcome | None:
        options: MailOptions = {
            "to": note.address,
            "key": f"{ROUTE_KEY}{note.id}",
            "category": note.category,
            "unsubscribe": note.unsubscribe,
            "transport": self._transport,
        }
        if note.template is not None:
            options |= {"context": note.context, "locale": note.locale}
        else:
            options |= {"subject": note.title, "text": note.text, "html": note.html}
        try:
            sent = await self._mail.asend(note.template, **options)
        except MissingPackage as error:
            return Outcome(kind=Kind.MISCONFIGURED, reason=str(error))
        except BadOption as error:
            ready = await self._mail.aready(self._transport)
            return Outcome(kind=Kind.PERMANENT if ready else Kind.MISCONFIGURED, reason=str(error))
        except DurablyError as error:
            # Its key lets it be accepted once, whether it was or not.
            return Outcome(kind=Kind.INFRA, reason=str(error))
        return Outcome(kind=Kind.OK, kept=sent.id)
