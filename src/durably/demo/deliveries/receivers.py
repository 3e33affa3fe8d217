"""The peers: small HTTP servers in a thread of the demo, which write down what arrives before they answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from durably.deliveries.webhooks import verify
from durably.demo.deliveries.lines import Line
from durably.demo.ledger import Ledger
from durably.demo.posts import Post, attend
from durably.demo.servers import HOST
from durably.errors import BadSignature


class Event(msgspec.Struct, frozen=True):
    """The body of a message, as far as a receiver cares."""

    event: str
    number: int


class Receiver:
    """A peer. Its port is its own from the beginning, but until it opens, whoever connects is turned away."""

    def __init__(self, name: str, ledger: Ledger, loop: asyncio.AbstractEventLoop) -> None:
        self.secret = ""
        self.refuses: str | None = None
        """The kind of event that it does not understand."""
        self.silent_at: int | None = None
        """The message that it takes without ever answering."""
        self._name = name
        self._ledger = ledger
        self._loop = loop
        self._server: asyncio.Server | None = None
        self._socket = socket.socket()
        self._socket.bind((HOST, 0))

    @property
    def address(self) -> str:
        """Where to post to."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}/hooks"

    def open(self) -> None:
        """Answer from now on."""
        starting = asyncio.start_server(self._attend, sock=self._socket)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.close)
        else:
            self._socket.close()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await attend(reader, writer, self._answer)

    def _answer(self, post: Post) -> str | None:
        """The status for a message; None if there is to be no answer."""
        try:
            message = verify(post.body, post.headers, self.secret).message_id
        except BadSignature:
            self._ledger.write(Line("unsigned", self._name))
            return "401 Unauthorized"
        event = msgspec.json.decode(post.body, type=Event)
        refused = event.event == self.refuses
        self._ledger.write(Line("refused" if refused else "took", self._name, message, event.number, post.pid))
        if event.number == self.silent_at:
            self.silent_at = None
            return None
        return "501 Not Implemented" if refused else "204 No Content"


@contextmanager
def receiving(names: Iterable[str], ledger: Ledger) -> Iterator[dict[str, Receiver]]:
    """Peers with ports of their own, on an event loop in a thread; none of them is open yet."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        loop, over = runner.get_loop(), asyncio.Event()
        receivers = {name: Receiver(name, ledger, loop) for name in names}
        thread = threading.Thread(target=runner.run, args=(over.wait(),), name="durably-demo-receivers")
        thread.start()
        try:
            yield receivers
        finally:
            for receiver in receivers.values():
                receiver.close()
            loop.call_soon_threadsafe(over.set)
            thread.join()
