"""On PostgreSQL a lone plain task is accepted by one prepared statement, if no other thread is at it."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from durably import Durably, StoreRejected, StoreUnavailable, UnknownTask
from durably.client.definition import Definition
from durably.core.lifecycle import complete
from durably.core.task import Draft
from durably.stores.operations.claim import sleep
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.sweep import open_session
from durably.stores.postgres.store import PostgresStore
from durably.stores.postgres.wire import Wire
from durably.stores.protocol import BELIEVED, UNHEARD


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

    def lose(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> int | None:
        monkeypatch.setattr(Wire, "put", put)
        if landed:
            assert put(wire, text, values, formats) is not None
        meanwhile()
        wire._server.finish()
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


def test_a_statement_that_was_given_up_for_lost_takes_no_effect_later(
    app: Durably, work: Definition[[int], None]
) -> None:
    """The answer is lost while the server is still at it; meanwhile the task is sent again, and ends."""
    with store_of(app).pool.connection() as putting:
        pid = putting.info.backend_pid
    with psycopg.connect(store_of(app).url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION durably.held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF pg_backend_pid() = {pid} THEN PERFORM pg_advisory_xact_lock_shared(1); END IF; RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER held_up BEFORE INSERT ON durably.tasks FOR EACH ROW EXECUTE FUNCTION durably.held_up()"
        )
        connection.execute("SELECT pg_advisory_lock(1)")
        accepted: list[str] = []
        thread = threading.Thread(target=lambda: accepted.append(work.enqueue(1).id))
        thread.start()
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'"
        while connection.execute(waits, [pid]).fetchone() is None:
            pass
        with socket.socket(fileno=os.dup(putting.fileno())) as way:
            way.shutdown(socket.SHUT_RDWR)
        thread.join()
        drained = app.drain()
        connection.execute("SELECT pg_advisory_unlock(1)")
        while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is not None:
            pass

    assert drained == 1
    assert rows(app) == []
    assert app.handle(accepted[0]).info().state == "done"


def test_a_connection_that_was_closed_by_the_server_is_made_anew(app: Durably, work: Definition[[int], None]) -> None:
    work.enqueue(1)
    with store_of(app).pool.connection() as putting:
        pid = putting.info.backend_pid
    with psycopg.connect(store_of(app).url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
    work.enqueue(2)

    assert [row[4] for row in rows(app)] == [b'{"number":1}', b'{"number":2}']


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


def test_a_task_that_ends_while_it_is_sent_again_stays_ended(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has landed and run, and its end is held up until it is there again."""
    with Durably(store_of(app).url) as other, psycopg.connect(store_of(app).url, autocommit=True) as connection:
        ran: list[int] = []

        @other.task(name="work")
        def stand_in(number: int) -> None:
            ran.append(number)

        connection.execute(
            "CREATE FUNCTION durably.held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER held_up BEFORE INSERT ON durably.history FOR EACH ROW EXECUTE FUNCTION durably.held_up()"
        )
        connection.execute("SELECT pg_advisory_lock(1)")
        running = threading.Thread(target=other.drain)

        def wait_for(event: str) -> None:
            text = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = %s"
            while connection.execute(text, [event]).fetchone() is None:
                pass

        def begin_to_end() -> None:
            running.start()
            wait_for("advisory")

        lossy(monkeypatch, landed=True, meanwhile=begin_to_end)
        sending = threading.Thread(target=work.enqueue, args=(1,))
        sending.start()
        wait_for("transactionid")
        connection.execute("SELECT pg_advisory_unlock(1)")
        sending.join()
        running.join()

        assert (other.drain(), ran) == (0, [1])


