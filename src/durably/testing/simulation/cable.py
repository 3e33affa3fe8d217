"""A connection in virtual time: bytes go both ways, each takes a moment, and either end may be gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from durably.testing.simulation.loop import OUTSIDE, VirtualLoop

LATENCY = 0.001


class Cable(asyncio.Transport):
    """The client's end. What comes over it is heard only while the client's process runs."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol: Any = protocol
        self._context = copy_context()
        self._closing = False
        self.far = asyncio.StreamReader(loop=loop)
        """What the server hears."""
        protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._send(self.far.feed_data, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(self.far.feed_eof)
            self._loop.call_soon(self._protocol.connection_lost, None, context=self._context)

    def say(self, data: bytes) -> None:
        """The server says something."""
        self._loop.call_later(LATENCY, self._hear, data, context=self._context)

    def hang_up(self) -> None:
        """The server ends the connection."""
        self._loop.call_later(LATENCY, self._lose, context=self._context)

    def _hear(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def _lose(self) -> None:
        if not self._closing:
            self._closing = True
            self._protocol.connection_lost(None)

    def _send(self, what: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_later(LATENCY, what, *arguments, context=OUTSIDE)
