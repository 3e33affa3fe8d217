"""The production store: PostgreSQL 14 and newer, in a schema of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import threading
import time
from typing import Any, TypeVar

import psycopg

from durably.core.ids import partition_of
from durably.core.task import Draft
from durably.errors import BadOption, SchemaOutdated, StoreRejected, StoreUnavailable
from durably.stores.migrations import migrations, split
from durably.stores.postgres.address import checked, redacted
from durably.stores.postgres.examine import examine
from durably.stores.postgres.lifeline import let_end, tie
from durably.stores.postgres.listen import Notifications
from durably.stores.postgres.pieces import dialect
from durably.stores.postgres.pool import Connection, Pool, begin
from durably.stores.postgres.under_way import UnderWay
from durably.stores.postgres.wire import BINARY, TEXT, Exchange, Wire
from durably.stores.protocol import BELIEVED, UNHEARD, Caller, Finding
from durably.stores.start import Started
from durably.stores.statement import Operation, Otherwise, Queries, Rows, Steps, array_call, in_schema, load

T = TypeVar("T")

COLLISIONS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
NEW = ("copy_tasks", "insert_new", "insert_all_new")
"""What only takes tasks whose ids nobody has met."""
REPEATS = 20
ENDINGS = 2
"""So often it is tried to make sure that a broken connection has come to its end."""
REMEMBERED = 100
"""So many queues are remembered at most."""
FORMATS = (TEXT, BINARY, BINARY, BINARY, TEXT, TEXT)
"""How what `insert_new` is told is written."""
POOLER_SEEN = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)


class PostgresStore:
    """Tasks in PostgreSQL.

    It works behind PgBouncer in transaction mode. Only LISTEN needs a direct connection; `listen_url` names one, and
    without it behind a pooler the worker polls.
    """

    sleeps = True
    threaded = False

    def __init__(self, url: str, *, schema: str = "durably", listen_url: str | None = None) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", schema):
            raise BadOption(f"schema: {schema!r} must be a plain lower-case name such as 'durably'")
        self.url = checked(url)
        self.schema = schema
        self.listen_url = checked(listen_url or url)
        known = load(dialect(schema))
        self.queries = known.without("drop_revived")
        self._careful = known.without(*NEW)
        """What is asked after an id was met twice."""
        self.pool = Pool(url)
        self._put = self.queries.text("insert_new")
        self._put_unheard = self.queries.text("insert_unheard")
        self._hint = self.queries.text("notify")
        self._putting = threading.Lock()
        self._nobody_slept: dict[str, float] = {}
        """When a look at a queue began that found nobody asleep on it."""

    @property
    def address(self) -> str:
        return redacted(self.url)

    def run(self, op: Operation[T]) -> T:
        return self._run(op, self.queries)

    def _run(self, op: Operation[T], queries: Queries) -> T:
        for left in range(REPEATS, -1, -1):
            try:
                with self.pool.connection() as connection:
                    return connection.wire.drive(self._exchange(connection.wire, op, queries))
            except UnicodeEncodeError as error:
                raise StoreRejected(f"{self.address}: {error}") from error
            except psycopg.Error as error:
                queries = self._again(op, error, left, queries)
                time.sleep(random.uniform(0, 0.02))
        raise AssertionError

    async def arun(self, op: Operation[T]) -> T:
        queries = self.queries
        for left in range(REPEATS, -1, -1):
            try:
                async with self.pool.aconnection() as connection:
                    return await connection.wire.adrive(self._exchange(connection.wire, op, queries))
            except UnicodeEncodeError as error:
                raise StoreRejected(f"{self.address}: {error}") from error
            except psycopg.Error as error:
                queries = self._again(op, error, left, queries)
                await asyncio.sleep(random.uniform(0, 0.02))
        raise AssertionError

    def put(self, draft: Draft) -> bool:
        """One prepared statement. Only one thread at a time: the others share one on the usual way."""
        if not self._putting.acquire(blocking=False):
            return False
        connection: Connection | None = None
        try:
            with self.pool.connection() as connection:
                return self._stated_alone(connection, draft)
        except AWAY as error:
            if connection is not None and not connection.closed and not isinstance(error, psycopg.errors.DiskFull):
                return False
            if connection is not None and connection.lifeline is not None and connection.closed:
                self._let_end(connection.lifeline, draft.id)
            raise self.told(error) from error
        except (psycopg.Error, UnicodeEncodeError):
            return False
        finally:
            self._putting.release()

    def _stated_alone(self, connection: Connection, draft: Draft) -> bool:
        """While one follows the other, not every one looks whether somebody sleeps who must be told."""
        wire = connection.wire
        if not wire.direct:
            return False
        if connection.lifeline is None:
            connection.lifeline = tie(connection)
        queue, now = draft.queue, time.monotonic()
        looked_at = self._nobody_slept.get(queue, -math.inf)
        if now < looked_at + BELIEVED:
            sleepers = wire.put(self._put_unheard, _values(draft), FORMATS)
        else:
            sleepers = wire.put(self._put, _values(draft), FORMATS)
            looked_at = now
            if sleepers == 0:
                if len(self._nobody_slept) >= REMEMBERED:
                    self._nobody_slept.clear()
                self._nobody_slept[queue] = now
        if sleepers == 0 and time.monotonic() >= looked_at + UNHEARD:
            with contextlib.suppress(psycopg.Error):
                wire.run(self._hint, [[queue]])
        return sleepers is not None

    def _let_end(self, lifeline: int, task_id: str) -> None:
        """Make sure that a statement which was given up for lost takes no effect later.

        The task is sent again, and may have ended by then.
        """
        for left in reversed(range(ENDINGS)):
            try:
                with self.pool.connection() as connection:
                    return let_end(connection, lifeline)
            except psycopg.Error as error:
                if left and not isinstance(error, psycopg.errors.LockNotAvailable):
                    continue
                what = f"task {task_id} may still be accepted: look whether it was before you send another"
                raise StoreUnavailable(f"{self.address}: the connection broke, and {what} ({_first(error)})") from error

    def start(self, op: Operation[T]) -> Started[T]:
        return _Started(self, op)

    def _again(self, op: Operation[T], error: psycopg.Error, left: int, queries: Queries) -> Queries:
        """The queries with which to run an operation again after this error, if that can help."""
        if left and isinstance(error, COLLISIONS):
            return queries
        if left and isinstance(error, POOLER_SEEN):
            self.pool.direct = False
            return queries
        if left and isinstance(error, psycopg.errors.UniqueViolation) and queries is self.queries:
            return self._careful
        if isinstance(error, COLLISIONS):
            raise StoreUnavailable(f"{self.address}: {op.name} kept colliding: {_first(error)}") from error
        raise self.told(error) from error

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
            with self.pool.connection() as connection, connection.transaction():
                lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
                connection.execute(lock, [f"durably/{self.schema}"], prepare=False)
                applied = self._applied(connection)
                done = [step for step in migrations("durably.stores.postgres") if step.version > applied]
                if done:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}".encode(), prepare=False)
                for step in done:
                    for statement in split(in_schema(step.text, self.schema)):
                        connection.execute(statement.encode(), prepare=False)
                    connection.execute(
                        in_schema(
                            "INSERT INTO durably.meta VALUES ('schema', $1) "
                            "ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value",
                            self.schema,
                        ).encode(),
                        [str(step.version)],
                        prepare=False,
                    )
                return [step.name for step in done]
        except psycopg.Error as error:
            raise self.told(error) from error

    def pending(self) -> list[str]:
        try:
            with self.pool.connection() as connection:
                applied = self._applied(connection)
        except psycopg.Error as error:
            raise self.told(error) from error
        return [step.name for step in migrations("durably.stores.postgres") if step.version > applied]

    def examine(self) -> list[Finding]:
        try:
            with self.pool.connection() as connection:
                return examine(connection, self.schema, self.pending())
        except psycopg.Error as error:
            raise self.told(error) from error

    def close(self) -> None:
        self.pool.close()

    async def aclose(self) -> None:
        await self.pool.aclose()

    def _applied(self, connection: Connection) -> int:
        known = migrations("durably.stores.postgres")[-1].version
        table = [f"{self.schema}.meta"]
        [(exists,)] = connection.execute("SELECT to_regclass($1)::text", table, prepare=False).fetchall()
        if exists is None:
            return 0
        query = in_schema("SELECT value FROM durably.meta WHERE name = 'schema'", self.schema)
        rows = connection.execute(query.encode(), prepare=False).fetchall()
        version = int(rows[0][0]) if rows else 0
        if version > known:
            raise SchemaOutdated(
                f"{self.address} has schema {version}, and this version of durably knows up to {known}: upgrade durably"
            )
        return version

    def _exchange(self, wire: Wire, op: Operation[T], queries: Queries) -> Exchange[T]:
        """Everything that an operation has to say to the server."""
        if self._stands_alone(wire, op, queries):
            return (yield from _stated(wire, op.steps(queries)))
        try:
            return (yield from _transacted(wire, op.steps(queries)))
        except Otherwise as other:
            yield from wire.tell("ROLLBACK")
            return (yield from _transacted(wire, op.steps(queries.without(other.name))))

    def _stands_alone(self, wire: Wire, op: Operation[Any], queries: Queries) -> bool:
        """Whether it needs no transaction around it; behind a pooler, that is where the settings are."""
        return op.single and queries is self.queries and (wire.direct or not op.writes)

    def told(self, error: psycopg.Error) -> Exception:
        """The error in our own words: what happened, where, and what to do next."""
        where, what = self.address, _first(error)
        if isinstance(
            error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction
        ):
            return SchemaOutdated(f"{where} has no Durably schema {self.schema!r}: run `durably migrate` ({what})")
        if isinstance(error, psycopg.errors.DiskFull):
            return StoreUnavailable(f"{where}: the disk is full: free some space, nothing that was accepted is lost")
        if isinstance(error, AWAY):
            return StoreUnavailable(f"{where} cannot be reached: {what}", fleeting=True)
        return StoreRejected(f"{where}: {what}")


class _Started(UnderWay[T]):
    """An operation under way; if it must be repeated, that is done when its result is wanted."""

    def __init__(self, store: PostgresStore, op: Operation[T]) -> None:
        self._store = store
        self._op = op
        super().__init__(store.pool.connection(), lambda wire: store._exchange(wire, op, store.queries))

    def result(self) -> T:
        store = self._store
        try:
            return super().result()
        except UnicodeEncodeError as error:
            raise StoreRejected(f"{store.address}: {error}") from error
        except psycopg.Error as error:
            return store._run(self._op, store._again(self._op, error, REPEATS, store.queries))


def _values(draft: Draft) -> list[bytes]:
    """What `insert_new` is told. A text goes as bytes, in which the server notices what no text can contain."""
    task_id = draft.id
    return [
        task_id.encode(),
        draft.name.encode(),
        draft.queue.encode(),
        draft.payload,
        b"%d" % draft.priority,
        b"%d" % partition_of(task_id),
    ]


def _first(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _transacted(wire: Wire, steps: Steps[T]) -> Exchange[T]:
    """The same within a transaction, which begins with the first statement."""
    try:
        first = next(steps)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    try:
        rows = yield from wire.call_after(begin(wire), *array_call(first))
        answer = yield from _stated(wire, steps, rows)
    finally:
        steps.close()
    yield from wire.tell("COMMIT")
    return answer


def _stated(wire: Wire, steps: Steps[T], rows: Rows | None = None) -> Exchange[T]:
    """Every statement of an operation, or every one after the first if that had these rows; and what that answers."""
    try:
        statement = next(steps) if rows is None else steps.send(rows)
        while True:
            statement = steps.send((yield from wire.call(*array_call(statement))))
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    finally:
        steps.close()
