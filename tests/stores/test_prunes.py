"""On PostgreSQL one note tells when to remove all that ended together, instead of an index entry for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from durably.core.ids import Ids
from durably.core.lifecycle import complete
from durably.core.moment import HostClock
from durably.core.task import Draft, Task
from durably.stores.operations.accept import accept
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.sweep import open_session, prune
from durably.stores.postgres.store import PostgresStore

COUNT = 300
"""More ids than stay in the row of a note."""


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    ids = Ids(HostClock())
    store.run(accept([Draft(task_id, "noop", "default", b"{}") for task_id in ids.tasks(COUNT)]))
    yield store
    store.close()


def done(store: PostgresStore, retention: float) -> list[Task]:
    found = store.run(claim_plain("one", ["default"], COUNT))
    assert found is not None
    store.run(commit([complete(task, None, retention) for task in found.tasks]))
    return found.tasks


def rows(store: PostgresStore, text: str) -> list[Any]:
    with psycopg.connect(store.url) as connection:
        return connection.execute(text.encode()).fetchall()


def test_what_ended_together_leaves_one_note_with_its_moment(store: PostgresStore) -> None:
    tasks = done(store, 3600)

    [(prune_at, count, ids)] = rows(store, "SELECT prune_at, count, tasks FROM durably.prunes")
    assert count == COUNT
    assert sorted(map(str, ids)) == sorted(task.id for task in tasks)
    assert rows(store, "SELECT DISTINCT prune_at FROM durably.history") == [(prune_at,)]


def test_a_note_goes_with_the_last_of_its_tasks(store: PostgresStore) -> None:
    done(store, 0)

    assert store.run(prune(200)) == 200
    [(count, ids)] = rows(store, "SELECT count, tasks FROM durably.prunes")
    assert count == len(ids) == 100
    assert {one for (one,) in rows(store, "SELECT id FROM durably.history")} == set(ids)
    assert [store.run(prune(200)), store.run(prune(200))] == [100, 0]
    assert rows(store, "SELECT count FROM durably.prunes UNION ALL SELECT 1 FROM durably.history") == []


def test_what_is_in_history_again_and_is_to_be_kept_longer_stays(store: PostgresStore) -> None:
    [task, *_] = done(store, 0)
    with psycopg.connect(store.url) as connection:
        connection.execute("UPDATE durably.history SET prune_at = prune_at + 3600000000 WHERE id = %s", (task.id,))

    assert store.run(prune(1000)) == COUNT - 1
    assert [str(one) for (one,) in rows(store, "SELECT id FROM durably.history")] == [task.id]
