"""Writing how destinations stand, for all that have something to write in the same moment at once."""

from __future__ import annotations

import asyncio

from durably.core.delivery import Destination
from durably.stores.operations.deliver import change_destinations
from durably.stores.protocol import Store

Place = tuple[str, str]


class Writer:
    """Writes for one event loop: while some are being written, others gather."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._waiting: list[tuple[Destination, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, changed: Destination) -> bool:
        """Whether it was written; not if somebody else has changed it since it was read."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append((changed, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all(), name="durably-writer")
        return await done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)
                await self._write(self._next())
        finally:
            self._writing = None

    def _next(self) -> list[tuple[Destination, asyncio.Future[bool]]]:
        """Those that wait, but only the first of each destination."""
        batch: dict[Place, tuple[Destination, asyncio.Future[bool]]] = {}
        later = []
        for changed, done in self._waiting:
            place = (changed.namespace, changed.name)
            if place in batch:
                later.append((changed, done))
            else:
                batch[place] = (changed, done)
        self._waiting = later
        return list(batch.values())

    async def _write(self, batch: list[tuple[Destination, asyncio.Future[bool]]]) -> None:
        try:
            written = await self._store.arun(change_destinations([changed for changed, _ in batch]))
        except Exception as error:
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for changed, done in batch:
            if not done.done():
                done.set_result((changed.namespace, changed.name) in written)
