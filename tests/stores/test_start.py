"""Operations that are begun and not waited for: they come to their end whether or not anyone looks after them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from durably import Conflict, Durably, Handle, StoreRejected, StoreUnavailable, Unique
from durably.client import bulk
from durably.core.ids import Ids
from durably.core.moment import HostClock
from durably.core.task import Draft
from durably.stores.operations.accept import MANY, Accepted, accept
from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore
from durably.stores.protocol import Store
from durably.stores.sqlite.store import SqliteStore
from durably.stores.statement import Operation, Queries, Steps

ids = Ids(HostClock())


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    found: str = request.getfixturevalue("migrated_postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresStore(url)
    yield store
    store.close()


@pytest.fixture
def server(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    yield store
    store.close()


def drafts(count: int) -> list[Draft]:
    return [Draft(task, "work", "default", b"{}") for task in ids.tasks(count)]


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.001)


def known(store: Store, some: list[Draft]) -> int:
    return len(store.run(get([draft.id for draft in some])))


def test_what_is_started_answers_as_what_is_run(store: Store) -> None:
    many = drafts(2 * MANY)

    started = store.start(accept(many))

    assert started.result() == [Accepted(draft.id) for draft in many]
    assert started.result() == [Accepted(draft.id) for draft in many]
    assert known(store, many) == 2 * MANY


def test_what_is_started_goes_on_while_its_starter_looks_after_it(store: Store) -> None:
    many = drafts(2 * MANY)
    started = store.start(accept(many))

    def over() -> bool:
        started.go_on()
        return known(store, many) == 2 * MANY

    until(over)
    started.result()


def test_what_is_started_comes_to_its_end_though_its_starter_does_something_slow(store: Store) -> None:
    many = drafts(2 * MANY)
    started = store.start(accept(many))

    until(lambda: known(store, many) == 2 * MANY)
    started.go_on()
    started.result()


def test_more_can_be_started_and_forgotten_than_there_are_connections(server: PostgresStore) -> None:
    some = [drafts(MANY) for _ in range(20)]

    for many in some:
        server.start(accept(many))

    until(lambda: sum(known(server, many) for many in some) == 20 * MANY)


def test_an_error_is_told_to_whoever_wants_the_result(server: PostgresStore) -> None:
    def steps(q: Queries) -> Steps[None]:
        yield q("take_unique", ["no id"], ["a"], ["live"], ["b"], ["c"], [None])

    started = server.start(Operation("wrong", steps))
    with pytest.raises(StoreRejected, match="uuid"):
        started.result()

    assert server.start(accept(drafts(1))).result()


def test_a_server_that_is_away_is_told_to_whoever_wants_the_result() -> None:
    started = PostgresStore("postgresql://nobody@127.0.0.1:1/nowhere").start(accept(drafts(1)))

    with pytest.raises(StoreUnavailable):
        started.result()


def test_a_batch_that_was_accepted_before_is_accepted_once(server: PostgresStore) -> None:
    many = drafts(MANY)
    server.run(accept(many[: MANY // 2]))

    assert server.start(accept(many)).result() == [Accepted(draft.id) for draft in many]
    assert known(server, many) == MANY


def test_a_batch_whose_connection_breaks_is_sent_again_and_accepted_once(migrated_postgres_url: str) -> None:
    app = Durably(migrated_postgres_url)

    @app.task
    async def work(number: int) -> None: ...

    def calls() -> Iterator[object]:
        for number in range(3 * bulk.BATCH):
            if number in (bulk.BATCH + 1, 2 * bulk.BATCH + bulk.BATCH // 2):
                with psycopg.connect(migrated_postgres_url, autocommit=True) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            yield work.call(number)

    done = app.enqueue_many(calls())  # type: ignore[arg-type]

    assert (done.accepted, done.existing) == (3 * bulk.BATCH, 0)
    [queue] = app.queues.list()
    assert queue.counts == {"ready": 3 * bulk.BATCH}
    app.close()


def test_a_source_that_fails_leaves_what_was_sent_before(url: str) -> None:
    app = Durably(url)
    told: list[str] = []

    @app.task
    async def work(number: int) -> None: ...

    def calls() -> Iterator[object]:
        for number in range(bulk.BATCH + 1):
            yield work.call(number)
        raise LookupError

    app.events.subscribe(lambda event: told.append(event.kind))
    with pytest.raises(LookupError):
        app.enqueue_many(calls())  # type: ignore[arg-type]

    [queue] = app.queues.list()
    assert queue.counts == {"ready": bulk.BATCH}
    assert told == ["enqueued"] * bulk.BATCH
    app.close()


def test_a_conflict_is_told_before_more_is_sent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", bulk.SLICE)
    app = Durably(url)
    told: list[str] = []

    @app.task
    async def work(number: int) -> None: ...

    once = work.using(unique=Unique("once", scope="forever"))
    once.enqueue(0)
    app.events.subscribe(lambda event: told.append(event.kind))

    plain = [work.call(number) for number in range(3 * bulk.SLICE)]
    with pytest.raises(Conflict):
        app.enqueue_many([*plain[: bulk.SLICE + 1], once.call(1), *plain[bulk.SLICE + 1 :]])

    [queue] = app.queues.list()
    assert queue.counts == {"ready": 2 * bulk.SLICE}
    assert told == ["enqueued"] * (2 * bulk.SLICE - 1)
    app.close()


async def test_every_task_of_a_bulk_is_told_once(url: str) -> None:
    app = Durably(url)
    told: list[str] = []

    @app.task
    async def work(number: int) -> None: ...

    app.events.subscribe(lambda event: told.append(event.task))
    app.enqueue_many(work.call(number) for number in range(2 * bulk.BATCH + 7))
    await app.aenqueue_many(work.call(number) for number in range(2 * bulk.BATCH + 7))

    assert len(told) == len(set(told)) == 4 * bulk.BATCH + 14
    await app.aclose()
    app.close()


async def test_a_caller_that_gives_up_while_it_waits_leaves_a_task_that_is_accepted_and_told(url: str) -> None:
    app = Durably(url)
    told: list[str] = []

    @app.task
    async def work(number: int) -> None: ...

    app.events.subscribe(lambda event: told.append(event.task))
    calls = [asyncio.create_task(work.aenqueue(number)) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(second, asyncio.CancelledError)
    assert isinstance(first, Handle)
    assert isinstance(third, Handle)
    assert len(told) == 3
    assert (told[0], told[2]) == (first.id, third.id)
    [queue] = await app.queues.alist()
    assert queue.counts == {"ready": 3}
    await app.aclose()
    app.close()


async def test_an_error_is_told_to_everyone_who_waits(tmp_path: Path) -> None:
    app = Durably(f"sqlite:///{tmp_path}/nowhere/store.db")

    @app.task
    async def work(number: int) -> None: ...

    answers = await asyncio.gather(*(work.aenqueue(number) for number in range(3)), return_exceptions=True)

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    app.close()
