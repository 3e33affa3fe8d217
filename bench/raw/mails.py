"""Bare SMTP: a loop around the client that does nothing but send, and the receiver that everyone sends to."""

from __future__ import annotations

import asyncio
import re
import signal
from email.message import EmailMessage
from email.policy import SMTP as LINES
from email.utils import formatdate
from typing import Any

from aiosmtplib import SMTP

from bench.protocol import handler, say, serve, wait_for_the_start

CONNECTIONS = 20
SENDER = "shop@here.example"
TEXT = "It is on its way. " * 12
HELLO = b"250-bench\r\n250-PIPELINING\r\n250 8BITMIME\r\n"
RECIPIENT = re.compile(rb"RCPT TO:<(\d+)@", re.IGNORECASE)
END = b"\r\n.\r\n"


class Receiver(asyncio.Protocol):
    """Marks what arrives, and takes everything; what is asked for at once is answered at once."""

    def __init__(self, mark: Any) -> None:
        self._mark = mark
        self._buffer = b""
        self._number = -1
        self._reading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"220 bench\r\n")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answers = []
        while True:
            part, end, rest = self._buffer.partition(END if self._reading else b"\r\n")
            if not end:
                break
            self._buffer = rest
            answers.append(self._taken() if self._reading else self._answer(part))
        self._transport.write(b"".join(answers))

    def _taken(self) -> bytes:
        self._reading = False
        self._mark(self._number)
        return b"250 taken\r\n"

    def _answer(self, line: bytes) -> bytes:
        match line[:4].upper():
            case b"EHLO":
                return HELLO
            case b"RCPT":
                named = RECIPIENT.match(line)
                assert named is not None
                self._number = int(named[1])
            case b"DATA":
                self._reading = True
                return b"354 go on\r\n"
            case b"QUIT":
                return b"221 bye\r\n"
        return b"250 fine\r\n"


def receive(marks: str, size: int) -> None:
    """Receive until told to stop; the port is told."""
    asyncio.run(_receive(handler(marks, size)))


async def _receive(mark: Any) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(lambda: Receiver(mark), "127.0.0.1", 0, backlog=1000)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    say("listening", port=server.sockets[0].getsockname()[1])
    wait_for_the_start()
    await over.wait()


def prepare(url: str) -> None:
    """There is nothing to prepare."""
    say("prepared")


def send(url: str, **_: Any) -> None:
    """There is nobody who would keep it."""
    say("begin")
    say("end", count=0)


def work(url: str, count: int, port: int) -> None:
    """Send mails that are written already, over so many connections."""
    asyncio.run(_work([(f"{number}@bench.example", written(number)) for number in range(count)], port))


def written(number: int) -> bytes:
    """A mail as it goes over the wire."""
    message = EmailMessage(policy=LINES)
    message["From"] = f"Shop <{SENDER}>"
    message["To"] = f"{number}@bench.example"
    message["Subject"] = f"Order {number}"
    message["Date"] = formatdate()
    message["Message-ID"] = f"<{number}@here.example>"
    message.set_content(TEXT)
    return message.as_bytes()


async def _work(mails: list[tuple[str, bytes]], port: int) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    wait_for_the_start()
    left = iter(mails)

    async def some() -> None:
        async with SMTP(hostname="127.0.0.1", port=port, start_tls=False) as client:
            for recipient, source in left:
                await client.sendmail(SENDER, [recipient], source)

    await asyncio.gather(*(some() for _ in range(CONNECTIONS)))
    await over.wait()


if __name__ == "__main__":
    serve({function.__name__: function for function in (receive, prepare, send, work)})
