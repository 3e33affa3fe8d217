"""Connections to PostgreSQL: kept while they are idle, made direct use of where no pooler stands between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from durably.stores.postgres.wire import Wire

POOL_SIZE = 8

SILENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A peer that vanished without a word is given up after a minute, unless the address says otherwise."""

SETTINGS = {
    "enable_seqscan": "off",
    "enable_memoize": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": "60000",
}
"""Plans are pinned: a table's statistics are stale by the time the table has turned over. And whoever vanishes in the
middle of a transaction holds nobody up for longer than a minute."""

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
BEGIN_POOLED = "; ".join([BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in SETTINGS.items())])
SETTLE = "; ".join(f"SET {name} = {value}" for name, value in SETTINGS.items())


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection for threads."""

    wire: Wire
    lifeline: int | None = None
    """The lock that its server process holds, once there is one."""


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection for an event loop."""

    wire: Wire


def begin(wire: Wire) -> str:
    """What begins a transaction on this connection."""
    return BEGIN if wire.direct else BEGIN_POOLED


class Pool:
    """Up to eight connections for threads, and as many for each event loop.

    Behind a pooler such as PgBouncer in transaction mode nothing may depend on the state of a server session: settings
    are local to their transaction, and nothing is prepared. A pooler gives itself away by the process id that it makes
    up; one that does not is noticed when it loses a prepared statement.
    """

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self._conninfo = make_conninfo(url, **{name: SILENCE[name] for name in SILENCE.keys() - given.keys()})
        self.direct = True
        """False once a pooler was found out: then nothing is prepared any more."""
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._generation = 0
        self._returned = threading.Condition(self._lock)
        self._lent = 0
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = WeakKeyDictionary()

    def connection(self) -> Lent:
        """A connection of the pool; one that anything went wrong on is rolled back or thrown away."""
        return Lent(self)

    def take(self) -> tuple[Connection, int]:
        """The connection that was used last, or a new one; and which generation it belongs to."""
        with self._lock:
            while self._lent >= POOL_SIZE:
                self._returned.wait()
            self._lent += 1
            generation = self._generation
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            if self._usable(connection):
                return connection, generation
            connection.close()
        try:
            return self._connect(), generation
        except BaseException:
            with self._lock:
                self._lent -= 1
                self._returned.notify()
            raise

    def give_back(self, connection: Connection, generation: int, *, clean: bool) -> None:
        """Keep it for the next one, or close it."""
        with self._lock:
            self._lent -= 1
            self._returned.notify()
            kept = clean and not connection.closed and generation == self._generation
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[AsyncConnection]:
        """The same for the running event loop."""
        loop = asyncio.get_running_loop()
        pool = self._loops.setdefault(loop, _LoopPool())
        async with pool.room:
            connection = pool.idle.pop() if pool.idle else None
            if connection is not None and not self._usable(connection):
                await connection.close()
                connection = None
            connection = connection or await self._aconnect()
            clean = False
            try:
                yield connection
                clean = True
            except psycopg.Error:
                clean = await _arolled_back(connection)
                if not clean:
                    await pool.empty()
                raise
            finally:
                if clean and not connection.closed and self._loops.get(loop) is pool:
                    pool.idle.append(connection)
                else:
                    # Closing never waits, so a cancelled operation cannot leave a transaction behind.
                    await connection.close()

    def close(self) -> None:
        """Close what threads have left idle."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            self._generation += 1

    async def aclose(self) -> None:
        """Close what the running event loop has left idle."""
        pool = self._loops.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.empty()

    def _usable(self, connection: Connection | AsyncConnection) -> bool:
        return not connection.closed and (self.direct or not connection.wire.direct)

    def _connect(self) -> Connection:
        connection = Connection.connect(
            self._conninfo, autocommit=True, prepare_threshold=None, cursor_factory=RawCursor
        )
        try:
            [(pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
            connection.wire = Wire(connection, direct=self.direct and pid == connection.info.backend_pid)
            if connection.wire.direct:
                connection.wire.say(SETTLE)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _aconnect(self) -> AsyncConnection:
        connection = await AsyncConnection.connect(
            self._conninfo, autocommit=True, prepare_threshold=None, cursor_factory=AsyncRawCursor
        )
        try:
            [(pid,)] = await (await connection.execute("SELECT pg_backend_pid()")).fetchall()
            connection.wire = Wire(connection, direct=self.direct and pid == connection.info.backend_pid)
            if connection.wire.direct:
                await connection.wire.asay(SETTLE)
        except BaseException:
            await connection.close()
            raise
        return connection


class Lent:
    """A connection for as long as the block takes."""

    __slots__ = ("_connection", "_generation", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> Connection:
        self._connection, self._generation = self._pool.take()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        clean = error is None
        if isinstance(error, psycopg.Error):
            clean = _rolled_back(self._connection)
            if not clean:
                self._pool.close()
        self._pool.give_back(self._connection, self._generation, clean=clean)


class _LoopPool:
    """The idle connections of one event loop."""

    def __init__(self) -> None:
        self.idle: list[AsyncConnection] = []
        self.room = asyncio.Semaphore(POOL_SIZE)

    async def empty(self) -> None:
        """Close what is idle: where one connection broke, the others are no better."""
        while self.idle:
            await self.idle.pop().close()


def _rolled_back(connection: Connection) -> bool:
    try:
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.rollback()
    except psycopg.Error:
        return False
    return not connection.closed


async def _arolled_back(connection: AsyncConnection) -> bool:
    try:
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            await connection.rollback()
    except psycopg.Error:
        return False
    return not connection.closed
