"""LISTEN on a connection of its own, with a self-check that finds a connection which has gone silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

import psycopg

log = logging.getLogger("durably.wakeups")

CHECK_EVERY = 15.0
RECONNECT_FIRST, RECONNECT_MOST = 0.2, 10.0


class Notifications:
    """Wakes a waiting worker when a queue it sleeps on was notified. While it is deaf, the poll does the work."""

    def __init__(self, url: str, channel: str) -> None:
        self._url = url
        self._channel = channel
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, seconds: float) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="durably-listen")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
        self._arrived.clear()

    def nudge(self) -> None:
        self._arrived.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        pause = RECONNECT_FIRST
        while True:
            try:
                await self._listen_once()
                pause = RECONNECT_FIRST
            except (psycopg.Error, OSError) as error:
                log.warning("notifications are interrupted, polling goes on: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RECONNECT_MOST)

    async def _listen_once(self) -> None:
        """Listen until the connection fails, or does not hear what it says to itself."""
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=10)
        async with connection:
            await _answered(connection, f"LISTEN {self._channel}")
            # Whatever was notified while nobody listened is found by one claim now.
            self._arrived.set()
            while True:
                echo = f"check/{id(connection)}"
                await _answered(connection, "SELECT pg_notify(%s, %s)", self._channel, echo)
                heard = False
                async for notice in connection.notifies(timeout=CHECK_EVERY):
                    if notice.payload == echo:
                        heard = True
                    else:
                        self._arrived.set()
                if not heard:
                    log.warning("the notification connection went silent: reconnecting (a pooler in transaction mode?)")
                    return


async def _answered(connection: psycopg.AsyncConnection, text: str, *args: str) -> None:
    """Run a statement. A connection that gives no answer is shut down under it, which ends the wait for one."""
    asking = asyncio.create_task(connection.execute(text.encode(), args or None))
    try:
        await asyncio.wait({asking}, timeout=CHECK_EVERY)
    finally:
        if not asking.done():
            with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(asking, return_exceptions=True)
    await asking
