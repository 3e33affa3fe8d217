"""Noticing that someone wrote to the file: `PRAGMA data_version`, every few milliseconds while a worker waits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

INTERVAL = 0.01


class DataVersion:
    """Wakes a waiting worker when any connection, of this process or another, has committed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection] | None) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None
        self._nudged = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        if self._nudged.is_set():
            self._nudged.clear()
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        before = self._version()
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.wait_for(self._nudged.wait(), left if before is None else min(left, INTERVAL))
                break
            except TimeoutError:
                if self._version() != before:
                    break
        self._nudged.clear()

    def nudge(self) -> None:
        self._nudged.set()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _version(self) -> int | None:
        if self._connect is None:
            return None
        try:
            if self._connection is None:
                self._connection = self._connect()
            [(version,)] = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error:
            return None
        return int(version)
