"""What is particular to SQLite: one file, one writer, and what can go wrong with files."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from durably import Durably, SchemaOutdated, StoreRejected, StoreUnavailable
from durably.core.change import Applied, Change, Stale
from durably.core.ids import Ids, partition_of
from durably.core.lifecycle import complete
from durably.core.task import Draft, Task
from durably.stores.operations.accept import TOGETHER, accept
from durably.stores.operations.alike import end_alike
from durably.stores.operations.claim import Claim, claim
from durably.stores.operations.commit import cancel_now, commit
from durably.stores.operations.control import set_limit
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.read import clock
from durably.stores.operations.sweep import describe_session, held, open_session
from durably.stores.sqlite.store import SqliteStore
from durably.stores.sqlite.together import Job
from durably.stores.statement import Operation, Queries, Steps
from durably.testing.clock import ManualClock


@pytest.fixture
def store(sqlite_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(sqlite_path), patience=0.2)
    yield store
    store.close()


EVERY_STEP = ["0001_engine", "0002_deliveries", "0003_mail", "0004_notifications"]


def test_commits_are_durable_by_default(store: SqliteStore) -> None:
    store.migrate()
    findings = {finding.check: finding for finding in store.examine()}

    assert findings["journal"].detail == "journal_mode=wal"
    assert findings["durability"].detail.startswith("synchronous=FULL")
    assert {finding.level for finding in findings.values()} == {"ok"}


def test_the_schema_is_made_at_the_first_use_beside_the_applications_tables(sqlite_path: Path) -> None:
    with sqlite3.connect(sqlite_path) as file:
        file.execute("CREATE TABLE orders (id TEXT)")
        file.execute("PRAGMA user_version = 7")
    file.close()
    app = Durably(f"sqlite:///{sqlite_path}")

    @app.task
    async def work() -> int:
        return 1

    handle = work.enqueue()
    app.drain()
    assert handle.result(5) == 1
    app.close()
    with sqlite3.connect(sqlite_path) as file:
        assert file.execute("PRAGMA user_version").fetchall() == [(7,)]
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    file.close()
    assert {name for name in tables if not name.startswith(("durably_", "sqlite_"))} == {"orders"}


def test_two_migrators_at_once_are_fine(sqlite_path: Path) -> None:
    applied: list[list[str]] = []
    ready = threading.Barrier(8)

    def migrate() -> None:
        store = SqliteStore(str(sqlite_path))
        ready.wait()
        applied.append(store.migrate())
        store.close()

    threads = [threading.Thread(target=migrate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(applied, key=len) == [[]] * 7 + [
        ["0001_engine", "0002_deliveries", "0003_mail", "0004_notifications"]
    ]


def test_a_file_that_stays_locked_is_reported_and_nothing_is_lost(store: SqliteStore, sqlite_path: Path) -> None:
    store.migrate()
    app = Durably(store)

    @app.task
    async def work() -> None: ...

    other = sqlite3.connect(sqlite_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"stayed locked for 0\.2 s"):
        work.enqueue()
    assert store.run(clock()) > 0, "reading does not need the lock"
    other.execute("ROLLBACK")
    other.close()

    work.enqueue()
    assert app.queues.list()[0].counts == {"ready": 1}


def test_a_full_disk_is_a_clear_error_and_work_goes_on_when_there_is_space(store: SqliteStore) -> None:
    app = Durably(store, payload_limit=10**7)
    done: list[int] = []

    @app.task
    async def work(number: int, ballast: str) -> None:
        done.append(number)

    work.enqueue(1, "")
    connection = store._writing()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        app.enqueue_many(work.call(2, "x" * 100_000) for _ in range(100))
    connection.execute(f"PRAGMA max_page_count = {2**30}")
    work.enqueue(3, "")
    app.drain()

    assert done[0] == 1
    assert done[-1] == 3
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_is_no_database_is_not_touched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to be looked at" * 50)
    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        SqliteStore(str(text)).migrate()
    assert text.read_text().startswith("not a database")
    with pytest.raises(StoreUnavailable, match="does not exist"):
        SqliteStore(str(tmp_path / "nowhere" / "durably.db")).migrate()
    with pytest.raises(StoreUnavailable, match=r"cannot be opened|does not exist"):
        SqliteStore(str(tmp_path)).migrate()


def test_a_schema_from_the_future_is_refused(store: SqliteStore, sqlite_path: Path) -> None:
    store.migrate()
    with sqlite3.connect(sqlite_path) as file:
        file.execute("UPDATE durably_meta SET value = '9999' WHERE name = 'schema'")
    file.close()
    newer = SqliteStore(str(sqlite_path))
    with pytest.raises(SchemaOutdated, match="upgrade durably"):
        newer.migrate()
    newer.close()


SCANNED_ON_PURPOSE = {"counts", "list_live", "list_ended", "list_keys", "by_prefix", "prune"}


def test_no_hot_query_scans_the_tasks(store: SqliteStore) -> None:
    store.migrate()
    connection = store._writing()
    for name in store.queries.names:
        for part in store.queries._queries[name].parts:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {part.text}", [None] * len(part.takes)).fetchall()
            tables = ("SCAN durably_tasks", "SCAN t", "SCAN f", "SCAN durably_keys", "SCAN k")
            scans = [row[3] for row in rows if row[3].startswith(tables) and "VIRTUAL TABLE" not in row[3]]
            full = [scan for scan in scans if "USING" not in scan]
            assert name in SCANNED_ON_PURPOSE or not full, (name, full)


def test_a_claim_by_a_session_that_is_gone_writes_nothing(store: SqliteStore) -> None:
    store.migrate()
    before = store._writing().execute("SELECT value FROM durably_meta WHERE name = 'token'").fetchall()
    assert not store.run(claim("nobody", ["default"], 10)).live
    assert store._writing().execute("SELECT value FROM durably_meta WHERE name = 'token'").fetchall() == before


def test_a_claim_that_finds_nothing_writes_nothing(store: SqliteStore) -> None:
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    with closing(sqlite3.connect(store.path)) as other:
        before = other.execute("PRAGMA data_version").fetchall()
        assert store.run(claim_plain("one", ["default"], 10)) is None
        assert store.run(claim("one", ["default"], 10)) == Claim(True, [], ANY, plain=True)
        assert other.execute("PRAGMA data_version").fetchall() == before


def test_what_was_packed_is_what_comes_row_by_row(store: SqliteStore) -> None:
    ids = Ids(store.clock)
    plain = Draft(ids.task(None), "noop", "default", b"\x00\xff")
    whole = Draft(
        ids.task(None), "noop", "default", b"{}", 9, options=b"\x00\xfe", tags='["a"]', once=True, expires_in=99
    )
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    store.run(accept([plain, whole]))
    claimed = store.run(claim("one", ["default"], 10)).tasks
    assert [task.payload for task in claimed] == [b"{}", b"\x00\xff"]
    assert store.run(held("one")) == sorted(claimed, key=attrgetter("seq"))


def test_successes_of_several_claims_end_their_own_tasks_though_a_number_has_come_again(store: SqliteStore) -> None:
    ids = Ids(store.clock)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))

    def claimed(count: int) -> list[Task]:
        store.run(accept([Draft(ids.task(None), "noop", "default", b"{}") for _ in range(count)]))
        return store.run(claim("one", ["default"], count)).tasks

    def done(tasks: list[Task]) -> list[Change]:
        return [complete(task, None, retention=60.0) for task in tasks]

    early = done(claimed(2))
    assert store.run(commit(early)) == [Applied(change) for change in early]
    again, late = claimed(2), claimed(3)
    assert [task.seq for task in again] == [change.task.seq for change in early]

    verdicts = store.run(commit([*early, *done(late)]))
    assert [type(verdict) for verdict in verdicts] == [Stale, Stale, Applied, Applied, Applied]
    assert store.run(held("one")) == again
    assert all(isinstance(verdict, Applied) for verdict in store.run(commit(done(again))))
    assert store.run(held("one")) == []


def keyed(ids: Ids, key: str, **options: Any) -> Draft:
    return Draft(ids.task(key), "noop", "default", b"{}", key=key, **options)


def test_a_head_is_told_with_all_that_it_has(store: SqliteStore) -> None:
    ids = Ids(store.clock)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    whole = {"options": b"\x00\xfe", "tags": '["ä\\u0000"]', "once": True, "expires_in": 10**9, "priority": 9}
    store.run(accept([keyed(ids, "a", policy="pause", **whole), keyed(ids, "b")]))
    tasks = store.run(claim("one", ["default"], 10)).tasks

    assert [(task.key, task.options) for task in tasks] == [("a", b"\x00\xfe"), ("b", None)]
    assert store.run(held("one")) == tasks
    assert all(task.place is None for task in tasks)


def test_of_successes_in_keys_those_come_too_late_that_were_written_to_meanwhile(store: SqliteStore) -> None:
    ids = Ids(store.clock)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    store.run(accept([keyed(ids, key) for key in "abc"]))
    changes = [complete(task, None) for task in store.run(claim("one", ["default"], 10)).tasks]
    store.run(cancel_now([changes[1].task.id], "stop"))

    first, second, third = store.run(commit(changes))

    assert (type(first), type(third)) == (Applied, Applied)
    assert isinstance(second, Stale)
    assert second.current is not None
    assert store.run(held("one")) == [second.current]
    assert isinstance(store.run(commit([complete(second.current, None)]))[0], Applied)
    assert store.run(held("one")) == []


def test_a_success_in_a_key_ends_nobody_who_got_its_number(store: SqliteStore) -> None:
    ids = Ids(store.clock)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    store.run(accept([keyed(ids, "a")]))
    [task] = store.run(claim("one", ["default"], 10)).tasks
    store.run(commit([complete(task, None)]))
    store.run(accept([keyed(ids, "a")]))
    [other] = store.run(claim("one", ["default"], 10)).tasks
    assert (other.seq, other.version) == (task.seq, task.version)

    late = Operation("late", lambda q: end_alike(q, [complete(task, None), complete(task, None)]))
    assert store.run(late) == set()
    assert store.run(held("one")) == [other]


RESULTS = [None, b"", b'"1,2:3"', b"\x00\xff", b"{}"]


@pytest.mark.parametrize("most", [TOGETHER, 10], ids=["at once", "too long for that"])
def test_successes_are_written_the_same_one_by_one_and_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Heads and followers, with all that a task can have, of two claims, begun at different times; and plain ones."""

    def history(name: str, *without: str) -> list[tuple[Any, ...]]:
        clock = ManualClock()
        store = SqliteStore(str(tmp_path / name), clock)
        store.migrate()
        store.queries = store.queries.without(*without)
        ids = Ids(store.clock, random.Random(7))
        store.run(open_session("one", 60_000_000, "host", 1, "{}"))
        store.run(set_limit("g:g", 9, None, 1.0))

        def written(*rooms: int) -> None:
            found = [store.run(claim("one", ["default"], room, ahead=2)) for room in rooms]
            tasks = [task for one in found for head in one.tasks for task in (head, *one.behind.get(head.id, ()))]
            changes = [
                complete(task, RESULTS[place % 5], 60.0 + place % 2, ran=place % 3) for place, task in enumerate(tasks)
            ]
            assert len(changes) == 8
            clock.advance(1)
            assert store.run(commit(changes)) == [Applied(change) for change in changes]
            assert store.run(held("one")) == []

        for keys in ("aab", "c"):
            drafts = [keyed(ids, key, tags='["x"]', options=b"\x00{}", expires_in=10**9) for key in keys]
            store.run(accept([*drafts, keyed(ids, f"{keys}-limited", gate="g"), keyed(ids, f"{keys}-plain")]))
        written(3, 10)
        store.run(accept([Draft(ids.task(None), "noop", "default", b"{}", priority) for priority in range(8)]))
        written(3, 5)
        with closing(sqlite3.connect(store.path)) as file:
            rows = file.execute("SELECT * FROM durably_history ORDER BY id").fetchall()
            rows += file.execute("SELECT * FROM durably_keys").fetchall()
            assert file.execute("SELECT * FROM durably_permits").fetchall() == []
        store.close()
        return rows

    monkeypatch.setattr("durably.stores.operations.alike.TOGETHER", most)
    assert history("one by one.db", "end_alike_tasks", "finish_alike_tasks") == history("at once.db")


