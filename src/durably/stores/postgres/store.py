"""The production store: PostgreSQL 14 and newer, in a schema of its own."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncRawCursor, RawCursor

from durably.errors import BadOption, SchemaOutdated, StoreRejected, StoreUnavailable
from durably.stores.columns import ended_columns, live_columns, task_columns
from durably.stores.drive import adrive, drive
from durably.stores.migrations import migrations, split
from durably.stores.postgres.arrays import arguments
from durably.stores.postgres.examine import examine
from durably.stores.postgres.listen import Notifications
from durably.stores.protocol import Caller, Finding
from durably.stores.statement import Dialect, Operation, Rows, Statement, array_call, in_schema, load

T = TypeVar("T")

BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; SET LOCAL jit = off; "
    "SET LOCAL plan_cache_mode = force_generic_plan"
)
COLLISIONS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
REPEATS = 20
POOL_SIZE = 8

Connection = psycopg.Connection[tuple[Any, ...]]
AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]


def dialect(schema: str) -> Dialect:
    """The dialect for a schema name."""
    return Dialect(
        "durably.stores.postgres",
        {
            "task": task_columns("::text"),
            "live": live_columns("::text", "::int"),
            "ended": ended_columns("::text", "false"),
        },
        numbered=True,
        schema=schema,
    )


class PostgresStore:
    """Tasks in PostgreSQL.

    Nothing depends on the state of a server session: settings are local to their transaction and nothing is prepared,
    so the store works behind PgBouncer in transaction mode. Only LISTEN needs a direct connection; `listen_url` names
    one, and without it behind a pooler the worker polls.
    """

    sleeps = True

    def __init__(self, url: str, *, schema: str = "durably", listen_url: str | None = None) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", schema):
            raise BadOption(f"schema: {schema!r} must be a plain lower-case name such as 'durably'")
        self.url = url
        self.schema = schema
        self.listen_url = listen_url or url
        self.queries = load(dialect(schema))
        self._idle: list[Connection] = []
        self._idle_lock = threading.Lock()
        self._generation = 0
        self._room = threading.BoundedSemaphore(POOL_SIZE)
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = WeakKeyDictionary()

    @property
    def address(self) -> str:
        return redacted(self.url)

    def run(self, op: Operation[T]) -> T:
        for left in range(REPEATS, -1, -1):
            try:
                with self._connection() as connection:
                    return self._transact(connection, op)
            except COLLISIONS as error:
                if not left:
                    raise StoreUnavailable(f"{self.address}: {op.name} kept colliding: {_first(error)}") from error
                time.sleep(random.uniform(0, 0.02))
            except psycopg.Error as error:
                raise self.told(error) from error
        raise AssertionError

    async def arun(self, op: Operation[T]) -> T:
        for left in range(REPEATS, -1, -1):
            try:
                async with self._aconnection() as connection:
                    return await self._atransact(connection, op)
            except COLLISIONS as error:
                if not left:
                    raise StoreUnavailable(f"{self.address}: {op.name} kept colliding: {_first(error)}") from error
                await asyncio.sleep(random.uniform(0, 0.02))
            except psycopg.Error as error:
                raise self.told(error) from error
        raise AssertionError

    def private(self) -> PostgresStore:
        return PostgresStore(self.url, schema=self.schema, listen_url=self.listen_url)

    def caller(self, connection: Any) -> Caller:
        from durably.stores.callers import postgres_caller

        return postgres_caller(connection, self)

    def wakeups(self) -> Notifications:
        return Notifications(self.listen_url, self.schema)

    def migrate(self) -> list[str]:
        """Bring the schema up to date. Migrators wait for each other; workers may be running."""
        try:
            with self._connection() as connection, connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", [f"durably/{self.schema}"])
                applied = self._applied(connection)
                done = [step for step in migrations("durably.stores.postgres") if step.version > applied]
                if done:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}".encode())
                for step in done:
                    for statement in split(in_schema(step.text, self.schema)):
                        connection.execute(statement.encode())
                    connection.execute(
                        in_schema(
                            "INSERT INTO durably.meta VALUES ('schema', $1) "
                            "ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value",
                            self.schema,
                        ).encode(),
                        [str(step.version)],
                    )
                return [step.name for step in done]
        except psycopg.Error as error:
            raise self.told(error) from error

    def pending(self) -> list[str]:
        try:
            with self._connection() as connection:
                applied = self._applied(connection)
        except psycopg.Error as error:
            raise self.told(error) from error
        return [step.name for step in migrations("durably.stores.postgres") if step.version > applied]

    def examine(self) -> list[Finding]:
        try:
            with self._connection() as connection:
                return examine(connection, self.schema, self.pending())
        except psycopg.Error as error:
            raise self.told(error) from error

    def close(self) -> None:
        with self._idle_lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            self._generation += 1

    async def aclose(self) -> None:
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.empty()

    def _applied(self, connection: Connection) -> int:
        known = migrations("durably.stores.postgres")[-1].version
        [(exists,)] = connection.execute("SELECT to_regclass($1)::text", [f"{self.schema}.meta"]).fetchall()
        if exists is None:
            return 0
        query = in_schema("SELECT value FROM durably.meta WHERE name = 'schema'", self.schema)
        rows = connection.execute(query.encode()).fetchall()
        version = int(rows[0][0]) if rows else 0
        if version > known:
            raise SchemaOutdated(
                f"{self.address} has schema {version}, and this version of durably knows up to {known}: upgrade durably"
            )
        return version

    def _transact(self, connection: Connection, op: Operation[T]) -> T:
        def execute(statement: Statement) -> Rows:
            text, args = array_call(statement)
            cursor = connection.execute(text.encode(), arguments(args))
            return cursor.fetchall() if cursor.description is not None else []

        if op.single:
            return drive(op.steps(self.queries), execute)
        connection.execute(BEGIN)
        answer = drive(op.steps(self.queries), execute)
        connection.execute("COMMIT")
        return answer

    async def _atransact(self, connection: AsyncConnection, op: Operation[T]) -> T:
        async def execute(statement: Statement) -> Rows:
            text, args = array_call(statement)
            cursor = await connection.execute(text.encode(), arguments(args))
            return await cursor.fetchall() if cursor.description is not None else []

        if op.single:
            return await adrive(op.steps(self.queries), execute)
        await connection.execute(BEGIN)
        answer = await adrive(op.steps(self.queries), execute)
        await connection.execute("COMMIT")
        return answer

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection of the pool; one that anything went wrong on is rolled back or thrown away."""
        with self._room:
            with self._idle_lock:
                connection = self._idle.pop() if self._idle else None
                generation = self._generation
            if connection is None or connection.closed:
                connection = psycopg.Connection.connect(
                    self.url, autocommit=True, prepare_threshold=None, cursor_factory=RawCursor, connect_timeout=10
                )
            clean = False
            try:
                yield connection
                clean = True
            except psycopg.Error:
                clean = _rolled_back(connection)
                if not clean:
                    self.close()
                raise
            finally:
                with self._idle_lock:
                    kept = clean and not connection.closed and generation == self._generation
                    if kept:
                        self._idle.append(connection)
                if not kept:
                    connection.close()

    @asynccontextmanager
    async def _aconnection(self) -> AsyncIterator[AsyncConnection]:
        pool = self._pools.setdefault(asyncio.get_running_loop(), _LoopPool())
        async with pool.room:
            connection = pool.idle.pop() if pool.idle else None
            if connection is None or connection.closed:
                connection = await psycopg.AsyncConnection.connect(
                    self.url, autocommit=True, prepare_threshold=None, cursor_factory=AsyncRawCursor, connect_timeout=10
                )
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
                if clean and not connection.closed:
                    pool.idle.append(connection)
                else:
                    # Closing never waits, so a cancelled operation cannot leave a transaction behind.
                    await connection.close()

    def told(self, error: psycopg.Error) -> Exception:
        """The error in our own words: what happened, where, and what to do next."""
        where, what = self.address, _first(error)
        if isinstance(
            error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction
        ):
            return SchemaOutdated(f"{where} has no Durably schema {self.schema!r}: run `durably migrate` ({what})")
        if isinstance(error, psycopg.errors.DiskFull):
            return StoreUnavailable(f"{where}: the disk is full: free some space, nothing that was accepted is lost")
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(f"{where} cannot be reached: {what}", fleeting=True)
        return StoreRejected(f"{where}: {what}")


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
        if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.rollback()
    except psycopg.Error:
        return False
    return not connection.closed


async def _arolled_back(connection: AsyncConnection) -> bool:
    try:
        if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await connection.rollback()
    except psycopg.Error:
        return False
    return not connection.closed


def _first(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def redacted(url: str) -> str:
    """The URL without its password."""
    hidden = re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)
