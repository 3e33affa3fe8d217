"""A first measure: what the engine costs beside a bare loop on the same server, as a ratio within one run."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from durably import Durably
from durably.testing.servers import PostgresServer

TASKS = 30_000
AT_LEAST = 0.3
TRIES = 5

BARE = """
CREATE TABLE bare (id bigint PRIMARY KEY, ready_at bigint, state text, payload bytea);
CREATE INDEX ON bare (ready_at) WHERE state = 'ready';
"""
CLAIM = """
UPDATE bare SET state = 'leased'
 WHERE id = ANY(ARRAY(SELECT id FROM bare WHERE state = 'ready' ORDER BY ready_at LIMIT 500 FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""


def bare_rate(url: str) -> float:
    """Rows per second of a loop that claims 500 rows and deletes them."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute(BARE)
        connection.execute("INSERT INTO bare SELECT i, i, 'ready', '{}' FROM generate_series(1, %s) AS i", [TASKS])
        began = time.perf_counter()
        while rows := connection.execute(CLAIM).fetchall():
            connection.execute("DELETE FROM bare WHERE id = ANY(%s)", [[row[0] for row in rows]])
        return TASKS / (time.perf_counter() - began)


def drain_rate(app: Durably) -> float:
    """Tasks per second of one worker."""
    ran: list[int] = []
    work = app.definitions["work"]
    app.enqueue_many(work.call(number) for number in range(TASKS))

    async def drain() -> float:
        worker = app.worker(concurrency=1000)

        def watch(event: object) -> None:
            if getattr(event, "kind", "") == "completed":
                ran.append(1)
                if len(ran) == TASKS:
                    worker.stop()

        stop_watching = app.events.subscribe(watch)
        began = time.perf_counter()
        await worker.run()
        took = time.perf_counter() - began
        stop_watching()
        await app.store.aclose()
        return TASKS / took

    return asyncio.run(drain())


def test_draining_costs_no_more_than_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    with PostgresServer(18) as server:
        url = server.create_database("measure")
        app = Durably(url)
        app.migrate()

        @app.task
        async def work(number: int) -> None: ...

        best = 0.0
        for _ in range(TRIES):
            bare, ours = bare_rate(url), drain_rate(app)
            best = max(best, ours / bare)
            with capsys.disabled():
                print(f"\nbare loop {bare:,.0f}/s, durably {ours:,.0f}/s: {ours / bare:.2f} (at least {AT_LEAST})")
            if best >= AT_LEAST:
                break
        assert app.queues.list()[0].counts["done"] % TASKS == 0
        app.close()
    assert best >= AT_LEAST
