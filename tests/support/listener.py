"""A server of our own on a port of 127.0.0.1, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Listener(ABC):
    """Listens on `port` from `with` on; what each connection asks for is attended to in a task of its own."""

    port: int

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=type(self).__name__)

    @abstractmethod
    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All that one connection asks for, until it leaves. It is cancelled when the server stops."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it is done or the server stops."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.keep(asyncio.create_task(self.attend(reader, writer)))
