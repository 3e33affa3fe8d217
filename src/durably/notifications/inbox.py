"""The inbox of every recipient, and what recipients want: the two things that people change themselves."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from durably.client.engine import Engine
from durably.core.brief import brief
from durably.core.moment import Duration, as_datetime, micros, seconds
from durably.core.options import text
from durably.errors import BadOption
from durably.notifications.catalogue import Catalogue
from durably.notifications.channels import Content
from durably.stores.operations.deliver import is_id
from durably.stores.operations.notify import (
    Entry,
    Place,
    Preference,
    count_inbox,
    drop_preference,
    list_inbox,
    mark_inbox,
    preferences,
    prune_inbox,
    set_preference,
)
from durably.stores.statement import Operation

KEPT = 90 * 86_400.0
"""Seconds for which an entry is kept after it was read."""


class EntryInfo(msgspec.Struct, frozen=True):
    """Something that a recipient sees."""

    id: str
    kind: str
    title: str
    text: str
    html: str | None
    data: Any
    notification: str
    since: datetime
    read: datetime | None
    archived: datetime | None


class Counts(msgspec.Struct, frozen=True):
    """How many entries an inbox has that are not archived."""

    entries: int
    unread: int


class Inbox:
    """What recipients see in the application itself."""

    def __init__(self, engine: Engine, namespace: str, kinds: Catalogue) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace
        self._kinds = kinds
        self._retention: float | None = KEPT
        engine.pruning.append(self._pruning)

    @property
    def retention(self) -> float | None:
        """Seconds for which workers keep what was read; None means for ever. What is unread stays."""
        return self._retention

    @retention.setter
    def retention(self, given: Duration | None) -> None:
        self._retention = None if given is None else seconds(given, "retention")

    def list(
        self,
        recipient: str,
        *,
        unread: bool = False,
        archived: bool = False,
        before: str | None = None,
        limit: int = 50,
    ) -> builtins.list[EntryInfo]:
        """The entries of a recipient, the newest first, from those `before` an id."""
        return self._told(self._store.run(self._listing(recipient, unread, archived, before, limit)))

    async def alist(
        self,
        recipient: str,
        *,
        unread: bool = False,
        archived: bool = False,
        before: str | None = None,
        limit: int = 50,
    ) -> builtins.list[EntryInfo]:
        """The asynchronous twin of list."""
        return self._told(await self._store.arun(self._listing(recipient, unread, archived, before, limit)))

    def counts(self, recipient: str) -> Counts:
        """How many entries there are, and how many of them are unread."""
        return Counts(*self._store.run(self._counting(recipient)))

    async def acounts(self, recipient: str) -> Counts:
        """The asynchronous twin of counts."""
        return Counts(*await self._store.arun(self._counting(recipient)))

    def read(self, recipient: str, *ids: str) -> int:
        """Mark these entries as read; how many were not."""
        return self._store.run(self._marking(recipient, ids, archive=False))

    async def aread(self, recipient: str, *ids: str) -> int:
        """The asynchronous twin of read."""
        return await self._store.arun(self._marking(recipient, ids, archive=False))

    def read_all(self, recipient: str) -> int:
        """Mark everything as read; how many entries were not."""
        return self._store.run(self._marking(recipient, None, archive=False))

    async def aread_all(self, recipient: str) -> int:
        """The asynchronous twin of read_all."""
        return await self._store.arun(self._marking(recipient, None, archive=False))

    def archive(self, recipient: str, *ids: str) -> int:
        """Put these entries away; how many were not."""
        return self._store.run(self._marking(recipient, ids, archive=True))

    async def aarchive(self, recipient: str, *ids: str) -> int:
        """The asynchronous twin of archive."""
        return await self._store.arun(self._marking(recipient, ids, archive=True))

    def archive_all(self, recipient: str) -> int:
        """Put everything away; how many entries were not."""
        return self._store.run(self._marking(recipient, None, archive=True))

    async def aarchive_all(self, recipient: str) -> int:
        """The asynchronous twin of archive_all."""
        return await self._store.arun(self._marking(recipient, None, archive=True))

    def _pruning(self, limit: int) -> Operation[int]:
        return prune_inbox(self._namespace, None if self._retention is None else micros(self._retention), limit)

    def _counting(self, recipient: str) -> Operation[tuple[int, int]]:
        return count_inbox(self._namespace, text(recipient, "recipient"))

    def _listing(
        self, recipient: str, unread: bool, archived: bool, before: str | None, limit: int
    ) -> Operation[builtins.list[Entry]]:
        if before is not None and not is_id(text(before, "before")):
            raise BadOption(f"before: {brief(before)} is not the id of an entry")
        return list_inbox(self._namespace, text(recipient, "recipient"), before, archived, unread, limit)

    def _marking(self, recipient: str, ids: Sequence[str] | None, *, archive: bool) -> Operation[int]:
        """Mark those that are named, and everything for None."""
        kinds = [kind.name for kind in self._kinds.values() if kind.cancel_on_read]
        named = None if ids is None else [text(one, "id") for one in ids]
        return mark_inbox(self._namespace, text(recipient, "recipient"), named, archive, kinds)

    def _told(self, found: Sequence[Entry]) -> builtins.list[EntryInfo]:
        return [self._entry(one) for one in found]

    def _entry(self, one: Entry) -> EntryInfo:
        try:
            content = msgspec.json.decode(self._engine.codec.decode(one.content), type=Content)
        except Exception:
            content = Content("(it cannot be read)")
        return EntryInfo(
            one.id,
            one.kind,
            content.title,
            content.text,
            content.html,
            content.data,
            one.notification,
            as_datetime(one.created_at),
            None if one.read_at is None else as_datetime(one.read_at),
            None if one.archived_at is None else as_datetime(one.archived_at),
        )


class Preferences:
    """What recipients want. Where nothing is said, they want it."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._store = engine.store
        self._namespace = namespace

    def set(self, recipient: str, wanted: bool, *, kind: str = "", channel: str = "") -> None:
        """Whether a recipient wants a kind over a channel; where one is not named, every one of them."""
        self._store.run(set_preference(self._place(recipient, kind, channel), wanted))

    async def aset(self, recipient: str, wanted: bool, *, kind: str = "", channel: str = "") -> None:
        """The asynchronous twin of set."""
        await self._store.arun(set_preference(self._place(recipient, kind, channel), wanted))

    def drop(self, recipient: str, *, kind: str = "", channel: str = "") -> bool:
        """Forget what a recipient has said; whether it had."""
        return self._store.run(drop_preference(self._place(recipient, kind, channel)))

    async def adrop(self, recipient: str, *, kind: str = "", channel: str = "") -> bool:
        """The asynchronous twin of drop."""
        return await self._store.arun(drop_preference(self._place(recipient, kind, channel)))

    def get(self, recipient: str) -> builtins.list[Preference]:
        """Everything that a recipient has said."""
        return self._store.run(preferences(self._namespace, text(recipient, "recipient")))

    async def aget(self, recipient: str) -> builtins.list[Preference]:
        """The asynchronous twin of get."""
        return await self._store.arun(preferences(self._namespace, text(recipient, "recipient")))

    def _place(self, recipient: str, kind: str, channel: str) -> Place:
        names = [name and text(name, what) for name, what in ((kind, "kind"), (channel, "channel"))]
        return Place(self._namespace, text(recipient, "recipient"), *names)
