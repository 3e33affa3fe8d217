"""A way for mail that leaves out those who should get none, and learns who they are."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Channel, Delivery
from durably.errors import DurablyError
from durably.mail.letter import read
from durably.mail.results import Recipient, Results, begin, kept, marked, outcome, waiting
from durably.mail.suppressions import Suppressions

log = logging.getLogger("durably.mail")


class Sifted:
    """A channel for mail, with the suppression list in front of it and behind it."""

    def __init__(
        self,
        channel: Channel,
        suppressions: Suppressions,
        follow: Callable[[Delivery, str], Awaitable[None]] | None = None,
    ) -> None:
        self.channel = channel
        self._suppressions = suppressions
        self._follow = follow

    def check(self, address: str) -> None:
        """Refuse an address that could never be a transport."""
        check: Any = getattr(self.channel, "check", None)
        if check is not None:
            check(address)

    async def deliver(self, delivery: Delivery) -> Outcome:
        letter = read(delivery)
        if isinstance(letter, Outcome):
            return letter
        results = begin(delivery, letter)
        try:
            against = await self._suppressions.among(waiting(results), letter.category)
            left_out = {address: Recipient("suppressed", one.reason) for address, one in against.items()}
            results.update(marked(results, left_out))
            if not waiting(results):
                bounced = all(address in against and against[address].bounced for address in results)
                return await self._unwanted(delivery, outcome(results), bounced)
        except DurablyError as error:
            return Outcome(kind=Kind.INFRA, reason=str(error), kept=msgspec.to_builtins(results))
        found = await self.channel.deliver(msgspec.structs.replace(delivery, kept=msgspec.to_builtins(results)))
        after = results if found.kept is None else marked(results, kept(letter.recipients, found.kept))
        await self._learn(after)
        return msgspec.structs.replace(found, kept=msgspec.to_builtins(after))

    async def _unwanted(self, delivery: Delivery, found: Outcome, bounced: bool) -> Outcome:
        """Nobody is left; that it is for good is certain where every address has bounced."""
        if found.kind is Kind.UNWANTED and self._follow is not None:
            await self._follow(delivery, f"permanent: {found.reason}" if bounced else found.reason)
        return found

    async def _learn(self, results: Results) -> None:
        """What cannot be written now is learned again by the next mail to the same address."""
        bounced = {address: one.said for address, one in results.items() if one.suppress}
        if bounced:
            try:
                await self._suppressions.bounced(bounced)
            except DurablyError as error:
                log.warning("bounces could not be noted: %s", error)

    async def aclose(self) -> None:
        """Close what the channel keeps open on the running event loop."""
        close: Any = getattr(self.channel, "aclose", None)
        if close is not None:
            await close()
