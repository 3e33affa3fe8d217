"""A TCP proxy before PostgreSQL that cuts, delays and silences connections, and loses the reply of a commit."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tests.support.listener import Listener

T = TypeVar("T")

CHUNK = 1 << 16
HEADER = 5
"""A message of the server: one byte of kind, four of length, which counts itself but not the kind."""
COMMIT = (b"COMMIT",)
ANYTHING = (b"COMMIT", b"INSERT", b"UPDATE", b"DELETE", b"SELECT")
"""The tags of what may commit: outside of a transaction every statement does, a SELECT with writes inside it too."""
GONE = (ConnectionError, OSError, asyncio.IncompleteReadError)


class Message(NamedTuple):
    """One message of the server."""

    kind: bytes
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[HEADER:]


def split(data: bytes) -> tuple[list[Message], bytes]:
    """The whole messages at the beginning of the data, and what is left."""
    messages, place = [], 0
    while len(data) - place >= HEADER:
        end = place + 1 + int.from_bytes(data[place + 1 : place + HEADER])
        if end > len(data):
            break
        messages.append(Message(data[place : place + 1], data[place:end]))
        place = end
    return messages, data[place:]


def _tag(data: bytes) -> str:
    """The first word of the tag in a CommandComplete."""
    return data[HEADER:].split(b"\0")[0].split()[0].decode()


class Link:
    """A client, its own connection to the server, and whether bytes flow between them."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.flowing = asyncio.Event()
        self.flowing.set()

    def cut(self) -> None:
        """Both sides see a connection that was reset."""
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy(Listener):
    """Stands before the server on a port of 127.0.0.1, from `with` on. It may be told things from any thread."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = port
        self.latency = 0.0
        """Seconds by which everything is late, in both directions."""
        self.lost: Counter[str] = Counter()
        """How many replies were lost, by the first word of their tags."""
        self._to_lose = 0
        self._tags: tuple[bytes, ...] = COMMIT
        self._silent = False
        self._links: set[Link] = set()

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self._links)

    def cut(self, share: float, chance: random.Random) -> int:
        """Cut this share of the connections; how many that were."""

        def cut() -> int:
            chosen = [link for link in self._links if chance.random() < share]
            for link in chosen:
                link.cut()
            return len(chosen)

        return self._told(cut)

    def silence(self, share: float, chance: random.Random) -> int:
        """Let nothing more pass on this share of the connections, nor, if it is all of them, on new ones."""

        def silence() -> int:
            self._silent = share >= 1
            chosen = [link for link in self._links if chance.random() < share]
            for link in chosen:
                link.flowing.clear()
            return len(chosen)

        return self._told(silence)

    def speak(self, *, cut: bool) -> None:
        """End the silence: what was held back arrives late, or its connections turn out to be cut."""

        def speak() -> None:
            self._silent = False
            for link in [link for link in self._links if not link.flowing.is_set()]:
                if cut:
                    link.cut()
                link.flowing.set()

        self._told(speak)

    def lose_replies(self, count: int, tags: tuple[bytes, ...] = COMMIT) -> None:
        """Swallow the next replies with such tags, and cut their connections: the server has committed by then."""

        def arm() -> None:
            self._to_lose, self._tags = count, tags

        self._told(arm)

    def _told(self, what: Callable[[], T]) -> T:
        async def do() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(do(), self.loop).result()

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, server)
        if self._silent:
            link.flowing.clear()
        self._links.add(link)
        pumps = [asyncio.create_task(self._requests(link, reader)), asyncio.create_task(self._answers(link, answers))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            link.flowing.set()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            server.close()

    async def _requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self._pass(link, link.server, data)
        except GONE:
            pass

    async def _answers(self, link: Link, reader: asyncio.StreamReader) -> None:
        rest, held = b"", b""
        try:
            while data := await reader.read(CHUNK):
                messages, rest = split(rest + data)
                passed = b""
                for message in messages:
                    if held or (self._to_lose and message.kind == b"C" and message.body.startswith(self._tags)):
                        held += message.data
                    else:
                        passed += message.data
                    if held and message.kind == b"Z":
                        if self._to_lose and message.body == b"I":
                            self._to_lose -= 1
                            self.lost[_tag(held)] += 1
                            link.cut()
                            return
                        passed, held = passed + held, b""
                await self._pass(link, link.client, passed)
        except GONE:
            pass

    async def _pass(self, link: Link, to: asyncio.StreamWriter, data: bytes) -> None:
        if self.latency:
            await asyncio.sleep(self.latency)
        await link.flowing.wait()
        to.write(data)
        await to.drain()
