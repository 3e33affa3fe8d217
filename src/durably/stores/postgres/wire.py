"""Statements straight over libpq: prepared once for each connection, and without a cursor for every one of them."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from durably.stores.postgres.arrays import literal, packed
from durably.stores.postgres.copy import lines
from durably.stores.statement import Rows

TEXT, BINARY = 0, 1
READ, WRITE = select.POLLIN, select.POLLOUT
CHUNK = 1 << 18
"""So many bytes of a copy are handed over at once."""

T = TypeVar("T")

Exchange = Generator[int, None, T]
"""A conversation with the server, of one statement or of many: it yields what it must wait for."""


class Wire:
    """One connection to the server. A conversation yields what it waits for, and its driver waits as it may.

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
        return self.drive(self.call(text, args))

    async def arun(self, text: str, args: Sequence[Any]) -> Rows:
        """The same without blocking the event loop."""
        return await self.adrive(self.call(text, args))

    def say(self, text: str) -> None:
        """Run statements without arguments, and without an answer."""
        self.drive(self.tell(text))

    async def asay(self, text: str) -> None:
        """The same without blocking the event loop."""
        await self.adrive(self.tell(text))

    def call(self, text: str, args: Sequence[Any]) -> Exchange[Rows]:
        """Run a statement; it answers with its rows."""
        if text.startswith("COPY "):
            self._server.send_query(text.encode())
            return (yield from self._answer(lines(args)))
        values, formats = self._written(text, args)
        if not self.direct:
            self._server.send_query_params(text.encode(), values, None, formats, BINARY)
            return (yield from self._answer())
        name = self._prepared.get(text) or (yield from self._prepare(text))
        self._server.send_query_prepared(name, values, formats, BINARY)
        return (yield from self._answer())

    def _prepare(self, text: str) -> Exchange[bytes]:
        name = b"durably_%d" % len(self._prepared)
        self._server.send_prepare(name, text.encode())
        yield from self._answer()
        self._prepared[text] = name
        return name

    def put(self, text: str, values: Sequence[bytes], formats: Sequence[int]) -> int | None:
        """Run a statement by the shortest way, and count the rows of its answer; None if this connection has none.

        What is text in it is UTF-8.
        """
        if not self.direct or self._encoding != "utf-8":
            return None
        name = self._prepared.get(text) or self.drive(self._prepare(text))
        server, poll = self._server, self._poll
        server.send_query_prepared(name, values, formats, BINARY)
        while server.flush():
            poll.register(server.socket, READ | WRITE)
            poll.poll()
            server.consume_input()
        poll.register(server.socket, READ)
        poll.poll()
        server.consume_input()
        failure: psycopg.Error | None = None
        rows = 0
        while True:
            while server.is_busy():
                poll.poll()
                server.consume_input()
            result = server.get_result()
            if result is None:
                break
            if result.status == ExecStatus.TUPLES_OK:
                rows = result.ntuples
            elif result.status != ExecStatus.COMMAND_OK:
                failure = failure or self._failure(result)
        if failure is not None:
            raise failure
        return rows

    def call_after(self, before: str, text: str, args: Sequence[Any]) -> Exchange[Rows]:
        """Run a statement after one that has neither arguments nor an answer, and that must not fail.

        Where the connection knows the statement, both go out at once.
        """
        name = self._prepared.get(text)
        if name is None or not self.direct:
            yield from self.tell(before)
            return (yield from self.call(text, args))
        values, formats = self._written(text, args)
        server = self._server
        server.enter_pipeline_mode()
        server.send_query_params(before.encode(), None)
        server.send_query_prepared(name, values, formats, BINARY)
        server.pipeline_sync()
        return (yield from self._answers())

    def tell(self, text: str) -> Exchange[Rows]:
        """Run statements without arguments."""
        self._server.send_query(text.encode())
        return (yield from self._answer())

    def _written(self, text: str, args: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
        if arrays := packed(text):
            args = list(args)
            for index, pack in arrays:
                try:
                    args[index] = pack(args[index])
                except ValueError as error:
                    raise psycopg.DataError(f"an invalid uuid: {error}") from error
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

    def _answer(self, copied: Iterable[str] = ()) -> Exchange[Rows]:
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
                rows = self._loaded(result)
            elif result.status == ExecStatus.COPY_IN:
                yield from self._feed(copied)
            elif result.status != ExecStatus.COMMAND_OK:
                failure = failure or self._failure(result)
        if failure is not None:
            raise failure
        return rows

    def _answers(self) -> Exchange[Rows]:
        """What the statements that went out at once are answered with, up to the point where the server is in step."""
        server = self._server
        yield from self._flush()
        rows: Rows = []
        failure: psycopg.Error | None = None
        silent = False
        while True:
            while server.is_busy():
                yield READ
                server.consume_input()
            result = server.get_result()
            if result is None:
                if silent:
                    raise psycopg.OperationalError("the connection was lost")
                silent = True
                continue
            silent = False
            if result.status == ExecStatus.PIPELINE_SYNC:
                break
            if result.status == ExecStatus.TUPLES_OK:
                rows = self._loaded(result)
            elif result.status not in (ExecStatus.COMMAND_OK, ExecStatus.PIPELINE_ABORTED):
                failure = failure or self._failure(result)
        server.exit_pipeline_mode()
        if failure is not None:
            raise failure
        return rows

    def _loaded(self, result: PGresult) -> Rows:
        self._loading.set_pgresult(result)
        return self._loading.load_rows(0, result.ntuples, tuple)

    def _flush(self) -> Exchange[None]:
        while self._server.flush():
            yield READ | WRITE
            self._server.consume_input()

    def _feed(self, copied: Iterable[str]) -> Exchange[None]:
        for part in copied:
            data = part.encode(self._encoding)
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

    def drive(self, exchange: Exchange[T]) -> T:
        """Go through a conversation, and answer what comes of it."""
        try:
            while True:
                self._poll.register(self._server.socket, next(exchange))
                self._poll.poll()
        except StopIteration as stop:
            answer: T = stop.value
            return answer
        finally:
            exchange.close()

    async def adrive(self, exchange: Exchange[T]) -> T:
        """The same without blocking the event loop."""
        try:
            wanted = next(exchange)
        except StopIteration as stop:
            answer: T = stop.value
            return answer
        watch = _Watch(asyncio.get_running_loop(), self._server.socket, exchange)
        try:
            watch.wait(wanted)
            return await watch.over
        finally:
            watch.stop()
            exchange.close()


class _Watch(Generic[T]):
    """Goes on with a conversation as soon as its socket is ready. Who waits for all of it is woken once, at the end."""

    __slots__ = ("_exchange", "_loop", "_socket", "_watching", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: int, exchange: Exchange[T]) -> None:
        self._loop = loop
        self._socket = socket
        self._exchange = exchange
        self._watching = 0
        self.over: asyncio.Future[T] = loop.create_future()

    def wait(self, wanted: int) -> None:
        """Watch whether the socket can be read, or written if that is wanted too."""
        if not self._watching:
            self._loop.add_reader(self._socket, self._go_on)
        if wanted & WRITE and not self._watching & WRITE:
            self._loop.add_writer(self._socket, self._go_on)
        elif self._watching & WRITE and not wanted & WRITE:
            self._loop.remove_writer(self._socket)
        self._watching = wanted | READ

    def stop(self) -> None:
        """Watch no more."""
        if self._watching:
            self._loop.remove_reader(self._socket)
        if self._watching & WRITE:
            self._loop.remove_writer(self._socket)
        self._watching = 0

    def _go_on(self) -> None:
        if self.over.done():
            return
        try:
            self.wait(next(self._exchange))
        except StopIteration as stop:
            self.stop()
            self.over.set_result(stop.value)
        except BaseException as error:
            self.stop()
            self.over.set_exception(error)
