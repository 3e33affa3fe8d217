"""What is particular to PostgreSQL: a server that can be away, a schema to migrate, plans that can go wrong."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from durably import BadOption, Durably, SchemaOutdated, StoreRejected, StoreUnavailable
from durably.core.options import CallOptions
from durably.core.task import Draft
from durably.stores.operations.accept import accept
from durably.stores.operations.sweep import mark_dead
from durably.stores.postgres import pool
from durably.stores.postgres.address import redacted
from durably.stores.postgres.arrays import literal
from durably.stores.postgres.pieces import dialect
from durably.stores.postgres.pool import BEGIN_POOLED
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Operation, Queries, Steps, load
from durably.testing.servers import PostgresServer


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    yield store
    store.close()


EVERY_STEP = ["0001_engine", "0002_deliveries", "0003_mail", "0004_notifications"]


def test_a_database_that_was_not_migrated_says_so(postgres_url: str) -> None:
    app = Durably(postgres_url)

    @app.task
    async def work() -> None: ...

    with pytest.raises(SchemaOutdated, match="run `durably migrate`"):
        work.enqueue()
    app.close()


def test_two_migrators_at_once_are_fine(postgres_url: str) -> None:
    applied: list[list[str]] = []
    ready = threading.Barrier(6)

    def migrate() -> None:
        store = PostgresStore(postgres_url)
        ready.wait()
        applied.append(store.migrate())
        store.close()

    threads = [threading.Thread(target=migrate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(applied, key=len) == [[]] * 5 + [
        ["0001_engine", "0002_deliveries", "0003_mail", "0004_notifications"]
    ]


def test_several_schemas_share_a_database_without_seeing_each_other(postgres_url: str) -> None:
    apps = [Durably(postgres_url, schema=schema) for schema in ("durably", "tenant_b")]
    for app in apps:
        app.migrate()

        async def work() -> None: ...

        app.declare(work, "work", (), {}).enqueue()
    assert [app.queues.list()[0].counts for app in apps] == [{"ready": 1}, {"ready": 1}]
    assert apps[1].drain() == 1
    assert [app.queues.list()[0].counts for app in apps] == [{"ready": 1}, {"done": 1}]
    for app in apps:
        app.close()
    with pytest.raises(BadOption, match="plain lower-case name"):
        Durably(postgres_url, schema='x"; DROP SCHEMA public')


def test_a_migration_runs_under_live_workers(migrated_postgres_url: str) -> None:
    app = Durably(migrated_postgres_url)

    @app.task
    async def work(number: int) -> int:
        return number

    async def story() -> list[int]:
        worker = app.worker(poll=0.05)
        serving = asyncio.create_task(worker.run())
        first = [await work.aenqueue(number) for number in range(20)]
        assert await asyncio.to_thread(app.migrate) == []
        rest = [await work.aenqueue(number) for number in range(20, 40)]
        results = await asyncio.gather(*(handle.aresult(60) for handle in [*first, *rest]))
        worker.stop()
        await serving
        await app.aclose()
        return results

    assert asyncio.run(story()) == list(range(40))


def test_an_unreachable_server_is_a_clear_error_without_the_password() -> None:
    app = Durably("postgresql://someone:hunter2@127.0.0.1:1/nowhere")

    @app.task
    async def work() -> None: ...

    with pytest.raises(StoreUnavailable) as caught:
        work.enqueue()
    assert "cannot be reached" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in app.store.address
    assert redacted("host=x password=hunter2 user=y") == "host=x password=*** user=y"


def test_a_worker_that_starts_while_the_server_is_away_waits_and_serves() -> None:
    with PostgresServer(18) as server:
        url = server.create_database("late")
        app = Durably(url)
        app.migrate()
        app.close()

        @app.task
        async def work() -> str:
            return "served"

        async def story() -> str:
            worker = app.worker(poll=0.05)
            with server.outage("immediate"):
                serving = asyncio.create_task(worker.run())
                with pytest.raises(StoreUnavailable):
                    await work.aenqueue()
            handle = await work.aenqueue()
            result = await handle.aresult(60)
            worker.stop()
            await serving
            await app.aclose()
            return result

        assert asyncio.run(story()) == "served"


def test_a_worker_consumes_again_after_the_server_was_restarted() -> None:
    with PostgresServer(18) as server:
        url = server.create_database("restarted")
        app = Durably(url)
        app.migrate()
        app.close()
        begun, go = asyncio.Semaphore(0), asyncio.Event()

        @app.task
        async def work(number: int) -> int:
            begun.release()
            await go.wait()
            return number

        async def story() -> list[int]:
            worker = app.worker(poll=0.05, lease=20)
            serving = asyncio.create_task(worker.run())
            before = [await work.aenqueue(number) for number in range(10)]
            for _ in before:
                await begun.acquire()
            with server.outage("immediate"):
                go.set()
            after = [await work.aenqueue(number) for number in range(10, 20)]
            results = await asyncio.gather(*(handle.aresult(120) for handle in [*before, *after]))
            assert {(await handle.ainfo()).attempt for handle in before} == {1}
            worker.stop()
            await serving
            await app.aclose()
            return results

        assert asyncio.run(story()) == list(range(20))


def test_a_cancelled_operation_leaves_no_transaction_behind(store: PostgresStore, migrated_postgres_url: str) -> None:
    async def story() -> int:
        with psycopg.connect(migrated_postgres_url) as blocker:
            blocker.execute("LOCK TABLE durably.sessions")
            blocked = asyncio.create_task(store.arun(mark_dead()))
            with psycopg.connect(migrated_postgres_url, autocommit=True) as watch:
                query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while watch.execute(query).fetchone() == (0,):  # noqa: ASYNC110 - the server cannot signal
                    await asyncio.sleep(0.01)
            blocked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await blocked
        answer = await store.arun(mark_dead())
        await store.aclose()
        return len(answer)

    assert asyncio.run(story()) == 0


def test_a_transaction_that_nobody_goes_on_with_is_ended_by_the_server(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SETTLE", "SET idle_in_transaction_session_timeout = '50ms'")
    store = PostgresStore(migrated_postgres_url)
    asked = 0

    def steps(q: Queries) -> Steps[None]:
        nonlocal asked
        asked += 1
        yield q("lock_sessions")
        with psycopg.connect(migrated_postgres_url) as other:
            # It gets the lock when the transaction above is gone, and not before.
            other.execute("LOCK TABLE durably.sessions")
        yield q("clock")

    with pytest.raises(StoreUnavailable, match="idle-in-transaction") as caught:
        store.run(Operation("stalled", steps))
    store.close()

    assert caught.value.fleeting
    assert asked == 1


def test_transactions_of_the_engine_do_not_stay_open_when_their_worker_is_gone(store: PostgresStore) -> None:
    with store.pool.connection() as connection:
        assert connection.wire.run("SHOW idle_in_transaction_session_timeout", ()) == [("1min",)]
        connection.wire.say(BEGIN_POOLED.replace("60000", "30000"))
        assert connection.wire.run("SHOW idle_in_transaction_session_timeout", ()) == [("30s",)]
        connection.wire.say("ROLLBACK")


def test_every_connection_that_comes_back_wakes_one_who_waits(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two may come back before the first who was woken has taken his: the second one is for somebody else.
    monkeypatch.setattr(pool, "POOL_SIZE", 2)
    woken: list[None] = []
    taken = [store.pool.take() for _ in range(2)]
    monkeypatch.setattr(store.pool._returned, "notify", lambda: woken.append(None))
    for connection, generation in taken:
        store.pool.give_back(connection, generation, clean=True)

    assert len(woken) == 2


def test_a_connection_that_comes_back_to_a_closed_pool_is_closed(store: PostgresStore) -> None:
    async def story() -> tuple[bool, bool]:
        async with store.pool.aconnection() as late:
            await store.aclose()
        async with store.pool.aconnection() as later:
            pass
        kept = not later.closed
        await store.aclose()
        return late.closed, kept

    assert asyncio.run(story()) == (True, True)


SCANNED_ON_PURPOSE = {"counts", "list_live", "list_ended", "list_keys", "by_prefix", "dead_ids", "marked"}
"""Statements for people, who ask now and then."""
FEW_OR_FIRST = ("claims_pkey", "tasks_rare", "tasks_delayed", "keys_leased", "keys_held", "turns_pkey")
"""Indexes that hold only what runs or is held back, or of which a statement wants only the beginning."""
TABLES = ("tasks", "history", "attempts", "keys", "turns", "unique_keys", "claims", "prunes")
"""Those that may be large."""
ROWS = """
INSERT INTO durably.{table} (id, seq, version, created_at, ready_at, token, partition, priority, attempt, spent,
                             crashes, once, state, name, queue, payload, {more})
