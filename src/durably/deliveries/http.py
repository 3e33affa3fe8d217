"""Channels over HTTP: webhooks, and federation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from durably.core.delivery import Kind, Outcome
from durably.deliveries import classify
from durably.deliveries.channel import Delivery
from durably.deliveries.classify import Reply
from durably.deliveries.client import Client
from durably.deliveries.federation import Key, sign_cavage, sign_rfc9421
from durably.deliveries.webhooks import sign
from durably.errors import BadOption, Refused

SIGNERS = {"rfc9421": sign_rfc9421, "cavage": sign_cavage}


class Webhook:
    """POST with Standard Webhooks signatures."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def deliver(self, delivery: Delivery) -> Outcome:
        message, now = delivery.message, delivery.now
        headers = {**message.headers, "content-type": message.content_type}
        if delivery.secrets:
            try:
                headers |= sign(delivery.secrets, message.id, int(now), message.body)
            except BadOption as error:
                return Outcome(kind=Kind.MISCONFIGURED, reason=str(error))
        else:
            headers |= {"webhook-id": message.id, "webhook-timestamp": str(int(now))}
        reply = await self._client.post(
            delivery.destination.address, headers, message.body, delivery.destination.rules.timeout
        )
        return classify.webhook(reply, now) if isinstance(reply, Reply) else reply

    def check(self, address: str) -> None:
        """Refuse an address that could never be posted to."""
        self._client.guard.target(address)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.aclose()


class Federation:
    """POST with HTTP signatures in the name of the message's sender.

    RFC 9421 comes first, then what older servers understand; which of them a peer takes is remembered.
    """

    def __init__(self, client: Client, key_for: Callable[[str], Awaitable[Key]]) -> None:
        self._client = client
        self._key_for = key_for

    async def deliver(self, delivery: Delivery) -> Outcome:
        try:
            key = await self._key_for(delivery.message.sender or "")
        except LookupError as error:
            reason = f"there is no key for {delivery.message.sender!r}: {error}"
            return Outcome(kind=Kind.PERMANENT, reason=reason, asked=False)
        known = delivery.destination.condition.learned
        first = known if known in SIGNERS else "rfc9421"
        other = "cavage" if first == "rfc9421" else "rfc9421"
        until = asyncio.get_running_loop().time() + delivery.destination.rules.timeout
        reply = await self._post(delivery, key, first, until)
        if not (isinstance(reply, Reply) and reply.status in (400, 401)):
            return self._judged(reply, delivery)
        if until <= asyncio.get_running_loop().time():
            return self._judged(reply, delivery)
        second = await self._post(delivery, key, other, until)
        cannot_sign = isinstance(second, Outcome) and second.kind is Kind.PERMANENT
        if cannot_sign or (isinstance(second, Reply) and second.status in (400, 401)):
            return self._judged(reply, delivery)
        judged = self._judged(second, delivery)
        return msgspec.structs.replace(judged, learned=other) if judged.kind is Kind.OK else judged

    async def _post(self, delivery: Delivery, key: Key, kind: str, until: float) -> Reply | Outcome:
        message = delivery.message
        try:
            # What is signed is what is sent: the guard's spelling of the address.
            url = self._client.guard.target(delivery.destination.address).url
            headers: Mapping[str, str] = SIGNERS[kind](
                key, "POST", url, message.body, message.content_type, delivery.now
            )
        except (BadOption, Refused) as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error), asked=False)
        return await self._client.post(
            url,
            {**message.headers, **headers},
            message.body,
            until - asyncio.get_running_loop().time(),
        )

    def _judged(self, reply: Reply | Outcome, delivery: Delivery) -> Outcome:
        return classify.federation(reply, delivery.now) if isinstance(reply, Reply) else reply

    def check(self, address: str) -> None:
        """Refuse an address that could never be posted to."""
        self._client.guard.target(address)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.aclose()