@pytest.fixture
def looks(app: Durably, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every task that is put, whether it was looked for somebody who sleeps."""
    put, found = Wire.put, list[bool]()
    heard = store_of(app).queries.text("insert_new")

    def noted(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> int | None:
        found.append(text == heard)
        return put(wire, text, values, formats)

    monkeypatch.setattr(Wire, "put", noted)
    return found


def test_while_nobody_sleeps_not_every_one_looks(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    monkeypatch.setattr("durably.stores.postgres.store.BELIEVED", 3600)
    work.enqueue(1)
    work.enqueue(2)
    work.using(queue="other").enqueue(3)
    work.enqueue(4)

    assert looks == [True, False, True, False]


def test_what_was_seen_is_believed_for_a_moment_only(
    app: Durably, work: Definition[[int], None], looks: list[bool]
) -> None:
    for number in range(3):
        work.enqueue(number)
        time.sleep(BELIEVED)

    assert looks == [True] * 3


def sleeper(url: str) -> psycopg.Connection[tuple[str]]:
    """Somebody who sleeps on the default queue, and listens."""
    store = PostgresStore(url)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    store.run(sleep("one", ["default"]))
    store.close()
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("LISTEN durably")
    return connection


def test_while_somebody_sleeps_every_one_tells(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    monkeypatch.setattr("durably.stores.postgres.store.BELIEVED", 3600)
    with sleeper(store_of(app).url) as listening:
        for number in range(2):
            work.enqueue(number)
            assert [notice.payload for notice in listening.notifies(timeout=60, stop_after=1)] == ["default"]

    assert looks == [True, True]


def slow(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Let a statement take longer than a sleeper waits before it looks again."""
    put = Wire.put

    def slowly(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> int | None:
        answer = put(wire, text, values, formats)
        meanwhile()
        time.sleep(UNHEARD)
        return answer

    monkeypatch.setattr(Wire, "put", slowly)


def test_one_that_looked_and_took_longer_than_a_sleeper_waits_tells_after_all(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    sleepers: list[psycopg.Connection[tuple[str]]] = []
    slow(monkeypatch, lambda: sleepers.append(sleeper(store_of(app).url)))
    work.enqueue(1)
    [listening] = sleepers
    with listening:
        told = [notice.payload for notice in listening.notifies(timeout=60, stop_after=1)]

    assert (looks, told) == ([True], ["default"])


def test_one_that_took_longer_than_a_sleeper_waits_tells_after_all(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    slow(monkeypatch)
    monkeypatch.setattr("durably.stores.postgres.store.BELIEVED", 3600)
    with sleeper(store_of(app).url) as listening:
        store_of(app)._nobody_slept["default"] = time.monotonic()
        work.enqueue(1)
        told = [notice.payload for notice in listening.notifies(timeout=60, stop_after=1)]

    assert (looks, told) == ([False], ["default"])


def test_a_hint_that_fails_is_nothing_but_a_hint(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr("durably.stores.postgres.store.UNHEARD", 0)
    monkeypatch.setattr("durably.stores.postgres.store.BELIEVED", 3600)
    monkeypatch.setattr(Wire, "run", fail)
    monkeypatch.setattr(PostgresStore, "run", fail)
    work.enqueue(1)
    work.enqueue(2)

    assert [row[4] for row in rows(app)] == [b'{"number":1}', b'{"number":2}']


def test_what_may_still_be_done_is_not_sent_again(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def be_held_up(_: Any, lifeline: int) -> None:
        asked.append(lifeline)
        raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    work.enqueue(1)
    lossy(monkeypatch, landed=False)
    monkeypatch.setattr("durably.stores.postgres.store.let_end", be_held_up)
    with pytest.raises(StoreUnavailable, match=r"task (\S+) may still be accepted.*\(canceling") as found:
        work.enqueue(2)

    assert [row[4] for row in rows(app)] == [b'{"number":1}']
    assert len(asked) == 1
    [named] = re.findall(r"task (\S+) may", str(found.value))
    with pytest.raises(UnknownTask):
        app.handle(named).info()


def test_only_so_many_queues_are_remembered(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durably.stores.postgres.store.REMEMBERED", 2)
    for name in "abc":
        work.using(queue=name).enqueue(1)

    assert list(store_of(app)._nobody_slept) == ["c"]


def test_a_store_that_is_away_is_told_as_on_the_usual_way(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(1)

    def away(*_: Any) -> int | None:
        raise psycopg.OperationalError("it is away")

    monkeypatch.setattr(Wire, "put", away)
    monkeypatch.setattr(Wire, "call", away)
    with pytest.raises(StoreUnavailable, match="it is away"):
        work.enqueue(2)


def test_a_full_disk_is_told_at_once(
    app: Durably, work: Definition[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(1)

    def full(*_: Any) -> int | None:
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

    def slowly(wire: Wire, text: str, values: Sequence[bytes], formats: Sequence[int]) -> int | None:
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