@pytest.mark.parametrize("together", [TOGETHER, 3], ids=["at once", "too large for that"])
def test_many_drafts_arrive_in_their_order_with_every_byte(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("durably.stores.operations.accept.TOGETHER", together)
    ids = Ids(store.clock)
    payloads = [b"", b"\x00\xff", '\u0001 \U0001f680 ä "\\'.encode(), b"{}"]
    drafts = [Draft(ids.task(None), f"naïve {n}", "q'\"\\", payload, n) for n, payload in enumerate(payloads)]
    store.run(accept([drafts[2], drafts[3]]))
    store.run(accept(drafts))

    wanted = [drafts[2], drafts[3], drafts[0], drafts[1]]
    found = store._writing().execute(
        "SELECT id, name, queue, payload, priority, partition FROM durably_tasks ORDER BY seq"
    )
    assert found.fetchall() == [(d.id, d.name, d.queue, d.payload, d.priority, partition_of(d.id)) for d in wanted]


def test_a_group_that_cannot_be_written_waits_once_and_one_bad_operation_harms_only_itself(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "group.db"), patience=0.1)

    async def together(*ops: Operation[Any]) -> list[Any]:
        return await asyncio.gather(*(store.arun(op) for op in ops), return_exceptions=True)

    def describe(session: str) -> Operation[None]:
        return describe_session(session, "{}")

    async def story() -> None:
        await store.arun(open_session("s", 10**9, "here", 1, "{}"))
        written: list[int] = []
        write = store._write

        def counted(jobs: Sequence[Job]) -> list[Any]:
            written.append(len(jobs))
            return write(jobs)

        assert store._together is not None
        store._together._write = counted
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answers = await together(*(describe("s") for _ in range(5)))
            other.execute("ROLLBACK")
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert written in ([5], [1, 4])
        bad: Operation[None] = describe_session("s", 2**70)  # type: ignore[arg-type]
        answers = await together(describe("s"), bad, describe("s"))
        assert [type(answer) for answer in answers] == [type(None), StoreRejected, type(None)]

    asyncio.run(story())
    store.close()


