"""What is particular to PostgreSQL: a server that can be away, a schema to migrate, plans that can go wrong."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

from durably import BadOption, Durably, SchemaOutdated, StoreUnavailable
from durably.stores.operations.sweep import mark_dead
from durably.stores.postgres.address import redacted
from durably.stores.postgres.arrays import literal
from durably.stores.postgres.pool import BEGIN_POOLED
from durably.stores.postgres.store import PostgresStore
from durably.testing.servers import PostgresServer


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    yield store
    store.close()


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

    assert sorted(applied, key=len) == [[]] * 5 + [["0001_engine"]]


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
        begun, go = asyncio.Event(), asyncio.Event()

        @app.task
        async def work(number: int) -> int:
            begun.set()
            await go.wait()
            return number

        async def story() -> list[int]:
            worker = app.worker(poll=0.05, lease=20)
            serving = asyncio.create_task(worker.run())
            before = [await work.aenqueue(number) for number in range(10)]
            await begun.wait()
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


SCANNED_ON_PURPOSE = {"counts", "list_live", "list_ended", "by_prefix", "set_queue"}
BIG = ("Seq Scan on tasks", "Seq Scan on history")


def test_no_hot_query_scans_a_table(store: PostgresStore, migrated_postgres_url: str) -> None:
    with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
        for name in store.queries.names:
            text = store.queries.text(name)
            if text.startswith("LOCK"):
                continue
            connection.execute(BEGIN_POOLED)
            nothing = ", ".join(["NULL"] * _parameters(text))
            connection.execute(f"PREPARE probe AS {text}".encode())
            plan = connection.execute(
                f"EXPLAIN EXECUTE probe{'(' + nothing + ')' if nothing else ''}".encode()
            ).fetchall()
            connection.execute("DEALLOCATE probe")
            connection.execute("ROLLBACK")
            told = "\n".join(row[0] for row in plan)
            assert name in SCANNED_ON_PURPOSE or not any(scan in told for scan in BIG), (name, told)


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
        ([None, None], "text"),
        ([], "text"),
    ],
)
def test_arrays_are_written_so_that_they_come_back(store: PostgresStore, values: list[object], kind: str) -> None:
    with psycopg.connect(store.url) as connection:
        [(found,)] = connection.execute(f"SELECT %s::{kind}[]".encode(), [literal(values)]).fetchall()
    assert found == values
