"""Dead letters, as operators see them."""

from __future__ import annotations

import asyncio
import builtins
import time

import msgspec

from durably.client.info import TaskInfo, task_info
from durably.client.operator import Operator
from durably.client.plan import Plan, arun, run
from durably.core.limits import parse_rate
from durably.core.moment import Duration, micros, seconds
from durably.core.task import State, Task
from durably.errors import BadOption, UnknownTask
from durably.observe.events import Event
from durably.stores.operations.control import dead_ids, purge, replay
from durably.stores.operations.read import Filter, clock, get, list_tasks

BATCH = 200
MOST = 2**31 - 1
"""The largest number that every store counts to."""


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
