"""Running one attempt: decode, call, and put a name to what happened."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import msgspec

from durably.client.definition import Definition
from durably.client.engine import Engine
from durably.core import lifecycle
from durably.core.codec import Plain, encode
from durably.core.moment import micros, seconds
from durably.core.retry import DEFAULT_RETRY, Retry
from durably.core.task import Failure, Options, Task
from durably.errors import Discard, GivenUp, Instruction, Permanent, RetryAfter, Snooze
from durably.observe.events import Kind
from durably.worker.context import Context, enter
from durably.worker.report import Report

log = logging.getLogger("durably.execute")

_introducing = threading.Lock()

AnyDefinition = Definition[..., Any]
Arguments = tuple[Sequence[Any], dict[str, Any]]


class Attempt(msgspec.Struct, eq=False):
    """One attempt in flight."""

    task: Task
    definition: AnyDefinition
    options: Options
    arguments: Arguments
    started: float
    timeout: float | None
    introduce: Callable[[Attempt], Context]
    known: Context | None = None
    """Its context, if anybody has asked for it."""
    finished: bool = False
    """Whether its outcome is known; a thread that was timed out may still run."""
    interrupted: str | None = None
    """Why the worker interrupted it: timeout, cancel, release or lost."""
    armed: float | None = None
    """Under which timeout its deadline is watched."""
    done: asyncio.Task[None] | None = None
    """The task of the loop in which it goes on, if it had to wait."""

    @property
    def context(self) -> Context:
        """The attempt from the inside. A thread and the loop may ask at the same time, and get the same one."""
        if self.known is None:
            with _introducing:
                self.known = self.known or self.introduce(self)
        return self.known

    @property
    def retry(self) -> Retry:
        """The policy that decides about its failure: the call's, else the declaration's."""
        return self.options.retry or self.definition.settings.retry or DEFAULT_RETRY


class Executor:
    """Runs handlers: coroutines on the loop, plain functions in threads."""

    def __init__(self, engine: Engine, threads: int, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="durably-task")

    def arguments(self, definition: AnyDefinition, task: Task) -> Arguments:
        """The arguments for the call. Whatever the row and the codec may raise means that it cannot be read."""
        codec, payload = self._engine.codec, task.payload
        return definition.signature.decode(payload if type(codec) is Plain else codec.decode(payload))

    def call(self, attempt: Attempt) -> Awaitable[Any]:
        """Call the handler; what it returns or raises is the caller's to judge."""
        args, kwargs = attempt.arguments
        enter(attempt)
        definition = attempt.definition
        function: Callable[..., Any] = definition.function
        if definition.is_async:
            return function(*args, **kwargs) if kwargs else function(*args)  # type: ignore[no-any-return]
        context = contextvars.copy_context()
        call: Callable[[], Any] = lambda: context.run(function, *args, **kwargs)  # noqa: E731
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    def returned(self, attempt: Attempt, value: Any, ran: float) -> Report:
        """The handler returned: the task is done, if its result can be kept."""
        task, known = attempt.task, attempt.known
        try:
            result = None
            if value is not None:
                result = self._engine.payload(task.name, encode(value, f"the result of {task.name!r}"))
            spawned = () if known is None else known.successors
            change = lifecycle.complete(task, result, attempt.options.retention, spawned, micros(ran))
        except Exception as error:
            return self.failed(attempt, Failure.of(error, permanent=True), ran)
        return Report(task, change, "completed", ran)

    def raised(self, attempt: Attempt, error: BaseException, ran: float) -> Report:
        """The handler raised: what it asked for, or a failure."""
        task = attempt.task
        error.__traceback__ = _from_handler(error.__traceback__)
        if isinstance(error, Instruction) and not error.traced:
            error.__traceback__ = error.__context__ = error.__cause__ = None
        try:
            match error:
                case Snooze():
                    wait = seconds(error.delay, "Snooze")
                    return Report(task, lambda current: lifecycle.snooze(current, wait), "snoozed", ran)
                case Discard():
                    reason = str(error)
                    return Report(task, lambda current: lifecycle.discard(current, reason), "discarded", ran)
                case RetryAfter():
                    failure = Failure.of(error, retry_after=seconds(error.delay, "RetryAfter"))
                case Permanent():
                    failure = Failure.of(error, permanent=True, certain=not isinstance(error, GivenUp))
                case _:
                    failure = Failure.of(error, permanent=attempt.retry.is_permanent(error))
        except Exception as complaint:
            failure = Failure.of(complaint)
        return self.failed(attempt, failure, ran)

    def failed(self, attempt: Attempt, failure: Failure, ran: float, kind: Kind = "failed") -> Report:
        """The attempt failed: the policy decides."""
        retry, jitter, took = attempt.retry, self._chance.random(), micros(ran)
        outcome = kind.replace("_", " ")

        def decide(task: Task) -> Any:
            try:
                return lifecycle.fail(task, failure, retry, jitter, ran=took, outcome=outcome)
            except Exception as error:
                log.exception("the retry policy of task %s failed", task.name)
                broken = Failure.of(error, permanent=True)
                return lifecycle.fail(task, broken, Retry.never(), jitter, ran=took)

        return Report(attempt.task, decide, kind, ran, f"{failure.kind}: {failure.message}")

    def timed_out(self, attempt: Attempt, ran: float) -> Report:
        """The attempt took longer than it may."""
        limit = attempt.timeout or 0.0
        failure = Failure("durably.TimedOut", f"timed out after {limit:g} s")
        return self.failed(attempt, failure, ran, "timed_out")

    def close(self) -> None:
        """Let go of the threads without waiting for those that hang."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """The trace without the frames in which the engine called the handler."""
    handler = trace
    while trace is not None:
        if trace.tb_frame.f_globals.get("__package__") == __package__:
            handler = trace.tb_next
        trace = trace.tb_next
    return handler


def overdue(task: Task, now: int) -> bool:
    """Whether its time ran out before it began."""
    return task.expires_at is not None and task.expires_at <= now


def back_off(strikes: int) -> float:
    """How long to leave a task alone that nobody here knows."""
    return min(2.0**strikes, 60.0)
