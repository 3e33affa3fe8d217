"""A notification channel is a way to people. It has one method and says what happened; the rest is not its business."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from durably.core.delivery import Outcome


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What one recipient is to get over one channel."""

    id: str
    """The same at every attempt: a peer that remembers it can leave out what it has."""
    notification: str
    """The notification; the first one, if there are several in a digest."""
    kind: str
    recipient: str
    address: str
    locale: str = ""
    data: Any = None
    items: list[Any] = []
    """The data of every notification in a digest, the oldest first; one alone is here too."""
    title: str = ""
    text: str = ""
    html: str | None = None
    template: str | None = None
    context: dict[str, Any] = {}
    """What templates see."""
    category: str = ""
    unsubscribe: str | None = None
    """Where the recipient can unsubscribe from the category."""
    attempt: int = 1
    possible_duplicate: bool = False
    """Whether an earlier attempt may have reached the recipient already."""


class NotificationChannel(Protocol):
    """What a way to people has to offer. None means that it arrived; what it raises is tried again.

    With an attribute `renders` that is true it makes its own words out of the template.
    """

    async def send(self, note: Note) -> Outcome | None: ...
