"""The embedded store: one file, one writer, WAL with synchronous=FULL."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from durably.core.ids import partition_of
from durably.core.moment import Clock, HostClock
from durably.core.task import Draft
from durably.errors import SchemaOutdated, StoreRejected, StoreUnavailable
from durably.stores.columns import destination_columns, ended_columns, head_columns, live_columns, task_columns
from durably.stores.drive import adrive, drive
from durably.stores.migrations import migrations, split
from durably.stores.protocol import Caller, Finding
from durably.stores.sqlite.examine import examine
from durably.stores.sqlite.packed import BEGINNING, LISTS, SPELLING, Packed, fetched, listed, packed_columns, unpacked
from durably.stores.sqlite.together import Job, Together
from durably.stores.sqlite.wakeups import DataVersion
from durably.stores.start import InThread, Started
from durably.stores.statement import Dialect, Operation, Rows, Statement, load, plain_calls

P = ParamSpec("P")
T = TypeVar("T")

TOKEN = "SELECT CAST(value AS INTEGER) FROM durably_meta WHERE name = 'token'"
DIALECT = Dialect(
    "durably.stores.sqlite",
    {
        "task": task_columns(""),
        "live": live_columns("", ""),
        "head": head_columns(SPELLING, f"({TOKEN})", "?4"),
        "ended": ended_columns("", "0"),
        "destination": destination_columns(),
        "token": TOKEN,
        "packed": packed_columns(),
        "claimed": f"FROM durably_tasks t WHERE t.state = 'leased' AND t.token = ({TOKEN})",
        "leased": "k.state = 'leased' AND (k.head = t.id OR instr(k.followers, t.id) > 0)",
    },
    numbered=False,
)
PATIENCE = 30.0
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class SqliteStore:
    """Tasks in an SQLite file, beside the application's own tables if it likes.

    Every write is `BEGIN IMMEDIATE` on one connection per process; a lock that another process holds is waited for
    with jitter, since SQLite's own busy handler is unfair. Reads have a connection of their own.
    """

    sleeps = False
    threaded = True

    def __init__(self, path: str, clock: Clock | None = None, *, patience: float = PATIENCE) -> None:
        if sqlite3.sqlite_version_info < (3, 40):
            raise StoreUnavailable(f"SQLite 3.40 or newer is needed; this Python has {sqlite3.sqlite_version}")
        self.path = path if path == ":memory:" else os.path.abspath(path)
        self.clock = clock or HostClock()
        self.queries = load(DIALECT)
        self._put = self.queries.text("put")
        self._patience = patience
        self._lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._beginning = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._together: Together | None = None
        self._migrated = False
        self._lenient = False

    @property
    def address(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def in_memory(self) -> bool:
        return self.path == ":memory:"

    def run(self, op: Operation[T]) -> T:
        if op.writes or self.in_memory:
            [answer] = self._write([op])
            return cast(T, answer)
        if not self._migrated:
            self.migrate()
        return self._patiently(self._read, op)

    def put(self, draft: Draft) -> bool:
        """One statement, which is a transaction by itself. It waits for nobody: those who must share one of theirs."""
        if not self._migrated or not self._lock.acquire(blocking=False):
            return False
        try:
            text, now, task_id = self._put, self.clock.now(), draft.id
            where = partition_of(task_id)
            args = (task_id, now, now, where, draft.priority, draft.name, draft.queue, draft.payload)
            (self._writer or self._writing()).execute(text, args)
        except (sqlite3.Error, UnicodeEncodeError, OverflowError):
            return False
        finally:
            self._lock.release()
        return True

    def start(self, op: Operation[T]) -> Started[T]:
        return InThread(lambda: self.run(op))

    async def arun(self, op: Operation[T]) -> T:
        thread, together = self._writer_thread()
        if op.writes and op.single:
            # The loop takes the steps between its statements, and the thread can go on with what others want.
            return await adrive(op.steps(self.queries), lambda statement: _answered(together, statement))
        if op.writes:
            return cast(T, await together.run(op))
        return await asyncio.get_running_loop().run_in_executor(thread, self.run, op)

    def _writer_thread(self) -> tuple[ThreadPoolExecutor, Together]:
        # Not the lock of the writer, which is held as long as a transaction takes: a loop must not wait for that.
        with self._beginning:
            if self._executor is None or self._together is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="durably-sqlite")
                self._together = Together(self._executor, self._write)
            return self._executor, self._together

    def private(self) -> SqliteStore:
        if self.in_memory:
            return self
        return SqliteStore(self.path, self.clock, patience=self._patience)

    def caller(self, connection: Any) -> Caller:
        from durably.stores.callers import sqlite_caller

        return sqlite_caller(connection, self)

    def wakeups(self) -> DataVersion:
        return DataVersion(None if self.in_memory else self._connect)

    def migrate(self) -> list[str]:
        """Bring the schema up to date. It is done at the first use, and may be done by many at once."""
        with self._lock:
            done = self._patiently(self._migrate)
            self._migrated = True
            return done

    def pending(self) -> list[str]:
        applied = self._patiently(lambda: self._applied(self._writing()))
        return [step.name for step in migrations(DIALECT.package) if step.version > applied]

    def examine(self) -> list[Finding]:
        with self._lock:
            return examine(self._writing(), self.path, self.pending())

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        with self._lock, self._read_lock:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._writer = self._reader = None

    async def aclose(self) -> None:
        """Nothing here belongs to an event loop."""

    def _connect(self) -> sqlite3.Connection:
        try:
            folder = os.path.dirname(self.path)
            if not self.in_memory and not os.path.isdir(folder):
                raise StoreUnavailable(f"{self.address}: the folder {folder} does not exist")
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            try:
                self._patiently(lambda: connection.execute("PRAGMA synchronous = FULL").fetchall())
                # 64 MiB of pages: less is not enough for the indexes of millions of tasks.
                connection.execute("PRAGMA cache_size = -65536")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise self._told(error) from error
        if self._lenient:
            connection.text_factory = _leniently
        return connection

    def _be_lenient(self) -> None:
        """Text that is no UTF-8 was found, in a row that must not stop the others; to look twice costs, so only now."""
        self._lenient = True
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.text_factory = _leniently

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _write(self, jobs: Sequence[Job]) -> list[Any]:
        """Do these in one transaction; all of them, or none."""
        if not self._migrated:
            self.migrate()
        return self._patiently(self._written, jobs)

    def _written(self, jobs: Sequence[Job]) -> list[Any]:
        with self._lock:
            connection = self._writer or self._writing()
            if len(jobs) == 1:
                [job] = jobs
                if isinstance(job, Statement):
                    return [self._alone(job)]
                if job.single:
                    return [drive(job.steps(self.queries), lambda statement: unpacked(self._alone(statement)))]
            with _transaction(connection):
                return [self._within(connection, job) for job in jobs]

    def _within(self, connection: sqlite3.Connection, job: Job) -> Any:
        if isinstance(job, Statement):
            return _executed(connection, plain_calls(job, self.clock.now()))
        return drive(job.steps(self.queries), lambda statement: self.execute(connection, statement))

    def _alone(self, statement: Statement) -> Packed | Rows:
        """Run a statement in a transaction of its own; a lone call is one by itself."""
        connection = self._writing()
        calls = plain_calls(statement, self.clock.now())
        if len(calls) == 1:
            return _executed(connection, calls)
        with _transaction(connection):
            return _executed(connection, calls)

    def _read(self, op: Operation[T]) -> T:
        with self._read_lock:
            if self._reader is None:
                self._reader = self._connect()
            connection = self._reader
            connection.execute("BEGIN")
            try:
                return drive(op.steps(self.queries), lambda statement: self.execute(connection, statement))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def execute(self, connection: sqlite3.Connection, statement: Statement) -> Rows:
        """Run one statement of an operation."""
        return unpacked(_executed(connection, plain_calls(statement, self.clock.now())))

    def _migrate(self) -> list[str]:
        connection = self._writing()
        if self._applied(connection) == 0 and not self.in_memory:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        with _transaction(connection):
            applied = self._applied(connection)
            done = [step for step in migrations(DIALECT.package) if step.version > applied]
            for step in done:
                for statement in split(step.text):
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO durably_meta VALUES ('schema', ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (str(step.version),),
                )
        return [step.name for step in done]

    def _applied(self, connection: sqlite3.Connection) -> int:
        known = migrations(DIALECT.package)[-1].version
        exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'durably_meta'").fetchall()
        if not exists:
            return 0
        [(version,)] = connection.execute("SELECT value FROM durably_meta WHERE name = 'schema'").fetchall()
        if int(version) > known:
            raise SchemaOutdated(
                f"{self.address} has schema {version}, and this version of durably knows up to {known}: upgrade durably"
            )
        return int(version)

    def _patiently(self, attempt: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Try until the lock is ours. Whoever holds it is another process, and is asked again with jitter."""
        deadline = time.monotonic() + self._patience
        wait = 0.001
        while True:
            try:
                return attempt(*args, **kwargs)
            except (UnicodeEncodeError, OverflowError) as error:
                raise StoreRejected(f"{self.address}: {error}") from error
            except sqlite3.Error as error:
                if not self._lenient and str(error).startswith("Could not decode to UTF-8"):
                    self._be_lenient()
                    continue
                busy = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _BUSY
                if not busy:
                    raise self._told(error) from error
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"{self.address} stayed locked for {self._patience:g} s: look for a transaction that is left "
                        "open; if it is your own, enqueue within it (within=connection)"
                    ) from error
            time.sleep(random.uniform(wait / 2, wait))
            wait = min(wait * 1.5, 0.05)

    def _told(self, error: sqlite3.Error) -> Exception:
        text = str(error)
        if "no such table: durably_" in text:
            return SchemaOutdated(f"{self.address} has no Durably tables: run `durably migrate`")
        if isinstance(error, sqlite3.OperationalError | sqlite3.InternalError) or type(error) is sqlite3.DatabaseError:
            hint = {
                "SQLITE_FULL": "the disk is full: free some space, nothing that was accepted is lost",
                "SQLITE_CANTOPEN": "the file cannot be opened: check the path and its permissions",
                "SQLITE_READONLY": "the file is read-only: check its permissions and those of its folder",
                "SQLITE_NOTADB": "the file is not an SQLite database",
            }.get(getattr(error, "sqlite_errorname", "") or "", text)
            return StoreUnavailable(f"{self.address}: {hint}")
        return StoreRejected(f"{self.address}: {text}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


async def _answered(together: Together, statement: Statement) -> Rows:
    return unpacked(await together.run(statement))


def _executed(connection: sqlite3.Connection, calls: list[tuple[str, tuple[Any, ...]]]) -> Packed | Rows:
    """What the calls answer, one after the other; packed if only the last one answers, and packs its rows."""
    rows: Rows = []
    for place, (text, args) in enumerate(calls, 1):
        if text.startswith(LISTS):
            rows += listed(connection, text, args)
            continue
        if not text.startswith(BEGINNING):
            rows += connection.execute(text, args).fetchall()
            continue
        found = fetched(connection, text, args)
        if place == len(calls) and not rows:
            return found
        rows += unpacked(found)
    return rows


def _leniently(text: bytes) -> str:
    return text.decode("utf-8", "replace")
