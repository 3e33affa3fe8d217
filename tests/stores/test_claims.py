"""On PostgreSQL a claim leaves one note of all that it leased: what a dead session has left behind is found by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from durably import Durably
from durably.core.change import Change, Verdict
from durably.core.ids import Ids
from durably.core.lifecycle import complete
from durably.core.moment import HostClock
from durably.core.task import Draft, Task
from durably.errors import StoreRejected
from durably.observe.events import Events
from durably.stores.operations.accept import accept
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.sweep import (
    bury,
    close_session,
    forget_claims,
    held,
    lapsed,
    open_session,
)
from durably.stores.postgres.store import PostgresStore
from durably.worker import claims
from durably.worker.report import Report, Reporter


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    for session in ("one", "two"):
        store.run(open_session(session, 60_000_000, "host", 1, "{}"))
    ids = Ids(HostClock())
    store.run(accept([Draft(ids.task(None), "noop", "default", b"%d" % number) for number in range(6)]))
    yield store
    store.close()


def rows(store: PostgresStore, text: str = "SELECT session, token, tasks FROM durably.claims ORDER BY token") -> Any:
    with psycopg.connect(store.url) as connection:
        return connection.execute(text.encode()).fetchall()


def names(tasks: Sequence[Task]) -> list[str]:
    return sorted(task.id for task in tasks)


def quickly(store: PostgresStore, session: str, room: int) -> list[Task]:
    found = store.run(claim_plain(session, ["default"], room))
    assert found is not None
    return found.tasks


def test_either_form_of_a_claim_notes_what_it_leased(store: PostgresStore) -> None:
    first = quickly(store, "one", 2)
    second = store.run(claim("two", ["default"], 3)).tasks

    noted = [(session, token, sorted(map(str, tasks))) for session, token, tasks in rows(store)]
    assert noted == [("one", first[0].token, names(first)), ("two", second[0].token, names(second))]


def test_a_claim_that_finds_nothing_notes_nothing(store: PostgresStore) -> None:
    quickly(store, "one", 10)
    assert store.run(claim_plain("two", ["default"], 10)) is None
    assert store.run(claim("two", ["default"], 10)).tasks == []
    assert len(rows(store)) == 1


def test_what_is_left_of_a_claim_is_held_and_then_lapses_and_its_note_goes_with_the_session(
    store: PostgresStore,
) -> None:
    done, *left = quickly(store, "one", 3)
    store.run(commit([complete(done, None)]))
    others = quickly(store, "two", 3)

    assert names(store.run(held("one"))) == names(left)
    store.run(close_session("one"))
    assert names(store.run(lapsed(10, []))) == names(left)
    assert names(store.run(lapsed(10, [left[0].id]))) == names(left[1:])
    assert store.run(bury()) == 0
    store.run(commit([complete(task, None) for task in left]))
    assert store.run(lapsed(10, [])) == []
    assert store.run(bury()) == 1
    assert [session for session, _, _ in rows(store)] == ["two"]
    assert names(store.run(held("two"))) == names(others)


def test_only_the_named_claims_of_the_session_are_forgotten(store: PostgresStore) -> None:
    first, second, other = quickly(store, "one", 1), quickly(store, "one", 1), quickly(store, "two", 1)
    store.run(forget_claims("one", [first[0].token, other[0].token]))
    assert [(session, token) for session, token, _ in rows(store)] == [
        ("one", second[0].token),
        ("two", other[0].token),
    ]


async def test_a_worker_forgets_its_claims_but_for_those_of_which_something_runs(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MANY", 1)
    app = Durably(migrated_postgres_url)
    enough, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await enough.wait()

    @app.task
    async def quick() -> None:
        pass

    worker = app.worker(concurrency=4)
    working = asyncio.create_task(worker.run())
    handle = await slow.aenqueue()
    await begun.wait()
    for _ in range(3):
        await (await quick.aenqueue()).aresult(timeout="30s")
    token = (await handle.ainfo()).token

    def noted() -> list[int]:
        assert isinstance(app.store, PostgresStore)
        return [token for _, token, _ in rows(app.store)]

    while noted() != [token]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # the store cannot signal
    enough.set()
    await handle.aresult(timeout="30s")
    while noted():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    worker.stop()
    await working
    await app.aclose()


async def test_a_task_of_which_nothing_can_be_stored_keeps_its_claim(store: PostgresStore) -> None:
    [task] = quickly(store, "one", 1)

    async def refuse(changes: Sequence[Change]) -> list[Verdict]:
        raise StoreRejected("no")

    reporter = Reporter(refuse, Events(), lambda one: one, 10, lambda: None, lambda: 0)
    reporting = asyncio.create_task(reporter.run())
    reporter.add(Report(task, complete(task, None), "completed"))
    assert reporter.tokens == {task.token}
    reporter.close()
    await reporting
    assert reporter.unsettled == set()
    assert reporter.tokens == {task.token}
