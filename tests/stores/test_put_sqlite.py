"""On SQLite a lone plain task is accepted by one statement, if nobody else is at it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durably import Durably, StoreRejected
from durably.client.definition import Definition
from durably.core.lifecycle import complete
from durably.core.task import Draft
from durably.stores.operations.accept import Accepted, accept
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.read import get
from durably.stores.operations.sweep import open_session
from durably.stores.sqlite.store import SqliteStore


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Durably]:
    with Durably(f"sqlite:///{tmp_path}/tasks.db") as app:
        app.migrate()
        yield app


@pytest.fixture
def work(app: Durably) -> Definition[[int], None]:
    @app.task(name="work")
    async def work(number: int) -> None: ...

    return work


def store_of(app: Durably) -> SqliteStore:
    store = app._engine.store
    assert isinstance(store, SqliteStore)
    return store


def rows(app: Durably) -> list[tuple[Any, ...]]:
    other = sqlite3.connect(store_of(app).path)
    try:
        return other.execute("SELECT id, state, name, queue, payload FROM durably_tasks ORDER BY seq").fetchall()
    finally:
        other.close()


def test_a_lone_task_is_put_and_others_see_it_at_once(app: Durably, work: Definition[[int], None]) -> None:
    events: list[tuple[str, str]] = []
    app.events.subscribe(lambda event: events.append((event.kind, event.task)))
    first = work.enqueue(1)
    before = store_of(app)._writer
    assert before is not None
    changes = before.total_changes
    second = work.using(priority=4).enqueue(2)

    assert before.total_changes == changes + 1
    assert rows(app) == [
        (first.id, "ready", "work", "default", b'{"number":1}'),
        (second.id, "ready", "work", "default", b'{"number":2}'),
    ]
    assert events == [("enqueued", first.id), ("enqueued", second.id)]
    assert [app.drain(), first.info().state, second.info().state] == [2, "done", "done"]


def test_a_task_waits_for_whoever_has_the_file(app: Durably, work: Definition[[int], None]) -> None:
    other = sqlite3.connect(store_of(app).path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    refused = threading.Event()
    put = store_of(app).put

    def told(draft: Draft) -> bool:
        done = put(draft)
        if not done:
            refused.set()
        return done

    store_of(app).put = told  # type: ignore[method-assign]
    thread = threading.Thread(target=work.enqueue, args=(1,))
    thread.start()
    refused.wait()
    other.execute("ROLLBACK")
    thread.join()
    other.close()

    assert [row[1] for row in rows(app)] == ["ready"]


def test_nobody_overtakes_those_who_wait_for_each_other(app: Durably, work: Definition[[int], None]) -> None:
    store = store_of(app)
    waiting, free = threading.Event(), threading.Event()
    run, put = store.run, store.put
    asked: list[str] = []

    def running(op: Any) -> Any:
        waiting.set()
        free.wait()
        return run(op)

    def putting(draft: Draft) -> bool:
        asked.append(draft.id)
        return put(draft)

    store.run, store.put = running, putting  # type: ignore[method-assign]
    store._lock.acquire()
    behind = threading.Thread(target=work.enqueue, args=(1,))
    behind.start()
    waiting.wait()
    store._lock.release()
    overtaking = threading.Thread(target=work.enqueue, args=(2,))
    overtaking.start()
    while overtaking.is_alive() and not app._engine._intake._queue:
        pass
    free.set()
    behind.join()
    overtaking.join()

    assert [row[4] for row in rows(app)] == [b'{"number":1}', b'{"number":2}']
    assert len(asked) == 1


def test_what_was_put_can_be_accepted_again_without_harm(app: Durably) -> None:
    store = store_of(app)
    draft = Draft(app._engine.ids.task(None), "work", "default", b"{}")
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    assert store.put(draft)
    assert not store.put(draft)
    assert store.run(accept([draft])) == [Accepted(draft.id)]
    assert len(rows(app)) == 1

    found = store.run(claim_plain("one", ["default"], 10))
    assert found is not None
    store.run(commit([complete(task, None) for task in found.tasks]))
    assert store.run(accept([draft])) == [Accepted(draft.id)]
    assert [task.state for task in store.run(get([draft.id]))] == ["done"]
    assert rows(app) == []


def test_what_cannot_be_put_is_refused_with_the_reason(app: Durably) -> None:
    draft = Draft(app._engine.ids.task(None), "no \ud800 name", "default", b"{}")

    assert not store_of(app).put(draft)
    with pytest.raises(StoreRejected, match="surrogates"):
        app._engine.accept([draft], None)


def test_a_file_without_tables_gets_them_at_the_first_task(tmp_path: Path) -> None:
    with Durably(f"sqlite:///{tmp_path}/new.db") as app:

        @app.task(name="work")
        async def work() -> None: ...

        draft = Draft(app._engine.ids.task(None), "work", "default", b"{}")
        assert not store_of(app).put(draft)
        work.enqueue()
        assert len(rows(app)) == 1