SELECT gen_random_uuid(), i, 0, 1, i, 0, 0, 5, 0, 0, 0, false, '{state}', 'w', 'q', '', {value}
  FROM generate_series(1, 20000) AS i
"""


@pytest.mark.parametrize("known", ["never analyzed", "vacuumed while empty", "full"])
def test_no_hot_query_scans_a_table_whatever_is_known_about_it(
    store: PostgresStore, migrated_postgres_url: str, known: str
) -> None:
    with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
        if known == "full":
            connection.execute(ROWS.format(table="tasks", more="alone", state="ready", value="false").encode())
            connection.execute(ROWS.format(table="history", more="finished_at", state="done", value="1").encode())
        if known != "never analyzed":
            connection.execute("VACUUM ANALYZE")
        for name in set(store.queries.names) - SCANNED_ON_PURPOSE:
            text = store.queries.text(name)
            if text.startswith(("LOCK", "COPY")):
                continue
            connection.execute(BEGIN_POOLED)
            nothing = ", ".join(["NULL"] * _parameters(text))
            connection.execute(f"PREPARE probe AS {text}".encode())
            plan = connection.execute(
                f"EXPLAIN (FORMAT JSON) EXECUTE probe{'(' + nothing + ')' if nothing else ''}".encode()
            ).fetchall()
            connection.execute("DEALLOCATE probe")
            connection.execute("ROLLBACK")
            scans = [node for node in _nodes(plan[0][0][0]["Plan"]) if _scans_a_table(node)]
            if name == "seed_permits":
                scans = [node for node in scans if node["Relation Name"] != "claims"]
            assert scans == [], (name, scans)


def test_whoever_waits_for_key_rows_locks_them_in_the_order_that_the_database_knows(store: PostgresStore) -> None:
    locks = re.compile(r"FROM durably\.keys\b[^()]*FOR (NO KEY UPDATE|UPDATE|KEY SHARE)(?! SKIP LOCKED)")
    waits = [name for name in store.queries.names if locks.search(" ".join(store.queries.text(name).split()))]

    assert {"lock_keys", "share_keys", "finish_keyed_tasks"} <= {*waits}
    assert [name for name in waits if "ORDER BY queue, key" not in store.queries.text(name)] == []


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


def _scans_a_table(node: dict[str, Any]) -> bool:
    """Whether it reads all of a table that may be large, or all of an index."""
    if node.get("Relation Name") not in TABLES:
        return False
    if node["Node Type"] == "Bitmap Heap Scan" or node["Node Type"] == "ModifyTable":
        return False
    found = {"Index Cond", "TID Cond"} & node.keys()
    return not found and node.get("Index Name") not in FEW_OR_FIRST


def _parameters(text: str) -> int:
    return max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", 'b"c', "d\\e", "", "NULL", "{x,y}", "ä\U0001f680", None], "text"),
        ([1, -5, 2**62, None], "bigint"),
        ([0.5, 1e-300, None, -2.0], "double precision"),
        ([True, False, None], "boolean"),
        ([b"", b"\x00\xff\\", b'"', None], "bytea"),
        ([], "text"),
    ],
)
def test_arrays_are_written_so_that_they_come_back(store: PostgresStore, values: list[object], kind: str) -> None:
    with psycopg.connect(store.url) as connection:
        [(found,)] = connection.execute(f"SELECT %s::{kind}[]".encode(), [literal(values)]).fetchall()
    assert found == values


@pytest.mark.parametrize("ids", [[], ["01890a5d-ac96-774b-bcce-b302099a8057"], [str(UUID(int=n)) for n in range(300)]])
def test_ids_travel_as_the_server_keeps_them(store: PostgresStore, ids: list[str]) -> None:
    with store.pool.connection() as connection:
        assert connection.wire.run("SELECT ($1::uuid[])::text[]", [ids]) == [(ids,)]


@pytest.mark.parametrize("bad", ["01890a5d-ac96-774b-bcce-b302099a805z", "01890a5d-ac96-774b-bcce-b302099a805700"])
def test_what_is_no_id_is_refused_and_the_connection_goes_on(store: PostgresStore, bad: str) -> None:
    drafts = [Draft(one, "noop", "default", b"") for one in (str(UUID(int=1)), bad)]
    with pytest.raises(StoreRejected, match="uuid"):
        store.run(accept(drafts))
    store.run(accept([drafts[0], Draft(str(UUID(int=2)), "noop", "default", b"")]))


def test_places_travel_as_the_server_keeps_them(store: PostgresStore) -> None:
    there = ["(0,1)", "(4000000,12)"]
    with store.pool.connection() as connection:
        found = connection.wire.run("SELECT unnest($1::text[])::tid", [there])
        told = [place for (place,) in found]
        assert connection.wire.run("SELECT ($1::tid[])::text[]", [told]) == [(there,)]
        assert connection.wire.run("SELECT ($1::tid[])::text[]", [[]]) == [([],)]


def test_whatever_is_reached_by_its_place_is_judged_by_its_version_too() -> None:
    # Before 16.11 and its like, PostgreSQL does not compare the place again after it has waited for a row.
    queries = load(dialect("durably"))
    place = r"t\.ctid = (f\.row|d\.place AND t\.id = d\.id)"
    reached = [queries.text(name) for name in queries.names if re.search(r"t\.ctid = [df]\.", queries.text(name))]

    assert len(reached) == 8
    assert all(re.search(place + r" AND t\.version = d\.version", text) for text in reached)


def test_tasks_that_come_together_leave_one_marker_for_each_key_and_each_limit_group(
    migrated_postgres_url: str,
) -> None:
    app = Durably(migrated_postgres_url)

    @app.task
    async def work(number: int) -> None: ...

    options: list[CallOptions] = [
        {"key": "b", "priority": 7},
        {"key": "a", "limit": "g"},
        {"limit": "g"},
        {"key": "b", "priority": 3},
        {"key": "a"},
        {"limit": "g"},
        {"limit": "h"},
        {"key": "c", "delay": "1d"},
        {},
    ]
    app.enqueue_many(work.using(**chosen).call(number) for number, chosen in enumerate(options))

    with psycopg.connect(migrated_postgres_url) as connection:
        marked = connection.execute("SELECT key, gate, priority FROM durably.turns ORDER BY seq").fetchall()
    assert marked == [("b", None, 7), ("a", "g", 5), (None, "g", 5), (None, "h", 5)]
    app.close()
