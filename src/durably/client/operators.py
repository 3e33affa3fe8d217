"""What operators do: look at tasks, bring dead letters back, open and close queues, set limits, unblock keys."""

from __future__ import annotations

import asyncio
import builtins
import time
from typing import Literal

import msgspec

from durably.client.engine import Engine
from durably.client.handle import Handle
from durably.client.info import TaskInfo, task_info
from durably.client.plan import Plan, arun, run
from durably.core.brief import brief
from durably.core.explain import KeyFacts, SessionFacts
from durably.core.limits import Gate, parse_rate
from durably.core.moment import Duration, micros, seconds
from durably.core.options import text
from durably.core.task import DEFAULT_NAMESPACE, State, Task, clean, full_queue, split_queue
from durably.errors import BadOption, UnknownTask
from durably.observe.events import Event, Kind
from durably.stores.operations.control import (
    dead_ids,
    pause_key,
    purge,
    replay,
    resume_key,
    set_limit,
    set_queue,
    skip_key,
)
from durably.stores.operations.read import (
    Filter,
    QueueFacts,
    by_prefix,
    clock,
    gates,
    get,
    key_tasks,
    list_keys,
    list_tasks,
    queues,
    sessions,
)

BATCH = 200
MOST = 2**31 - 1
"""The largest number that every store counts to."""


class Operator:
    """The store and the namespace that an operator works in."""

    def __init__(self, engine: Engine, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace

    def _full(self, queue: str) -> str:
        return queue if "/" in queue else full_queue(self._namespace, queue)

    def _space(self, queue: str | None) -> str:
        """The namespace to look in: the one that the queue's full name carries, else the operator's."""
        return self._namespace if queue is None else split_queue(self._full(queue))[0]


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


class Chosen(msgspec.Struct, frozen=True):
    """Which dead letters are meant; None means any."""

    ids: tuple[str, ...] = ()
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    destination: str | None = None
    older_than: Duration | None = None
    limit: int | None = None

    @property
    def by_choice(self) -> bool:
        """Whether anything is said but their ids."""
        said = (self.queue, self.task, self.key, self.destination, self.older_than, self.limit)
        return any(one is not None for one in said)


class Dead(Operator):
    """Dead letters: look at them, give them a new cycle, or forget them."""

    def list(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        limit: int = 50,
    ) -> builtins.list[TaskInfo]:
        """Dead letters, newest first."""
        return run(self._store, self._list(Chosen((), queue, task, key, destination), limit))

    async def alist(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        limit: int = 50,
    ) -> builtins.list[TaskInfo]:
        """The asynchronous twin of list."""
        return await arun(self._store, self._list(Chosen((), queue, task, key, destination), limit))

    def replay(
        self,
        *ids: str,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        rate: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Give these, or all that match, a new cycle, in the order in which they were accepted; how many that were.

        With `dry_run`, only how many that would be.
        """
        pause = _pause(rate)
        found = run(self._store, self._chosen(Chosen(ids, queue, task, key, destination, limit=limit)))
        if dry_run:
            return len(found)
        total = 0
        for batch in _chunks(found, rate):
            total += self._replayed(self._store.run(replay(batch)))
            if pause:
                time.sleep(pause * len(batch))
        return total

    async def areplay(
        self,
        *ids: str,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        rate: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """The asynchronous twin of replay."""
        pause = _pause(rate)
        found = await arun(self._store, self._chosen(Chosen(ids, queue, task, key, destination, limit=limit)))
        if dry_run:
            return len(found)
        total = 0
        for batch in _chunks(found, rate):
            total += self._replayed(await self._store.arun(replay(batch)))
            if pause:
                await asyncio.sleep(pause * len(batch))
        return total

    def purge(
        self,
        *ids: str,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        older_than: Duration | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Forget these, or all that match, for good; how many that were. Without any choice it needs `everything`.

        With `dry_run`, only how many that would be.
        """
        chosen = Chosen(ids, queue, task, key, destination, older_than)
        return run(self._store, self._purge(chosen, everything, dry_run))

    async def apurge(
        self,
        *ids: str,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        destination: str | None = None,
        older_than: Duration | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> int:
        """The asynchronous twin of purge."""
        chosen = Chosen(ids, queue, task, key, destination, older_than)
        return await arun(self._store, self._purge(chosen, everything, dry_run))

    def _list(self, chosen: Chosen, limit: int) -> Plan[builtins.list[TaskInfo]]:
        queue = chosen.queue
        full = None if queue is None else self._full(queue)
        space = self._space(queue)
        wanted = Filter(State.DEAD, full, chosen.task, chosen.key, namespace=space, destination=chosen.destination)
        found: builtins.list[Task] = yield list_tasks(wanted, limit)
        return [task_info(one, self._engine.codec) for one in found]

    def _replayed(self, ids: builtins.list[str]) -> int:
        for task_id in ids:
            self._engine.events.emit(Event("replayed", task_id))
        return len(ids)

    def _chosen(self, chosen: Chosen) -> Plan[builtins.list[str]]:
        if not chosen.ids:
            return (yield from self._matching(chosen))
        if chosen.by_choice:
            raise BadOption("name ids, or say which dead letters by queue, task, key, destination or age; not both")
        found: builtins.list[Task] = yield get([*chosen.ids])
        states = {one.id: one.state for one in found}
        for task_id in chosen.ids:
            if states.get(task_id) != State.DEAD:
                raise UnknownTask(f"task {task_id} is {states.get(task_id, 'not known')}, not a dead letter")
        return [*chosen.ids]

    def _matching(self, chosen: Chosen) -> Plan[builtins.list[str]]:
        before = None
        if chosen.older_than is not None:
            now: int = yield clock()
            before = now - micros(seconds(chosen.older_than, "older_than"))
        full = None if chosen.queue is None else self._full(chosen.queue)
        most = MOST if chosen.limit is None else chosen.limit
        space = self._space(chosen.queue)
        matching: builtins.list[str] = yield dead_ids(
            full, chosen.task, chosen.key, before, most, space, chosen.destination
        )
        return matching

    def _purge(self, chosen: Chosen, everything: bool, dry_run: bool) -> Plan[int]:
        if not (chosen.ids or chosen.by_choice or everything):
            raise BadOption(
                "purge: name ids, a queue, a task, a key, a destination or an age; "
                "to forget every dead letter say so (everything)"
            )
        ids = yield from self._chosen(chosen)
        if dry_run:
            return len(ids)
        total = 0
        for start in range(0, len(ids), BATCH):
            gone: builtins.list[str] = yield purge(ids[start : start + BATCH])
            total += len(gone)
        return total


def _pause(rate: str | None) -> float:
    return 0.0 if rate is None else 1 / parse_rate(rate)[0]


def _chunks(ids: list[str], rate: str | None) -> list[list[str]]:
    size = BATCH if rate is None else max(1, min(BATCH, int(parse_rate(rate)[0] / 4)))
    return [ids[start : start + size] for start in range(0, len(ids), size)]


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
