"""A pooler in transaction mode that is as unkind as PgBouncer may be: no two transactions on one server connection.

A client is attached to a server connection by its first message and detached when the server says that it is idle
again. Its next transaction gets another connection, always. What a transaction leaves behind in its server session
(settings, prepared statements, LISTEN) stays there: gone for the client that made it, and a surprise for the next one.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict

from tests.support.listener import Listener

PROTOCOL = 3 << 16
CANCEL, SSL, GSS = 80877102, 80877103, 80877104
ANSWERED = b"QSF"
"""What a client sends and the server answers with ReadyForQuery: Query, Sync, FunctionCall."""
UNFINISHED = b"PBDECH"
"""What belongs together until the next Sync: Parse, Bind, Describe, Execute, Close, Flush."""
GONE = (asyncio.IncompleteReadError, ConnectionError)


class Message(NamedTuple):
    """A message of the protocol, version 3."""

    kind: bytes
    body: bytes

    def encoded(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


async def read_message(reader: asyncio.StreamReader) -> Message:
    kind, length = struct.unpack("!ci", await reader.readexactly(5))
    return Message(kind, await reader.readexactly(length - 4))


class Server:
    """A connection to the real server, and the client that it works for at the moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.client: Client | None = None
        self.parameters: list[Message] = []
        self.key = b""
        self.unanswered = 0
        self.unfinished = False

    @property
    def pid(self) -> int:
        """The process id of its backend."""
        return int.from_bytes(self.key[:4])

    def send(self, message: Message) -> None:
        """Pass on a message of the client, and note whether an answer is due."""
        if message.kind in ANSWERED:
            self.unanswered += 1
            self.unfinished = False
        elif message.kind in UNFINISHED:
            self.unfinished = True
        self.writer.write(message.encoded())

    def is_idle_after(self, message: Message) -> bool:
        """Whether this message of the server ends the transaction, with nothing of the client still under way."""
        if message.kind != b"Z":
            return False
        self.unanswered -= 1
        return message.body == b"I" and self.unanswered == 0 and not self.unfinished


class Client:
    """A connection of a client. Its key is of our making: it names the client, not a backend."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.key = secrets.token_bytes(8)
        self.server: Server | None = None
        self.last: Server | None = None


class Pooler(Listener):
    """Stands between clients and the database at `target`, from `with` on, on a port of 127.0.0.1."""

    def __init__(self, target: str, *, tells: bool = False) -> None:
        super().__init__()
        self.tells = tells
        """Whether it passes on which backend a client met first, as if that were to stay its own."""
        found = conninfo_to_dict(target)
        self.user, self.database = str(found["user"]), str(found["dbname"])
        self._server = str(found["host"]), int(found["port"] or 5432)
        self.transactions: Counter[int] = Counter()
        """How many transactions each backend has run, by its process id."""
        self._idle: list[Server] = []
        self._clients: dict[bytes, Client] = {}

    @property
    def url(self) -> str:
        """The address at which clients find it."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{self.database}?sslmode=prefer"

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Everything that one client connection asks for, until it leaves."""
        client = Client(writer)
        try:
            if await self._greeted(client, reader):
                while (message := await read_message(reader)).kind != b"X":
                    server = client.server or await self._attached(client)
                    server.send(message)
        except GONE:
            pass
        finally:
            self._clients.pop(client.key, None)
            if client.server is not None:
                # In the middle of a transaction: only closing its connection is sure to roll it back.
                client.server.writer.close()
            writer.close()

    async def _greeted(self, client: Client, reader: asyncio.StreamReader) -> bool:
        """The start of a connection: no encryption, no password. False when it only came to cancel something."""
        while True:
            length, code = struct.unpack("!ii", await reader.readexactly(8))
            body = await reader.readexactly(length - 8)
            if code == CANCEL:
                await self._cancel(body)
                return False
            if code not in (SSL, GSS):
                break
            client.writer.write(b"N")
        if code != PROTOCOL:
            raise ConnectionError(f"unknown protocol {code:#x}")
        self._clients[client.key] = client
        server = self._free(client) or await self._connect()
        self._idle.append(server)
        ready = Message(b"Z", b"I")
        key = server.key if self.tells else client.key
        for message in (Message(b"R", bytes(4)), *server.parameters, Message(b"K", key), ready):
            client.writer.write(message.encoded())
        return True

    async def _attached(self, client: Client) -> Server:
        server = self._free(client) or await self._connect()
        server.client, client.server = client, server
        return server

    def _free(self, client: Client) -> Server | None:
        """The connection that has been idle longest, but never the one that this client had last."""
        server = next((server for server in self._idle if server is not client.last), None)
        if server is not None:
            self._idle.remove(server)
        return server

    def _detach(self, server: Server, client: Client) -> None:
        self.transactions[server.pid] += 1
        server.client, client.server, client.last = None, None, server
        self._idle.append(server)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._server
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _connect(self) -> Server:
        server = Server(*await self._open())
        options = f"user\0{self.user}\0database\0{self.database}\0client_encoding\0UTF8\0\0".encode()
        server.writer.write(struct.pack("!ii", len(options) + 8, PROTOCOL) + options)
        while (message := await read_message(server.reader)).kind != b"Z":
            if message.kind == b"S":
                server.parameters.append(message)
            elif message.kind == b"K":
                server.key = message.body
            elif message.kind == b"E":
                raise ConnectionError(message.body.replace(b"\0", b" ").decode())
        self.keep(asyncio.create_task(self._relay(server)))
        return server

    async def _relay(self, server: Server) -> None:
        """Hand what the server says to its client. What it says while it has none is lost."""
        try:
            while True:
                message = await read_message(server.reader)
                client = server.client
                if client is not None:
                    if server.is_idle_after(message):
                        self._detach(server, client)
                    client.writer.write(message.encoded())
        except GONE:
            pass
        finally:
            server.writer.close()
            if server in self._idle:
                self._idle.remove(server)
            if server.client is not None:
                server.client.writer.close()

    async def _cancel(self, key: bytes) -> None:
        """Cancel what the client with this key runs at the moment, if anything."""
        client = self._clients.get(key)
        if client is not None and client.server is not None:
            reader, writer = await self._open()
            writer.write(struct.pack("!ii", len(client.server.key) + 8, CANCEL) + client.server.key)
            with suppress(*GONE):
                await reader.read()
            writer.close()