def test_an_event_loop_goes_on_while_something_is_written(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "busy.db"))
    entered, leave = threading.Event(), threading.Event()

    def steps(q: Queries) -> Steps[bool]:
        entered.set()
        in_time = leave.wait(20)
        yield q("lock_session", "nobody")
        return in_time

    async def story() -> None:
        slow = asyncio.create_task(store.arun(Operation("slow", steps)))
        await asyncio.to_thread(entered.wait)
        next_ones = [asyncio.create_task(store.arun(op)) for op in (open_session("s", 10**9, "here", 1, "{}"), clock())]
        await asyncio.sleep(0)
        leave.set()
        assert await slow
        await asyncio.gather(*next_ones)

    asyncio.run(story())
    store.close()


def test_the_steps_of_a_lone_operation_are_taken_by_the_loop_and_those_of_a_transaction_where_it_writes(
    tmp_path: Path,
) -> None:
    store = SqliteStore(str(tmp_path / "steps.db"))
    seen: list[threading.Thread] = []

    def steps(q: Queries) -> Steps[None]:
        seen.append(threading.current_thread())
        yield q("lock_session", "nobody")
        seen.append(threading.current_thread())
        yield q("lock_session", "nobody")

    asyncio.run(store.arun(Operation("lone", steps, single=True)))
    assert set(seen) == {threading.current_thread()}
    seen.clear()
    asyncio.run(store.arun(Operation("whole", steps)))
    assert threading.current_thread() not in seen
    assert len(set(seen)) == 1
    store.close()


def test_a_write_whose_event_loop_was_closed_does_not_stop_the_next(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "loops.db"))
    entered, leave = threading.Event(), threading.Event()

    def steps(q: Queries) -> Steps[None]:
        entered.set()
        leave.wait()
        yield q("lock_session", "nobody")

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(store.arun(Operation("slow", steps)))
    loop.run_until_complete(asyncio.sleep(0))
    entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()
    leave.set()

    assert asyncio.run(store.arun(open_session("s", 10**9, "here", 1, "{}"))) is True
    store.close()
