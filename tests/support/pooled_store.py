"""What Durably's store must be able to do behind any pooler in transaction mode.

A subclass brings the fixture `pooled_url`: the address, through a pooler, of an empty database.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol, TypeVar

import pytest

from durably.core import lifecycle
from durably.core.change import Applied, Stale
from durably.core.ids import Ids
from durably.core.moment import SECOND, HostClock
from durably.core.task import Draft, Scope, State, Task
from durably.errors import Conflict
from durably.stores.operations.accept import Accepted, accept, request_cancel
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import cancel_now, commit
from durably.stores.operations.read import get
from durably.stores.operations.sweep import beat, bury, due, lapsed, mark_dead, open_session, promote
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Operation

T = TypeVar("T")
ids = Ids(HostClock(), random.Random(7))


class Do(Protocol):
    """Runs an operation, in one of the two ways in which a store can."""

    def __call__(self, op: Operation[T], /) -> Awaitable[T]: ...


def draft(**options: Any) -> Draft:
    return Draft(ids.task(options.get("key")), "greet", "default", b"[]", **options)


async def begin(do: Do, session: str = "s1", lease: int = 30 * SECOND) -> None:
    await do(open_session(session, lease, "host", 1, "{}"))


async def take(do: Do, room: int = 10, session: str = "s1") -> list[Task]:
    return (await do(claim(session, ["default"], room))).tasks


async def state_of(do: Do, task: str) -> str:
    [found] = await do(get([task]))
    return found.state


class PooledStore:
    """The checks. Each runs with `run` and with `arun`."""

    @pytest.fixture
    async def store(self, pooled_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(pooled_url)
        store.migrate()
        yield store
        await store.aclose()
        store.close()

    @pytest.fixture(params=["run", "arun"])
    def do(self, request: pytest.FixtureRequest, store: PostgresStore) -> Do:
        async def run(op: Operation[T], /) -> T:
            return store.run(op)

        return run if request.param == "run" else store.arun

    async def test_the_schema_is_migrated_once(self, store: PostgresStore) -> None:
        assert store.pending() == []
        assert store.migrate() == []

    async def test_what_is_accepted_is_claimed_and_completed_once(self, do: Do) -> None:
        drafts = [draft() for _ in range(20)]
        assert await do(accept(drafts)) == [Accepted(one.id) for one in drafts]
        await begin(do)
        assert await do(beat("s1", 30 * SECOND))
        tasks = await take(do, 20)
        assert sorted(task.id for task in tasks) == sorted(one.id for one in drafts)
        changes = [lifecycle.complete(task, b"1") for task in tasks]
        assert await do(commit(changes)) == [Applied(change) for change in changes]
        assert all(isinstance(verdict, Stale) for verdict in await do(commit(changes)))
        assert {task.state for task in await do(get([one.id for one in drafts]))} == {State.DONE}

    async def test_a_key_runs_its_tasks_in_order(self, do: Do) -> None:
        drafts = [draft(key="customer-7") for _ in range(3)]
        await do(accept(drafts))
        await begin(do)
        for one in drafts:
            [task] = await take(do)
            assert task.id == one.id
            await do(commit([lifecycle.complete(task, None)]))
        assert await take(do) == []

    async def test_a_unique_key_is_taken_once(self, do: Do) -> None:
        first, same, other = (
            draft(unique_scope=Scope.LIVE, unique_key="order-1", fingerprint=print_) for print_ in ("a", "a", "b")
        )
        assert await do(accept([first])) == [Accepted(first.id)]
        existing, conflict = await do(accept([same, other]))
        assert existing == Accepted(first.id, existing=True)
        assert isinstance(conflict, Conflict)

    async def test_a_cancelled_task_does_not_run(self, do: Do) -> None:
        at_once, later = draft(), draft()
        await do(accept([at_once, later]))
        await do(cancel_now([at_once.id], "not wanted"))
        await do(request_cancel([later.id], "not wanted either"))
        await begin(do)
        assert await take(do) == []
        assert [await state_of(do, one.id) for one in (at_once, later)] == [State.CANCELLED, State.CANCELLED]

    async def test_a_delayed_task_is_promoted_when_it_is_due(self, do: Do) -> None:
        soon, late = draft(due_in=1), draft(due_in=3600 * SECOND)
        await do(accept([soon, late]))
        await begin(do)
        assert await take(do) == []
        assert await do(due(10, [])) == [soon.id]
        assert await do(promote([soon.id, late.id])) == [soon.id]
        assert [task.id for task in await take(do)] == [soon.id]

    async def test_what_a_dead_session_held_is_swept_up(self, do: Do) -> None:
        one = draft()
        await do(accept([one]))
        await begin(do, lease=1)
        [held] = await take(do)
        assert await do(mark_dead()) == ["s1"]
        [found] = await do(lapsed(10, []))
        assert found == held
        await do(commit([lifecycle.lapse(found)]))
        assert await do(bury()) == 1
        await begin(do, "s2")
        [again] = await take(do, session="s2")
        assert (again.id, again.attempt, again.crashes) == (one.id, 2, 1)
        [late] = await do(commit([lifecycle.complete(held, None)]))
        assert late == Stale(late.change, again)

    async def test_claims_at_the_same_time_never_share_a_task(self, store: PostgresStore) -> None:
        drafts = [draft() for _ in range(40)]
        await store.arun(accept(drafts))
        await begin(store.arun)
        claims = await asyncio.gather(*(take(store.arun, 5) for _ in range(8)))
        rest = await take(store.arun, 40)
        claimed = [task.id for tasks in (*claims, rest) for task in tasks]
        assert sorted(claimed) == sorted(one.id for one in drafts)
