"""Addresses that get no mail: those that bounced, complained or unsubscribed, and those that somebody put there."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, get_args

import msgspec

from durably.client.engine import Engine
from durably.client.gather import Gather
from durably.client.perloop import PerLoop
from durably.client.plan import Plan
from durably.core.brief import brief
from durably.core.moment import as_datetime
from durably.core.options import text
from durably.core.task import clean
from durably.errors import BadOption
from durably.mail.addresses import address
from durably.stores.operations.mail import Suppression, list_suppressions, suppress, suppressed, unsuppress
from durably.stores.statement import Operation

Cause = Literal["bounce", "complaint", "unsubscribe", "manual"]
NOTE = 500


class SuppressionInfo(msgspec.Struct, frozen=True):
    """An address that gets no mail, and why."""

    address: str
    category: str
    """The category of which it gets none; empty for every mail."""
    cause: str
    note: str
    since: datetime


class Against(NamedTuple):
    """Why an address gets no mail."""

    reason: str
    bounced: bool
    """Whether that is because it does not work, and not because somebody wants it so."""


class Suppressions:
    """The list of an application. Addresses are compared without regard to case."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._store = engine.store
        self._namespace = namespace
        self._lookups = PerLoop(lambda loop: Gather(loop, self._look_up, "durably-suppressions"))

    def add(self, address: str, cause: Cause = "manual", *, category: str = "", note: str = "") -> bool:
        """Write to an address no more; whether it is new to the list. With `category`, only mail of that kind."""
        return bool(self._store.run(self._adding(_folded(address), cause, category, note)))

    async def aadd(self, address: str, cause: Cause = "manual", *, category: str = "", note: str = "") -> bool:
        """The asynchronous twin of add."""
        return bool(await self._store.arun(self._adding(_folded(address), cause, category, note)))

    def remove(self, address: str, *, category: str | None = None) -> bool:
        """Write to an address again; whether it was on the list. With `category`, that entry only."""
        return self._store.run(unsuppress(self._namespace, _folded(address), category))

    async def aremove(self, address: str, *, category: str | None = None) -> bool:
        """The asynchronous twin of remove."""
        return await self._store.arun(unsuppress(self._namespace, _folded(address), category))

    def get(self, address: str) -> builtins.list[SuppressionInfo]:
        """What is known against an address."""
        return _told(self._store.run(suppressed(self._namespace, [_folded(address)])))

    async def aget(self, address: str) -> builtins.list[SuppressionInfo]:
        """The asynchronous twin of get."""
        return _told(await self._store.arun(suppressed(self._namespace, [_folded(address)])))

    def list(self, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> builtins.list[SuppressionInfo]:
        """The list in the order of its addresses, from those after an address and a category."""
        return _told(self._store.run(list_suppressions(self._namespace, after, limit)))

    async def alist(self, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> builtins.list[SuppressionInfo]:
        """The asynchronous twin of list."""
        return _told(await self._store.arun(list_suppressions(self._namespace, after, limit)))

    async def among(self, addresses: Sequence[str], category: str) -> dict[str, Against]:
        """Those of these recipients of a mail that must not get mail of a category, and why."""
        folded = {one: one.casefold() for one in addresses}
        found = await self._lookups.of(asyncio.get_running_loop()).ask([*folded.values()])
        return _against(folded, found, category)

    def asking(self, addresses: Sequence[str], category: str) -> Plan[dict[str, Against]]:
        """The same, as part of something larger."""
        folded = {one: one.casefold() for one in addresses}
        found: builtins.list[Suppression] = yield suppressed(self._namespace, [*folded.values()])
        return _against(folded, found, category)

    async def _look_up(self, batch: Sequence[Sequence[str]]) -> Sequence[Sequence[Suppression]]:
        """What is known against all of these, for everyone who has asked about some of them."""
        wanted = {one for addresses in batch for one in addresses}
        found = await self._store.arun(suppressed(self._namespace, sorted(wanted)))
        return [found] * len(batch)

    async def bounced(self, said: Mapping[str, str]) -> None:
        """Write no more to addresses that their servers do not know."""
        for one, reason in said.items():
            await self._store.arun(self._adding(one.casefold(), "bounce", "", reason))

    def _adding(self, folded: str, cause: str, category: str, note: str) -> Operation[set[str]]:
        if cause not in get_args(Cause):
            raise BadOption(f"cause: {brief(cause)} must be one of {', '.join(get_args(Cause))}")
        kind = "" if category == "" else text(category, "category")
        return suppress(self._namespace, [folded], kind, cause, clean(note, NOTE))


def _folded(given: str) -> str:
    """An address as it is compared: in the spelling that mails have for it, without regard to case."""
    return address(given, "address")[1].casefold()


def _against(folded: Mapping[str, str], found: Sequence[Suppression], category: str) -> dict[str, Against]:
    against = {one.address: one for one in found if one.category in ("", category)}
    return {
        one: Against(_reason(against[key]), against[key].cause == "bounce")
        for one, key in folded.items()
        if key in against
    }


def _reason(one: Suppression) -> str:
    since = f"{as_datetime(one.created_at):%Y-%m-%d}"
    about = f" of {one.category}" if one.category else ""
    return clean(f"suppressed{about} since {since}: {one.cause}" + (f": {one.note}" if one.note else ""), NOTE)


def _told(found: Sequence[Suppression]) -> list[SuppressionInfo]:
    return [
        SuppressionInfo(one.address, one.category, one.cause, one.note, as_datetime(one.created_at)) for one in found
    ]
