"""On PostgreSQL a lone plain task is accepted by one prepared statement, if no other thread is at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from durably import Durably, StoreRejected, StoreUnavailable
from durably.client.definition import Definition
from durably.core.lifecycle import complete
from durably.core.task import Draft
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.sweep import open_session
from durably.stores.postgres.store import PostgresStore
from durably.stores.postgres.wire import Wire


@pytest.fixture
def app(migrated_postgres_url: str) -> Iterator[Durably]:
    with Durably(migrated_postgres_url) as app:
        yield app


@pytest.fixture
def work(app: Durably) -> Definition[[int], None]:
    @app.task(name="work")
    async def work(number: int) -> None: ...

    return work


def store_of(app: Durably) -> PostgresStore:
    store = app._engine.store
    assert isinstance(store, PostgresStore)
    return store


def rows(app: Durably) -> list[tuple[Any, ...]]:
    with psycopg.connect(store_of(app).url) as connection:
        text = "SELECT id::text, state, name, queue, payload, priority FROM durably.tasks ORDER BY seq"
        return connection.execute(text).fetchall()


def nothing_else(app: Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the usual way fail."""

    def refuse(op: Any) -> Any:
        raise AssertionError(f"{op.name} went the usual way")

    monkeypatch.setattr(store_of(app), "run", refuse)


def test_once_the_statement_is_prepared_a_lone_task_is_put(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    app.events.subscribe(lambda event: events.append((event.kind, event.task)))
    first = work.enqueue(1)
    with monkeypatch.context() as patched:
        nothing_else(app, patched)
        second = work.using(priority=4, queue="größer").enqueue(2)

    assert rows(app) == [
        (first.id, "ready", "work", "default", b'{"number":1}', 5),
        (second.id, "ready", "work", "größer", b'{"number":2}', 4),
    ]
    assert events == [("enqueued", first.id), ("enqueued", second.id)]
    assert [app.drain(), first.info().state] == [1, "done"]


def lossy(monkeypatch: pytest.MonkeyPatch, *, landed: bool, meanwhile: Any = lambda: None) -> None:
    """Lose the connection once, before the statement was run, or after it."""
    put = Wire.put

    def lose(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> bool:
        monkeypatch.setattr(Wire, "put", put)
        if landed:
            assert put(wire, text, values, formats)
        meanwhile()
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(Wire, "put", lose)


@pytest.mark.parametrize("landed", [False, True])
def test_a_task_whose_answer_was_lost_is_accepted_once(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    work.enqueue(1)
    lossy(monkeypatch, landed=landed)
    work.enqueue(2)
    work.enqueue(3)

    assert [row[4] for row in rows(app)] == [b'{"number":%d}' % number for number in (1, 2, 3)]


def test_a_task_that_has_ended_before_it_was_sent_again_stays_ended(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(app)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    work.enqueue(1)

    def end() -> None:
        found = store.run(claim_plain("one", ["default"], 10))
        assert found is not None
        store.run(commit([complete(task, None) for task in found.tasks]))

    lossy(monkeypatch, landed=True, meanwhile=end)
    handle = work.enqueue(2)

    assert rows(app) == []
    assert handle.info().state == "done"


def test_a_store_that_is_away_is_told_as_on_the_usual_way(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(1)

    def away(*_: Any) -> bool:
        raise psycopg.OperationalError("it is away")

    monkeypatch.setattr(Wire, "put", away)
    monkeypatch.setattr(Wire, "call", away)
    with pytest.raises(StoreUnavailable, match="it is away"):
        work.enqueue(2)


def test_a_full_disk_is_told_at_once(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(1)

    def full(*_: Any) -> bool:
        raise psycopg.errors.DiskFull("no space left on device")

    monkeypatch.setattr(Wire, "put", full)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        work.enqueue(2)


@pytest.mark.parametrize(("name", "reason"), [("no \ud800 name", "surrogates"), ("no \0 name", "NUL")])
def test_what_cannot_be_put_is_refused_with_the_reason(
    app: Durably, work: Definition[[int], None], name: str, reason: str
) -> None:
    work.enqueue(1)
    draft = Draft(app._engine.ids.task(None), name, "default", b"{}")

    assert not store_of(app).put(draft)
    with pytest.raises(StoreRejected, match=reason):
        app._engine.accept([draft], None)
    assert len(rows(app)) == 1


def test_an_id_that_is_there_already_is_not_put(app: Durably, work: Definition[[int], None]) -> None:
    handle = work.enqueue(1)
    assert not store_of(app).put(Draft(handle.id, "work", "default", b"{}"))
    assert [row[4] for row in rows(app)] == [b'{"number":1}']


def test_a_second_thread_goes_the_usual_way_meanwhile(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(1)
    put, asked, free = Wire.put, threading.Event(), threading.Event()

    def slowly(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> bool:
        asked.set()
        free.wait()
        return put(wire, text, values, formats)

    monkeypatch.setattr(Wire, "put", slowly)
    thread = threading.Thread(target=work.enqueue, args=(2,))
    thread.start()
    asked.wait()
    work.enqueue(3)
    free.set()
    thread.join()

    assert [row[4] for row in rows(app)] == [b'{"number":%d}' % number for number in (1, 3, 2)]


def test_a_connection_with_another_encoding_is_not_used_for_it(migrated_postgres_url: str) -> None:
    with Durably(f"{migrated_postgres_url}&client_encoding=latin1") as app:

        @app.task(name="größer")
        async def work(number: int) -> None: ...

        for number in (1, 2):
            work.enqueue(number)

        assert [row[2] for row in rows(app)] == ["größer", "größer"]
