"""Notifications over HTTP: posted as JSON to an address that the recipient has given."""

from __future__ import annotations

import time

import msgspec

from durably.core.delivery import Kind, Outcome
from durably.deliveries import classify
from durably.deliveries.classify import Reply
from durably.deliveries.client import Client
from durably.deliveries.webhooks import sign
from durably.errors import BadOption
from durably.notifications.channel import Note

TIMEOUT = 15.0


class HttpChannel:
    """Posts notifications as JSON, signed as webhooks are if there is a secret."""

    def __init__(self, client: Client, secret: str | None = None) -> None:
        if secret is not None:
            sign([secret], "check", 0, b"")
        self._client = client
        self._secret = secret

    async def send(self, note: Note) -> Outcome | None:
        body = msgspec.json.encode(
            {
                "id": note.id,
                "kind": note.kind,
                "recipient": note.recipient,
                "title": note.title,
                "text": note.text,
                "items": note.items,
            }
        )
        now = time.time()
        headers = {"content-type": "application/json", "webhook-id": note.id, "webhook-timestamp": str(int(now))}
        if self._secret is not None:
            headers |= sign([self._secret], note.id, int(now), body)
        try:
            reply = await self._client.post(note.address, headers, body, TIMEOUT)
        except BadOption as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error))
        return classify.federation(reply, now) if isinstance(reply, Reply) else reply

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.aclose()
