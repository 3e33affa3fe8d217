"""Bare HTTP: a loop around the client that does nothing but post, and the receiver that everyone posts to."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

from aiohttp import ClientSession, TCPConnector

from bench.protocol import handler, say, serve, wait_for_the_start

CONCURRENCY = 500
PAYLOAD = "x" * 200
REQUEST = re.compile(rb"POST /(\w+)/(\d+) .*?content-length: (\d+)\r\n(?:.*?\r\n)?\r\n", re.IGNORECASE | re.DOTALL)
NUMBER = re.compile(rb'"number":\s*(\d+)')
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver(asyncio.Protocol):
    """Marks what arrives, and answers at once; whoever posts to /silent never gets an answer."""

    def __init__(self, mark: Any, destinations: int) -> None:
        self._mark = mark
        self._destinations = destinations
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head := REQUEST.match(self._buffer)) is not None:
            end = head.end() + int(head[3])
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[head.end() : end], self._buffer[end:]
            if head[1] == b"silent":
                continue
            number = NUMBER.search(body)
            assert number is not None
            self._mark(int(number[1]) * self._destinations + int(head[2]))
            self._transport.write(ANSWER)


def receive(marks: str, size: int, destinations: int) -> None:
    """Receive until told to stop; the port is told."""
    asyncio.run(_receive(handler(marks, size), destinations))


async def _receive(mark: Any, destinations: int) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(lambda: Receiver(mark, destinations), "127.0.0.1", 0, backlog=1000)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    say("listening", port=server.sockets[0].getsockname()[1])
    wait_for_the_start()
    await over.wait()


def prepare(url: str) -> None:
    """There is nothing to prepare."""
    say("prepared")


def publish(url: str, **_: Any) -> None:
    """There is nobody who would keep it."""
    say("begin")
    say("end", count=0)


def work(url: str, messages: int, addresses: list[str], **_: Any) -> None:
    """Post every message to every address, so many at once."""
    asyncio.run(_work([(number, address) for number in range(messages) for address in addresses]))


async def _work(posts: list[tuple[int, str]]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    wait_for_the_start()
    left = iter(posts)
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def post() -> None:
            for number, address in left:
                async with session.post(address, json={"number": number, "data": PAYLOAD}) as response:
                    await response.read()

        await asyncio.gather(*(post() for _ in range(CONCURRENCY)))
        await over.wait()


if __name__ == "__main__":
    serve({function.__name__: function for function in (receive, prepare, publish, work)})
