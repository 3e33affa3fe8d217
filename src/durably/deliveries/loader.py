"""What deliveries need from the store, read for all that begin in the same moment at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from durably.client.gather import Gather
from durably.core.delivery import Destination, Message
from durably.stores.operations.deliver import load
from durably.stores.protocol import Store

Place = tuple[str, str]
KEPT = 16 * 1024 * 1024
"""Bytes of messages that are kept for the next destination."""
BESIDES = 1000
"""Bytes, about, that a message takes besides its body."""


class Loaded:
    """A destination and a message, if they are known, and the store's time."""

    __slots__ = ("destination", "message", "now")

    def __init__(self, now: int, destination: Destination | None, message: Message | None) -> None:
        self.now = now
        self.destination = destination
        self.message = message


class Loader:
    """Reads for one event loop. A message never changes, and is read once for many; a destination is always read."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._messages: OrderedDict[str, Message] = OrderedDict()
        self._size = 0
        self._gather: Gather[tuple[Place, str | None], Loaded] = Gather(loop, self._read, "durably-loader")

    async def load(self, place: Place, message: str | None = None) -> Loaded:
        """The destination as it is now, and the message, if one is wanted."""
        return await self._gather.ask((place, message))

    async def _read(self, batch: list[tuple[Place, str | None]]) -> list[Loaded]:
        places = list(dict.fromkeys([place for place, _ in batch]))
        wanted = dict.fromkeys([message for _, message in batch if message is not None])
        unknown = [message for message in wanted if message not in self._messages]
        found = await self._store.arun(load(places, unknown))
        known = {**found.messages, **{one: self._messages[one] for one in wanted if one in self._messages}}
        for one in known.values():
            self._keep(one)
        return [
            Loaded(found.now, found.destinations.get(place), None if message is None else known.get(message))
            for place, message in batch
        ]

    def _keep(self, message: Message) -> None:
        """The one that was used last stays longest."""
        if self._messages.pop(message.id, None) is None:
            self._size += len(message.body) + BESIDES
        self._messages[message.id] = message
        while self._size > KEPT:
            _, oldest = self._messages.popitem(last=False)
            self._size -= len(oldest.body) + BESIDES
