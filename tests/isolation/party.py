"""One operation in mid-flight, on a connection of its own: it is taken forward one statement at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import psycopg
from psycopg import RawCursor

from durably.errors import DurablyError, RetryTransaction
from durably.stores.drive import drive
from durably.stores.postgres.pool import BEGIN_POOLED
from durably.stores.postgres.store import COLLISIONS, REPEATS
from durably.stores.statement import Operation, Otherwise, Queries, Rows, Statement, Steps, array_call

from .footprint import EMPTY, Footprint, footprint

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

Program = Generator[Operation[Any], Any, list[str]]
"""What a party does: one operation after the other, each in a transaction of its own, and what came of it."""

Within = Literal["commit", "roll back"]
Level = Literal["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
LEVELS: tuple[Level, ...] = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
"""What a caller's transaction sees of others; all but the first look at the database as it was when they began."""


class Step(NamedTuple):
    """The next thing that a party would do."""

    label: str
    statement: Statement | None = None
    alone: bool = False
    """Whether it is a transaction of its own."""

    @property
    def ends(self) -> bool:
        """Whether a transaction ends with it."""
        return self.statement is None or self.alone

    @property
    def touches(self) -> Footprint:
        """What it touches, if it is a statement."""
        return EMPTY if self.statement is None else footprint(self.statement.query)


def connect(url: str, name: str) -> Connection:
    """A connection as the store makes it. Nobody waits for a deadlock to be noticed: the scheduler sees it first."""
    connection: Connection = psycopg.Connection.connect(
        url, autocommit=True, prepare_threshold=None, cursor_factory=RawCursor, application_name=name
    )
    connection.execute("SET deadlock_timeout = '1h'")
    connection.execute("SET synchronous_commit = off")
    return connection


def run_alone(connection: Connection, queries: Queries, op: Operation[T]) -> T:
    """Run an operation with nobody beside it."""

    def execute(statement: Statement) -> Rows:
        return _execute(connection, statement)

    if op.single:
        return drive(op.steps(queries), execute)
    connection.execute(BEGIN_POOLED)
    try:
        answer = drive(op.steps(queries), execute)
    except Otherwise as other:
        connection.execute("ROLLBACK")
        return run_alone(connection, queries, _otherwise(op, other))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return answer


def _otherwise(op: Operation[T], other: Otherwise) -> Operation[T]:
    """The same without a statement that did not do."""
    return Operation(op.name, lambda q: op.steps(q.without(other.name)), op.writes, op.single)


def _execute(connection: Connection, statement: Statement) -> Rows:
    text, args = array_call(statement)
    cursor = connection.execute(text.encode(), args)
    return cursor.fetchall() if cursor.description is not None else []


