"""On PostgreSQL a leased task stays where claims look for what is ready, until it has run for long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from durably import Durably
from durably.core.change import Applied
from durably.core.ids import Ids
from durably.core.lifecycle import complete, release
from durably.core.moment import HostClock
from durably.core.task import Draft, State, Task
from durably.stores.operations.accept import accept
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.read import get, queues
from durably.stores.operations.sweep import close_session, held, lapsed, open_session, set_aside
from durably.stores.postgres.store import PostgresStore
from durably.worker import running


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    for session in ("one", "two"):
        store.run(open_session(session, 60_000_000, "host", 1, "{}"))
    ids = Ids(HostClock())
    store.run(accept([Draft(ids.task(None), "noop", "default", b"{}") for _ in range(4)]))
    yield store
    store.close()


def claimed(store: PostgresStore, session: str, room: int) -> list[Task]:
    found = store.run(claim_plain(session, ["default"], room))
    assert found is not None
    return found.tasks


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(text.encode()).fetchall()


def met(store: PostgresStore) -> int:
    """How many entries somebody meets who looks for what is ready."""
    return len(query(store.url, "SELECT FROM durably.tasks WHERE state = 'ready'"))


def test_a_claim_leaves_no_trace_in_any_index(store: PostgresStore) -> None:
    sizes = "SELECT sum(tuple_count) FROM (SELECT pg_stat_get_tuples_hot_updated(oid) AS tuple_count FROM pg_class) c"
    before = query(store.url, sizes)[0][0]
    claimed(store, "one", 4)
    store.close()  # its statistics are told at the latest when its connections end

    with psycopg.connect(store.url, autocommit=True) as connection:
        for _ in range(200):
            if connection.execute(sizes.encode()).fetchone() == (before + 4,):
                return
            connection.execute("SELECT pg_sleep(0.05)")
    pytest.fail("not every claim was an update within its page")


def test_what_is_set_aside_is_leased_as_before_and_met_no_more(store: PostgresStore) -> None:
    tasks = claimed(store, "one", 3)
    assert met(store) == 4

    store.run(set_aside("one", [task.id for task in tasks]))

    assert met(store) == 1
    assert store.run(get([task.id for task in tasks])) == tasks
    assert store.run(held("one")) == tasks
    [queue] = store.run(queues())
    assert queue.counts == {State.LEASED: 3, State.READY: 1}


def test_only_what_the_session_has_leased_is_set_aside(store: PostgresStore) -> None:
    [mine], [other] = claimed(store, "one", 1), claimed(store, "two", 1)
    waiting = [task for (task,) in query(store.url, "SELECT id::text FROM durably.tasks WHERE session IS NULL")]

    store.run(set_aside("one", [mine.id, other.id, *waiting]))

    assert met(store) == 3
    assert len(claimed(store, "two", 4)) == 2


def test_what_was_set_aside_ends_is_released_and_lapses_like_any_other(store: PostgresStore) -> None:
    done, released, lost = claimed(store, "one", 3)
    store.run(set_aside("one", [done.id, released.id, lost.id]))

    changes = [complete(done, b"1"), release(released, started=True)]
    assert [type(verdict) for verdict in store.run(commit(changes))] == [Applied] * 2
    store.run(close_session("one"))

    assert store.run(lapsed(10, [])) == [lost]
    assert met(store) == 2
    assert released.id in {task.id for task in claimed(store, "two", 4)}


async def test_a_worker_sets_aside_what_runs_for_long_and_nothing_else(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LONG", 0.0)
    monkeypatch.setattr(running, "ASIDE", 2)
    app = Durably(migrated_postgres_url)
    enough = asyncio.Event()

    @app.task
    async def slow(number: int) -> int:
        await enough.wait()
        return number

    handles = [await slow.aenqueue(number) for number in range(5)]
    handles.append(await slow.using(key="ordered").aenqueue(5))
    worker = app.worker(concurrency=10)
    working = asyncio.create_task(worker.run())

    def states() -> list[tuple[str, int]]:
        return query(migrated_postgres_url, "SELECT state, count(*) FROM durably.tasks GROUP BY state ORDER BY state")

    while states() != [("blocked", 1), ("leased", 5)]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # the store cannot signal
    enough.set()
    assert [await handle.aresult(timeout="30s") for handle in handles] == [*range(6)]
    worker.stop()
    await working
    await app.aclose()
