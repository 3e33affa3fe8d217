"""A handle on a task that was accepted: ask how it is, wait for its result, cancel it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from durably.client.engine import Engine
from durably.client.info import AttemptInfo, Progress, TaskInfo, attempt_info, task_info
from durably.client.plan import Plan, arun, run
from durably.client.waiting import Ending, Missing
from durably.core.change import Applied
from durably.core.codec import Signature
from durably.core.explain import Why, explain
from durably.core.moment import Duration, seconds
from durably.core.task import State, clean
from durably.errors import BadPayload, ResultExpired, ResultTimeout, TaskCancelled, TaskFailed, UnknownTask
from durably.observe.events import Event, Kind
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.commit import cancel_now
from durably.stores.operations.read import Memory, attempts, evidence, get

R = TypeVar("R")


class Cancellation(StrEnum):
    """What a cancel achieved."""

    CANCELLED = "cancelled"
    """It had not begun, and never will."""
    STOPPING = "stopping"
    """It is running and was asked to stop: at once for async functions, when they look for threads."""
    ENDED = "ended"
    """It had already ended."""


def _checked(task_id: str) -> str:
    """The id, if it can be one: what cannot must not reach a database, least of all in a caller's transaction."""
    try:
        return str(UUID(task_id))
    except (ValueError, AttributeError, TypeError):
        raise UnknownTask(f"{task_id!r} is not a task id; ids look like 01890a5d-ac96-774b-bcce-b302099a8057") from None


class Handle(Generic[R]):
    """One accepted task."""

    __slots__ = ("__weakref__", "_engine", "_find", "_signature", "_uncommitted", "existing", "id")

    def __init__(
        self,
        engine: Engine,
        task_id: str,
        signature: Signature | None = None,
        *,
        find: Callable[[str], Signature | None] | None = None,
        existing: bool = False,
        uncommitted: bool = False,
        known: bool = False,
    ) -> None:
        self.id = task_id if known else _checked(task_id)
        self.existing = existing
        """Whether this is a task that already held the unique key."""
        self._engine = engine
        self._signature = signature
        self._find = find
        self._uncommitted = uncommitted

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    def info(self) -> TaskInfo:
        """Everything about the task as it is now."""
        return run(self._engine.store, self._info())

    async def ainfo(self) -> TaskInfo:
        """Everything about the task as it is now."""
        return await arun(self._engine.store, self._info())

    def state(self) -> str:
        """delayed, ready, blocked, leased, done, dead or cancelled."""
        return self.info().state

    async def astate(self) -> str:
        """delayed, ready, blocked, leased, done, dead or cancelled."""
        return (await self.ainfo()).state

    def progress(self) -> Progress | None:
        """What the running handler last said of its progress."""
        return self.info().progress

    async def aprogress(self) -> Progress | None:
        """What the running handler last said of its progress."""
        return (await self.ainfo()).progress

    def attempts(self) -> list[AttemptInfo]:
        """The attempts that did not end the task well, oldest first."""
        return run(self._engine.store, self._attempts())

    async def aattempts(self) -> list[AttemptInfo]:
        """The attempts that did not end the task well, oldest first."""
        return await arun(self._engine.store, self._attempts())

    def why(self) -> Why:
        """Why it is not running, or not done: one sentence, with the evidence."""
        return run(self._engine.store, self._why())

    async def awhy(self) -> Why:
        """Why it is not running, or not done: one sentence, with the evidence."""
        return await arun(self._engine.store, self._why())

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and answer the result; raise what came instead."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        return self._outcome(self._engine.waiters.wait(self.id, limit, patient=self._uncommitted), timeout)

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - the twin of result()
        """Wait for the end and answer the result; raise what came instead."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        return self._outcome(await self._engine.waiters.await_(self.id, limit, patient=self._uncommitted), timeout)

    def cancel(self, reason: str = "cancelled by the application", *, within: object = None) -> Cancellation | None:
        """Cancel it: what waits ends at once, what runs is asked to stop.

        With `within`, it is a request that takes effect when the caller's transaction commits; the answer is None.
        """
        if within is not None:
            self._engine.store.caller(within).run(request_cancel([self.id], clean(reason, 500)))
            return None
        return run(self._engine.store, self._cancel(reason))

    async def acancel(
        self, reason: str = "cancelled by the application", *, within: object = None
    ) -> Cancellation | None:
        """The asynchronous twin of cancel."""
        if within is not None:
            await self._engine.store.caller(within).arun(request_cancel([self.id], clean(reason, 500)))
            return None
        return await arun(self._engine.store, self._cancel(reason))

    def _info(self) -> Plan[TaskInfo]:
        found = yield get([self.id])
        if not found:
            raise self._unknown()
        return task_info(found[0], self._engine.codec)

    def _attempts(self) -> Plan[list[AttemptInfo]]:
        rows = yield attempts(self.id)
        return [attempt_info(row) for row in rows]

    def _why(self) -> Plan[Why]:
        facts = yield evidence(self.id)
        if facts is None:
            raise self._unknown()
        return explain(facts)

    def _cancel(self, reason: str) -> Plan[Cancellation]:
        while True:
            verdicts = yield cancel_now([self.id], clean(reason, 500))
            if not verdicts:
                found = yield get([self.id])
                if not found:
                    raise self._unknown()
                return Cancellation.ENDED
            if isinstance(verdicts[0], Applied):
                task = verdicts[0].change.task
                running = verdicts[0].change.state == State.LEASED
                kind: Kind = "cancel_requested" if running else "cancelled"
                self._engine.events.emit(
                    Event(kind, task.id, task.name, task.queue, task.attempt, task.session, reason=reason)
                )
                return Cancellation.STOPPING if running else Cancellation.CANCELLED

    def _unknown(self) -> UnknownTask:
        return UnknownTask(f"no task {self.id}: its retention has passed, or it was never committed to this store")

    def _outcome(self, ending: Ending | Missing | None, timeout: Duration | None) -> R:
        if ending is None:
            raise ResultTimeout(f"task {self.id} has not ended within {timeout}; `durably why {self.id}` says why")
        if isinstance(ending, Missing):
            raise ResultExpired(f"task {self.id} is not known: its retention has passed, or it was never committed")
        if ending.state == State.DONE:
            name = "" if isinstance(ending, Memory) else ending.name
            return self._decoded(ending.result, name)
        reason = "" if isinstance(ending, Memory) else ending.reason or ""
        if ending.state == State.DEAD:
            raise TaskFailed(f"task {self.id} is a dead letter: {reason}")
        raise TaskCancelled(f"task {self.id} was cancelled: {reason}")

    def _decoded(self, data: bytes | None, name: str) -> R:
        """The result in its declared type; as plain data where the declaration is not known."""
        answer: Any = None
        if data is not None:
            signature = self._signature or (self._find(name) if self._find is not None else None)
            try:
                plain = self._engine.codec.decode(data)
                answer = msgspec.json.decode(plain) if signature is None else signature.decode_result(plain)
            except Exception as error:
                raise BadPayload(f"task {self.id} is done, but its result cannot be read: {error}") from error
        found: R = answer
        return found
