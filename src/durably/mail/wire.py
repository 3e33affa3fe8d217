"""What goes over an open SMTP connection: commands, several at once if the server allows it, and their replies in turn.

aiosmtplib connects, secures and logs in; then this takes its place, since it waits for every single reply.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque

LONGEST_REPLY = 64 * 1024
LINE = re.compile(rb"([2-5][0-9]{2})([ -]?)([^\r\n]*)\r?\n")


class Broken(Exception):
    """The connection ended, or what came over it makes no sense."""


class Wire(asyncio.Protocol):
    """The replies of a server. What it says without being asked ends the connection."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = bytearray()
        self._lines: list[str] = []
        self._size = 0
        self._code = 0
        self._replies: deque[tuple[int, str]] = deque()
        self._expected = 0
        self._waiting: asyncio.Future[None] | None = None
        self._trouble: str | None = None
        transport.set_protocol(self)

    @property
    def ended(self) -> bool:
        """Whether nothing more can be said."""
        return self._trouble is not None or self._transport.is_closing()

    @property
    def unsent(self) -> bool:
        """Whether some of what was written is still here, so that nobody can have answered it."""
        return self._transport.get_write_buffer_size() > 0

    def write(self, data: bytes, replies: int) -> None:
        """Send something to which so many replies will come."""
        if self.ended:
            raise Broken(self._trouble or "the connection is closed")
        self._expected += replies
        self._transport.write(data)

    async def reply(self) -> tuple[int, str]:
        """The next reply: its code and its text."""
        while not self._replies:
            if self._trouble is not None:
                raise Broken(self._trouble)
            self._waiting = self._loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._replies.popleft()

    def close(self) -> None:
        """End it, whatever was under way."""
        self._fail("the connection was closed")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer and self._trouble is None:
            found = LINE.match(self._buffer)
            if found is None:
                if b"\n" in self._buffer or len(self._buffer) > LONGEST_REPLY:
                    self._fail(f"the server said something that is not SMTP: {bytes(self._buffer[:60])!r}")
                return
            self._hear(int(found[1]), found[2] == b"-", found[3].decode("utf-8", "replace"))
            del self._buffer[: found.end()]

    def _hear(self, code: int, more: bool, text: str) -> None:
        self._size += len(text) + 1
        if self._lines and code != self._code:
            self._fail(f"the server began a reply with {self._code} and went on with {code}")
        elif self._size > LONGEST_REPLY:
            self._fail("the server does not stop talking")
        elif self._expected == 0:
            self._fail(f"the server said {code} {text} without being asked")
        else:
            self._code = code
            self._lines.append(text)
            if not more:
                self._expected -= 1
                self._replies.append((code, "\n".join(self._lines)))
                self._lines, self._size = [], 0
                self._wake()

    def eof_received(self) -> None:
        self._fail("the server ended the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}" if exc is not None else "the server ended the connection")

    def _fail(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble
        self._transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
