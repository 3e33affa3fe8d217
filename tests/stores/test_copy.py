"""Many tasks at once are copied into PostgreSQL, and nobody can tell how they came in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from durably import Durably
from durably.core.ids import Ids
from durably.core.moment import HostClock
from durably.core.task import Draft
from durably.stores.operations.accept import MANY, Accepted, accept
from durably.stores.operations.commit import cancel_now
from durably.stores.postgres.copy import TOGETHER, lines
from durably.stores.postgres.pool import Pool
from durably.stores.postgres.store import PostgresStore
from tests.stores.test_wire import Run, run_in_thread

NASTY = ["plain", "tab\tnew\nline\rback\\slash", "100 %s %", "\\N", "\\.", "žluťoučký \U0001f680", "'\"{}"]


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    yield store
    store.close()


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    pool = Pool(postgres_url)
    run_in_thread(pool, "CREATE TABLE copied (a bigint PRIMARY KEY, b text, c bytea, d boolean, e text, f boolean)")
    yield pool
    pool.close()


def drafts(count: int, **given: Any) -> list[Draft]:
    ids = Ids(HostClock())
    return [Draft(ids.task(None), "work", "default", b"{}", **given) for _ in range(count)]


def rows(store: PostgresStore, columns: str = "id::text") -> list[tuple[Any, ...]]:
    with psycopg.connect(store.url) as connection:
        return connection.execute(f"SELECT {columns} FROM durably.tasks ORDER BY seq".encode()).fetchall()


def test_whatever_is_copied_comes_back(pool: Pool, run: Run) -> None:
    numbers = list(range(len(NASTY)))
    blobs = [text.encode() + b"\0\xff" for text in NASTY]
    truths = [number % 2 == 0 for number in numbers]

    run(pool, "COPY copied FROM STDIN", numbers, NASTY, blobs, truths, "50 %s\t\\", True)

    found = run(pool, "SELECT * FROM copied ORDER BY a")
    assert found == [(*row, "50 %s\t\\", True) for row in zip(numbers, NASTY, blobs, truths, strict=True)]


def test_more_is_copied_than_the_server_takes_at_once(pool: Pool, run: Run) -> None:
    big = [b"%d" % number * 100_000 for number in range(50)]

    run(pool, "COPY copied (a, c) FROM STDIN", list(range(50)), big)

    assert run(pool, "SELECT c FROM copied ORDER BY a") == [(one,) for one in big]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("COPY copied (a, b) FROM STDIN", psycopg.errors.UniqueViolation),
        ("COPY copied (b, a) FROM STDIN", psycopg.errors.InvalidTextRepresentation),
        ("COPY nowhere (a, b) FROM STDIN", psycopg.errors.UndefinedTable),
    ],
)
def test_a_copy_that_fails_says_why_and_copies_nothing(
    pool: Pool, run: Run, text: str, error: type[psycopg.Error]
) -> None:
    with pytest.raises(error):
        run(pool, text, [1, 2, 2], ["a", "b", "c"])

    assert run(pool, "SELECT count(*) FROM copied") == [(0,)]


def test_lines_are_written_once_where_rows_are_alike() -> None:
    assert [*lines([["a", "b"], 1, ["x", "x"], False])] == ["a\t1\tx\tf\nb\t1\tx\tf\n"]
    assert [*lines([["a"], [b"\x01"]])] == ["a\t\\\\x01\n"]


def test_the_first_lines_are_sent_while_the_others_are_still_to_be_written() -> None:
    texts = [str(number) for number in range(2 * TOGETHER + 1)]

    parts = [part.split() for part in lines([texts, texts])]

    assert [len(part) for part in parts] == [2 * TOGETHER, 2 * TOGETHER, 2]
    assert [one for part in parts for one in part][::2] == texts


def test_many_tasks_are_accepted_as_each_alone_would_be(store: PostgresStore) -> None:
    columns = (
        "version, ready_at - created_at, started_at, expires_at, token, priority, attempt, spent, crashes, once, "
        "alone, state, name, queue, key, policy, gate, session, payload, options, tags, cancel, unique_scope, "
        "unique_key, progress, details, partition = ('x' || substr(id::text, 16, 3))::bit(12)::int"
    )
    groups = [drafts(count, priority=7) for count in (MANY, MANY - 1, 1)]
    for group in groups:
        store.run(accept(group))
    for fresh in (True, False):
        [draft] = drafts(1, priority=7)
        groups.append([draft])
        store.run(accept([draft], again=not fresh, fresh=fresh))

    assert [task for (task,) in rows(store)] == [draft.id for group in groups for draft in group]
    assert len(set(rows(store, columns))) == 1
    assert rows(store, "count(*) OVER (), payload")[0] == (2 * MANY + 2, b"{}")


@pytest.mark.parametrize("count", [1, 2, MANY - 1, MANY])
def test_tasks_that_are_sent_twice_are_accepted_once(store: PostgresStore, count: int) -> None:
    some = drafts(count)
    store.run(accept(some[: (count + 1) // 2]))

    assert store.run(accept(some)) == [Accepted(draft.id) for draft in some]
    store.run(accept(some, again=True))

    assert sorted(rows(store)) == sorted((draft.id,) for draft in some)


@pytest.mark.parametrize("count", [1, 2, MANY - 1, MANY])
def test_a_request_that_comes_late_brings_nothing_back_that_has_ended(store: PostgresStore, count: int) -> None:
    some = drafts(count)
    store.run(accept(some))
    store.run(cancel_now([draft.id for draft in some], "not wanted"))

    store.run(accept(some, again=True))
    if count < MANY:
        store.run(accept(some))

    assert rows(store) == []


@pytest.mark.parametrize("count", [1, 2, MANY])
def test_tasks_wake_whoever_sleeps_on_their_queue(store: PostgresStore, count: int) -> None:
    with psycopg.connect(store.url, autocommit=True) as worker:
        worker.execute("INSERT INTO durably.sleepers VALUES ('default', 'worker'), ('other', 'worker')")
        worker.execute("LISTEN durably")
        store.run(accept(drafts(count)))
        worker.execute("NOTIFY durably, 'end'")

        notes = [note.payload for note in worker.notifies(timeout=30, stop_after=2)]
    assert notes == ["default", "end"]


def test_many_calls_of_several_tasks_run_with_the_arguments_they_were_given(migrated_postgres_url: str) -> None:
    app = Durably(migrated_postgres_url)
    seen: list[tuple[str, str]] = []

    @app.task(queue="first")
    async def first(text: str) -> None:
        seen.append(("first", text))

    @app.task(queue="second", priority=9)
    async def second(text: str) -> None:
        seen.append(("second", text))

    sent = [(task.name, NASTY[number % len(NASTY)]) for number in range(MANY) for task in (first, second)]
    app.enqueue_many((first if name == first.name else second).call(text) for name, text in sent)
    app.drain()

    assert sorted(seen) == sorted((name.rpartition(".")[2], text) for name, text in sent)
    app.close()