class Party:
    """Someone who runs a program. `take` begins its next step, which may have to wait for another party."""

    def __init__(self, url: str, queries: Queries, name: str) -> None:
        self.name = name
        self.connection = connect(url, name)
        self.pid = self.connection.info.backend_pid
        self.waits_for: list[str] = []
        self._queries = queries
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: Future[Rows] | None = None

    def begin(self, program: Callable[[], Program], within: Within | None, level: Level = "READ COMMITTED") -> None:
        """Make ready to run a program: in transactions of its own, or as one transaction that ends as `within` says."""
        self._start = program
        self._within = within
        self._opening = f"BEGIN ISOLATION LEVEL {level}".encode() if within else BEGIN_POOLED.encode()
        self._looked = False
        self._repeats = 0
        self._begin_program()

    def look(self) -> None:
        """Open the caller's transaction with a look at the database, as it will see it from now on."""
        self._thread.submit(self._open_and_look).result()
        self.open = self._looked = True

    def _open_and_look(self) -> None:
        self.connection.execute(self._opening)
        self.connection.execute("SELECT count(*) FROM durably.tasks")

    def _begin_program(self) -> None:
        self.answer: list[str] | None = None
        self.open = False
        self.held = EMPTY
        self.pending: Step | None = None
        self._program = self._start()
        self._next_operation(lambda: next(self._program))

    @property
    def in_flight(self) -> bool:
        """Whether its last step has not come back yet."""
        return self._running is not None

    @property
    def mid_transaction(self) -> bool:
        """Whether others could now see half of what it does."""
        halfway = self._looked and self.held != EMPTY if self._within else True
        return (self.open and halfway) or self.in_flight

    def take(self) -> None:
        """Begin the next step."""
        step = self.pending
        assert step is not None
        self._running = self._thread.submit(self._perform, step)

    def go(self) -> None:
        """Take the next step with nobody in the way."""
        self.take()
        while not self.came_back(1.0):
            pass
        self.resume()

    def came_back(self, within: float) -> bool:
        """Whether the step has ended; the time is only how long to look before asking whom it waits for."""
        assert self._running is not None
        try:
            self._running.exception(within)
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Go on to the next step after one that came back."""
        running, step = self._running, self.pending
        assert running is not None
        assert step is not None
        self._running = None
        self.waits_for = []
        try:
            rows = running.result()
        except (*COLLISIONS, psycopg.errors.QueryCanceled):
            self._repeat()
            return
        if step.statement is None:
            self._closed(step)
            return
        self.open = not step.alone
        self.held = EMPTY if step.alone else self.held.beside(step.touches)
        self._feed(lambda: self._steps.send(rows))

    def stop(self) -> None:
        """Drop everything that was not committed."""
        if self.open:
            self._thread.submit(self.connection.execute, "ROLLBACK").result()
        self._program.close()
        self.pending = None
        self.open = False

    def close(self) -> None:
        self._thread.shutdown()
        self.connection.close()

    def _perform(self, step: Step) -> Rows:
        """Runs in the party's thread."""
        if step.statement is None:
            self.connection.execute("COMMIT" if step.label == "commit" else "ROLLBACK")
            return []
        try:
            if not self.open and not step.alone:
                self.connection.execute(self._opening)
            return _execute(self.connection, step.statement)
        except psycopg.Error:
            if not self.connection.closed:
                self.connection.rollback()
            raise

    def _repeat(self) -> None:
        """A deadlock or a serialization failure: the store repeats the operation, a caller the whole transaction."""
        self._repeats += 1
        assert self._repeats <= REPEATS, f"{self.name} kept colliding"
        self.open, self.held = False, EMPTY
        if self._within:
            self._program.close()
            self._begin_program()
        else:
            self._begin_operation(self._operation)

    def _next_operation(self, ask: Callable[[], Operation[Any]]) -> None:
        try:
            operation = ask()
        except StopIteration as stop:
            self.answer = stop.value
            self._finish()
        except DurablyError as error:
            self.answer = [type(error).__name__]
            self._finish()
        else:
            self._begin_operation(operation)

    def _finish(self) -> None:
        self.pending = Step(self._within) if self.open and self._within else None

    def _begin_operation(self, operation: Operation[Any]) -> None:
        self._operation = operation
        self._steps: Steps[Any] = operation.steps(self._queries)
        self._feed(lambda: next(self._steps))

    def _feed(self, ask: Callable[[], Statement]) -> None:
        """Find the next step of the operation; at its end, the transaction's end is a step too."""
        try:
            statement = ask()
        except StopIteration as stop:
            value = stop.value
            self._outcome: Callable[[], Operation[Any]] = lambda: self._program.send(value)
        except Otherwise as other:
            again = _otherwise(self._operation, other)
            self._outcome = lambda: again
            self.pending = Step("roll back")
            return
        except DurablyError as error:
            if self._within and isinstance(error, RetryTransaction):
                self.connection.rollback()
                self._repeat()
                return
            raised = error
            self._outcome = lambda: self._program.throw(raised)
            if self.open and not self._within:
                self.pending = Step("roll back")
                return
        else:
            self.pending = Step(statement.query.name, statement, self._operation.single and not self._within)
            return
        if self.open and not self._within:
            self.pending = Step("commit")
        else:
            self._next_operation(self._outcome)

    def _closed(self, step: Step) -> None:
        self.open, self.held = False, EMPTY
        if self._within:
            self.pending = None
        else:
            self._next_operation(self._outcome)
