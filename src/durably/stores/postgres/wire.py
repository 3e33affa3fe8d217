"""Statements straight over libpq: prepared once for each connection, and without a cursor for every one of them."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from durably.stores.postgres.arrays import literal
from durably.stores.postgres.copy import lines
from durably.stores.statement import Rows

TEXT, BINARY = 0, 1
READ, WRITE = select.POLLIN, select.POLLOUT
CHUNK = 1 << 18
"""So many bytes of a copy are handed over at once."""

Exchange = Generator[int, None, Rows]


class Wire:
    """One connection to the server. It yields what it must wait for, and its driver waits as it may.

    Behind a pooler nothing can be prepared, since the next statement may meet another server process.
    """

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], *, direct: bool) -> None:
        self.direct = direct
        """Whether its plans are pinned and its statements prepared, so that even a lone statement is quick."""
        self._server = connection.pgconn
        self._encoding = connection.info.encoding
        self._loading = Transformer(connection)
        self._prepared: dict[str, bytes] = {}
        self._poll = select.poll()

    def run(self, text: str, args: Sequence[Any]) -> Rows:
        """The rows that the statement answers with; none if it does not answer with rows."""
        return self._wait(self._call(text, args))

    async def arun(self, text: str, args: Sequence[Any]) -> Rows:
        """The same without blocking the event loop."""
        return await self._await(self._call(text, args))

    def say(self, text: str) -> None:
        """Run statements without arguments, and without an answer."""
        self._wait(self._tell(text))

    async def asay(self, text: str) -> None:
        """The same without blocking the event loop."""
        await self._await(self._tell(text))

    def _call(self, text: str, args: Sequence[Any]) -> Exchange:
        if text.startswith("COPY "):
            self._server.send_query(text.encode())
            return (yield from self._answer(lines(args).encode(self._encoding)))
        values, formats = self._written(args)
        if not self.direct:
            self._server.send_query_params(text.encode(), values, None, formats, BINARY)
            return (yield from self._answer())
        name = self._prepared.get(text)
        if name is None:
            name = b"durably_%d" % len(self._prepared)
            self._server.send_prepare(name, text.encode())
            yield from self._answer()
            self._prepared[text] = name
        self._server.send_query_prepared(name, values, formats, BINARY)
        return (yield from self._answer())

    def _tell(self, text: str) -> Exchange:
        self._server.send_query(text.encode())
        return (yield from self._answer())

    def _written(self, args: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
        values: list[bytes | None] = []
        formats: list[int] = []
        for value in args:
            kind = type(value)
            if value is None or kind is bytes:
                values.append(value)
                formats.append(BINARY)
                continue
            if kind is list:
                value = literal(value)
            elif kind is bool:
                value = "t" if value else "f"
            elif not isinstance(value, str):
                value = repr(value)
            written = value.encode(self._encoding)
            if 0 in written:
                raise psycopg.DataError("a text of PostgreSQL cannot contain the character NUL")
            values.append(written)
            formats.append(TEXT)
        return values, formats

    def _answer(self, copied: bytes = b"") -> Exchange:
        server = self._server
        yield from self._flush()
        rows: Rows = []
        failure: psycopg.Error | None = None
        while True:
            while server.is_busy():
                yield READ
                server.consume_input()
            result = server.get_result()
            if result is None:
                break
            if result.status == ExecStatus.TUPLES_OK:
                self._loading.set_pgresult(result)
                rows = self._loading.load_rows(0, result.ntuples, tuple)
            elif result.status == ExecStatus.COPY_IN:
                yield from self._feed(copied)
            elif result.status != ExecStatus.COMMAND_OK:
                failure = failure or self._failure(result)
        if failure is not None:
            raise failure
        return rows

    def _flush(self) -> Generator[int, None, None]:
        while self._server.flush():
            yield READ | WRITE
            self._server.consume_input()

    def _feed(self, data: bytes) -> Generator[int, None, None]:
        for place in range(0, len(data), CHUNK):
            while not self._server.put_copy_data(data[place : place + CHUNK]):
                yield WRITE
            yield from self._flush()
        self._server.put_copy_end()
        yield from self._flush()

    def _failure(self, result: PGresult) -> psycopg.Error:
        code, message = (
            (result.error_field(field) or b"").decode(self._encoding, "replace")
            for field in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
        )
        try:
            kind = psycopg.errors.lookup(code)
        except KeyError:
            kind = psycopg.DatabaseError if code else psycopg.OperationalError
        return kind(message or "the connection was lost")

    def _wait(self, exchange: Exchange) -> Rows:
        try:
            while True:
                self._poll.register(self._server.socket, next(exchange))
                self._poll.poll()
        except StopIteration as stop:
            rows: Rows = stop.value
            return rows

    async def _await(self, exchange: Exchange) -> Rows:
        try:
            while True:
                await _ready(self._server.socket, next(exchange))
        except StopIteration as stop:
            rows: Rows = stop.value
            return rows


async def _ready(socket: int, wanted: int) -> None:
    """Wait until the socket can be read, or written if that is wanted too."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(socket, _set, ready)
    if wanted & WRITE:
        loop.add_writer(socket, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(socket)
        if wanted & WRITE:
            loop.remove_writer(socket)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
