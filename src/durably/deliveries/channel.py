"""A channel is a way to a peer. It says what happened; retrying is not its business."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from durably.core.delivery import Destination, Message, Outcome


class Delivery(msgspec.Struct, frozen=True):
    """One attempt to bring one message to one destination."""

    task: str
    attempt: int
    message: Message
    destination: Destination
    secrets: tuple[str, ...] = ()
    possible_duplicate: bool = False
    """Whether an earlier attempt may have brought it there already."""
    now: float = 0.0
    """Seconds since 1970."""
    kept: Any = None
    """What the attempt before wanted this one to know."""
    spent: int = 1
    """The number of this attempt in its cycle, which a replay begins anew."""
    replayed: bool = False
    """Whether what is kept is from before somebody replayed it."""
    interrupted: bool = False
    """Whether an attempt was cut off after that, which could not say what it had done."""

    def __repr__(self) -> str:
        return f"<delivery {self.task} of message {self.message.id} to {self.destination.name!r}>"


class Channel(Protocol):
    """What a way to a peer has to offer.

    It may also have `check(address)`, which refuses what it could never deliver to; and `async reconcile(delivery)`,
    which answers True if the peer has a message whose outcome was unknown.
    """

    async def deliver(self, delivery: Delivery) -> Outcome: ...
