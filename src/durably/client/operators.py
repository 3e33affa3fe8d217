"""What operators do: look at tasks, open and close queues, set limits, unblock keys."""

from __future__ import annotations

import builtins
from typing import Literal

from durably.client.handle import Handle
from durably.client.info import TaskInfo, task_info
from durably.client.operator import Operator
from durably.client.plan import Plan, arun, run
from durably.core.brief import brief
from durably.core.explain import KeyFacts, SessionFacts
from durably.core.limits import Gate, parse_rate
from durably.core.options import text
from durably.core.task import State, Task, clean
from durably.errors import BadOption, UnknownTask
from durably.observe.events import Event, Kind
from durably.stores.operations.control import (
    pause_key,
    resume_key,
    set_limit,
    set_queue,
    skip_key,
)
from durably.stores.operations.read import (
    Filter,
    QueueFacts,
    by_prefix,
    gates,
    key_tasks,
    list_keys,
    list_tasks,
    queues,
    sessions,
)

BATCH = 200
MOST = 2**31 - 1
"""The largest number that every store counts to."""


class Tasks(Operator):
    """Looking at tasks, live and ended."""

    def list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> builtins.list[TaskInfo]:
        """Tasks, newest first; `before` takes the last id of the page before."""
        return run(self._store, self._list(state, queue, task, key, tag, before, limit))

    async def alist(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> builtins.list[TaskInfo]:
        """Tasks, newest first; `before` takes the last id of the page before."""
        return await arun(self._store, self._list(state, queue, task, key, tag, before, limit))

    def find(self, start: str) -> Handle[object]:
        """The one task whose id begins so; ids can be shortened as far as they stay unambiguous."""
        return run(self._store, self._find(start))

    def _list(
        self,
        state: str | None,
        queue: str | None,
        task: str | None,
        key: str | None,
        tag: str | None,
        before: str | None,
        limit: int,
    ) -> Plan[builtins.list[TaskInfo]]:
        if state is not None and state not in [member.value for member in State]:
            raise BadOption(f"state: {state!r} is not one of {', '.join(State)}")
        full = None if queue is None else self._full(queue)
        wanted = Filter(state, full, task, key, tag, before, self._space(queue))
        found: builtins.list[Task] = yield list_tasks(wanted, limit)
        return [task_info(one, self._engine.codec) for one in found]

    def _find(self, start: str) -> Plan[Handle[object]]:
        wanted = text(start, "task id").lower()
        if wanted.strip("0123456789abcdef-"):
            raise UnknownTask(f"{start!r} is not a task id; ids look like 01890a5d-ac96-774b-bcce-b302099a8057")
        ids: builtins.list[str] = yield by_prefix(wanted, 3)
        if not ids:
            raise UnknownTask(f"no task {start}: its retention has passed, or it is in another store")
        if len(ids) > 1:
            raise UnknownTask(f"{start} is ambiguous: it could be {ids[0]} or {ids[1]}; give more characters")
        return Handle(self._engine, ids[0])


class Queues(Operator):
    """Queues: their counts, whether they are open, and their limits."""

    def list(self) -> builtins.list[QueueFacts]:
        """Every queue that has tasks, a setting or a limit."""
        return self._store.run(queues())

    async def alist(self) -> builtins.list[QueueFacts]:
        """Every queue that has tasks, a setting or a limit."""
        return await self._store.arun(queues())

    def pause(self, queue: str) -> None:
        """Claim nothing more from it; what runs goes on."""
        self._set(queue, "paused")

    async def apause(self, queue: str) -> None:
        """Claim nothing more from it; what runs goes on."""
        await self._aset(queue, "paused")

    def resume(self, queue: str) -> None:
        """Open it again."""
        self._set(queue, "active")

    async def aresume(self, queue: str) -> None:
        """Open it again."""
        await self._aset(queue, "active")

    def drain(self, queue: str) -> None:
        """Run what has been accepted until now; what comes later waits until it is resumed."""
        self._set(queue, "draining")

    async def adrain(self, queue: str) -> None:
        """Run what has been accepted until now; what comes later waits until it is resumed."""
        await self._aset(queue, "draining")

    def limit(
        self, queue: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """Limit how many of its tasks run at once, and how many start per second; without either, lift the limit."""
        self._store.run(set_limit(f"q:{self._full(text(queue, 'queue'))}", *limit_values(concurrency, rate, burst)))

    async def alimit(
        self, queue: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """The asynchronous twin of limit."""
        await self._store.arun(
            set_limit(f"q:{self._full(text(queue, 'queue'))}", *limit_values(concurrency, rate, burst))
        )

    def _set(self, queue: str, state: Literal["active", "paused", "draining"]) -> None:
        self._store.run(set_queue(self._full(text(queue, "queue")), state))

    async def _aset(self, queue: str, state: Literal["active", "paused", "draining"]) -> None:
        await self._store.arun(set_queue(self._full(text(queue, "queue")), state))


class Limits(Operator):
    """Limit groups: what `limit="tenant-7"` stands for."""

    def list(self) -> builtins.list[Gate]:
        """Every limit, of queues (q:NAME) and of groups (g:NAME)."""
        return self._store.run(gates())

    async def alist(self) -> builtins.list[Gate]:
        """Every limit, of queues (q:NAME) and of groups (g:NAME)."""
        return await self._store.arun(gates())

    def set(
        self, group: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """Limit a group; without concurrency and rate, lift its limit."""
        self._store.run(set_limit(f"g:{text(group, 'limit')}", *limit_values(concurrency, rate, burst)))

    async def aset(
        self, group: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """The asynchronous twin of set."""
        await self._store.arun(set_limit(f"g:{text(group, 'limit')}", *limit_values(concurrency, rate, burst)))


def limit_values(
    concurrency: int | None, rate: str | None, burst: int | None
) -> tuple[int | None, float | None, float]:
    """Concurrency, tokens per second and bucket size, checked."""
    if concurrency is not None and not _whole(concurrency, 0):
        raise BadOption(f"concurrency: {brief(concurrency)} must be zero or more, a whole number up to {MOST:,}")
    if burst is not None and (rate is None or not _whole(burst, 1)):
        raise BadOption(f"burst: it must be 1 or more, a whole number up to {MOST:,}, and goes with a rate")
    per_second, usual = (None, 1.0) if rate is None else parse_rate(rate)
    return concurrency, per_second, usual if burst is None else float(burst)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


class Keys(Operator):
    """Ordering keys: who is the head, and what to do when it cannot go on."""

    def list(self, *, queue: str | None = None, state: str | None = None, limit: int = 50) -> builtins.list[KeyFacts]:
        """The keys that have tasks waiting."""
        return self._store.run(list_keys(None if queue is None else self._full(queue), None, state, limit))

    async def alist(
        self, *, queue: str | None = None, state: str | None = None, limit: int = 50
    ) -> builtins.list[KeyFacts]:
        """The keys that have tasks waiting."""
        return await self._store.arun(list_keys(None if queue is None else self._full(queue), None, state, limit))

    def show(self, queue: str, key: str, limit: int = 50) -> tuple[KeyFacts, builtins.list[TaskInfo]]:
        """A key and the tasks that wait in it, the head first."""
        return run(self._store, self._show(queue, key, limit))

    async def ashow(self, queue: str, key: str, limit: int = 50) -> tuple[KeyFacts, builtins.list[TaskInfo]]:
        """A key and the tasks that wait in it, the head first."""
        return await arun(self._store, self._show(queue, key, limit))

    def pause(self, queue: str, key: str, reason: str = "by an operator") -> bool:
        """Stop a key before its next task; False when it has none waiting, or one is running."""
        return self._store.run(pause_key(self._full(text(queue, "queue")), text(key, "key"), clean(reason, 500)))

    async def apause(self, queue: str, key: str, reason: str = "by an operator") -> bool:
        """Stop a key before its next task; False when it has none waiting, or one is running."""
        return await self._store.arun(pause_key(self._full(text(queue, "queue")), text(key, "key"), clean(reason, 500)))

    def resume(self, queue: str, key: str) -> str:
        """Let the head of a paused key try again with a new budget; its id."""
        return self._told("resumed", self._store.run(resume_key(self._full(queue), key)))

    async def aresume(self, queue: str, key: str) -> str:
        """Let the head of a paused key try again with a new budget; its id."""
        return self._told("resumed", await self._store.arun(resume_key(self._full(queue), key)))

    def skip(self, queue: str, key: str, reason: str = "") -> str:
        """Take the head out of a paused key, so that the others go on; its id."""
        return self._told("skipped", self._store.run(skip_key(self._full(queue), key, clean(reason, 500))))

    async def askip(self, queue: str, key: str, reason: str = "") -> str:
        """Take the head out of a paused key, so that the others go on; its id."""
        return self._told("skipped", await self._store.arun(skip_key(self._full(queue), key, clean(reason, 500))))

    def _told(self, kind: Kind, head: Task) -> str:
        self._engine.events.emit(Event(kind, head.id, head.name, head.queue, head.attempt))
        return head.id

    def _show(self, queue: str, key: str, limit: int) -> Plan[tuple[KeyFacts, builtins.list[TaskInfo]]]:
        facts: builtins.list[KeyFacts] = yield list_keys(self._full(queue), key, None, 1)
        if not facts:
            raise UnknownTask(f"no key {key!r} with waiting tasks in queue {queue!r}; see `durably keys list`")
        waiting: builtins.list[Task] = yield key_tasks(self._full(queue), key, limit)
        return facts[0], [task_info(one, self._engine.codec) for one in waiting]


class Sessions(Operator):
    """The workers that the store knows."""

    def list(self) -> builtins.list[SessionFacts]:
        """Every session, live or dead."""
        return self._store.run(sessions())

    async def alist(self) -> builtins.list[SessionFacts]:
        """Every session, live or dead."""
        return await self._store.arun(sessions())
