"""HTTP on this machine: who posts tells its process id, and who answers reads one post after the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from email.parser import BytesParser

import msgspec

from durably.deliveries.client import Client
from durably.deliveries.guard import Guard

SENDER = "durably-demo/"
"""Who sends says so with its process id, so that a receiver can tell who is to be killed."""
DIGITS = 5
"""So many may be in the length of a body."""


class Post(msgspec.Struct, frozen=True):
    """What was posted. Names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def pid(self) -> int:
        """The process that sent it."""
        return int(self.headers["user-agent"].removeprefix(SENDER))


def local_client() -> Client:
    """A client that may post to this machine, which the usual guard would refuse."""
    return Client(Guard(http=True, allow=["127.0.0.0/8"]), user_agent=f"{SENDER}{os.getpid()}")


async def attend(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Callable[[Post], str | None]
) -> None:
    """Answer every post of a connection with a status; None keeps the sender waiting until it is gone."""
    try:
        while (post := await _read(reader)) is not None:
            status = answer(post)
            if status is None:
                await reader.read()
                return
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        pass  # Whoever sent it is gone, or sent something else.
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Post | None:
    """The next post; None if it cannot be measured."""
    first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    headers = {name.lower(): value for name, value in BytesParser().parsebytes(rest).items()}
    length = headers.get("content-length", "")
    if not length.isdecimal() or len(length) > DIGITS:
        return None
    _, path, *_ = f"{first.decode('latin-1')}  ".split(" ")
    return Post(path, headers, await reader.readexactly(int(length)))
