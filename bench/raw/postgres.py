"""Bare PostgreSQL: what a loop around the database does when nothing of an engine is in it.

Its rows are as wide as what an engine must know of a task: seventeen columns, and an id of sixteen bytes.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections import deque
from typing import Any

import psycopg

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

BATCH = 500
SLOTS = 2000
"""Rows that the engine-shaped loop has in memory at most."""

TABLES = """
CREATE TABLE bare (
    id uuid PRIMARY KEY, seq bigint NOT NULL, version bigint NOT NULL, created_at bigint NOT NULL,
    ready_at bigint NOT NULL, started_at bigint, expires_at bigint, token bigint NOT NULL, priority int NOT NULL,
    attempt int NOT NULL, state text NOT NULL, name text NOT NULL, queue text NOT NULL, key text, session text,
    payload bytea NOT NULL, options bytea
) WITH (fillfactor = 70);
CREATE INDEX ON bare (queue, priority, ready_at) WHERE state = 'ready';
CREATE TABLE past (LIKE bare, ended_at timestamptz NOT NULL, PRIMARY KEY (id))
"""
FILLED = "id, seq, version, created_at, ready_at, token, priority, attempt, state, name, queue, payload"
INSERT = f"INSERT INTO bare ({FILLED}) VALUES (%s, %s, 0, %s, %s, 0, 5, 0, 'ready', 'noop', 'default', %s)"
COPY = f"COPY bare ({FILLED}) FROM STDIN (FORMAT binary)"
COLUMNS = ["uuid", "int8", "int8", "int8", "int8", "int8", "int4", "int4", "text", "text", "text", "bytea"]
CLAIM = """
UPDATE bare SET state = 'leased', attempt = attempt + 1
 WHERE ctid = ANY(ARRAY(SELECT ctid FROM bare WHERE state = 'ready' AND queue = 'default' AND priority = 5
                         ORDER BY ready_at LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING *
"""
DELETE = "DELETE FROM bare WHERE id = ANY(%s)"
FENCED = """
DELETE FROM bare b USING unnest(%s::uuid[], %s::int[]) AS done(id, attempt)
 WHERE b.id = done.id AND b.attempt = done.attempt AND b.state = 'leased'
"""
MOVED = """
WITH gone AS (
    DELETE FROM bare b USING unnest(%s::uuid[], %s::int[]) AS done(id, attempt)
     WHERE b.id = done.id AND b.attempt = done.attempt AND b.state = 'leased'
    RETURNING b.*
)
INSERT INTO past SELECT *, clock_timestamp() FROM gone
"""
PINNED = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"


ID, ATTEMPT, PAYLOAD = 0, 9, 15


def row(number: int) -> tuple[Any, ...]:
    """What is inserted for the task of this number."""
    return uuid.UUID(int=number), number, number, number, b'{"i": %d}' % number


def number_of(found: tuple[Any, ...]) -> int:
    """The number of the task in a row that was claimed."""
    return int(found[PAYLOAD][6:-1])


def prepare(url: str, **_: Any) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
    say("prepared")


def enqueue(url: str, seconds: float, **_: Any) -> None:
    """Insert one row per transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        done = 0
        say("begin")
        for number in timed(seconds):
            connection.execute(INSERT, row(number), prepare=True)
            done += 1
        say("end", count=done)


def bulk(url: str, count: int, **_: Any) -> None:
    """COPY."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        say("begin")
        with cursor.copy(COPY) as copy:
            copy.set_types(COLUMNS)
            for number in range(count):
                identity, seq, created, ready, payload = row(number)
                copy.write_row((identity, seq, 0, created, ready, 0, 5, 0, "ready", "noop", "default", payload))
        connection.commit()
        say("end", count=count)


def feed(url: str, count: int, rate: float, batch: int, stamps: str, **_: Any) -> None:
    """Insert and notify in one transaction, at a given rate."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        say("begin")
        for numbers in paced(count, rate, batch, stamps):
            cursor.executemany(INSERT, [row(number) for number in numbers])
            cursor.execute("NOTIFY bare")
            connection.commit()
        say("end", count=count)


def work(url: str, marks: str, size: int, loop: str, stamps: str | None = None, **_: Any) -> None:
    """Run one of the loops until told to stop."""
    mark = handler(marks, size, stamps)
    if loop == "claim":
        _claim_and_delete(url, mark)
    elif loop == "notify":
        _notified(url, mark)
    else:
        asyncio.run(EngineShaped(mark, MOVED if loop == "history" else FENCED).run(url))


class Stopped(Exception):
    """It is time to leave."""


def _on_sigterm() -> None:
    def stop(*_: object) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


def _claim_and_delete(url: str, mark: Any) -> None:
    """Claim 500, call them, delete them."""
    _on_sigterm()
    with psycopg.connect(url, autocommit=True, options=PINNED) as connection:
        wait_for_the_start()
        try:
            while True:
                rows = connection.execute(CLAIM, (BATCH,), prepare=True, binary=True).fetchall()
                for found in rows:
                    mark(number_of(found))
                if rows:
                    connection.execute(DELETE, ([found[ID] for found in rows],), prepare=True)
                else:
                    time.sleep(0.005)
        except Stopped:
            return


def _notified(url: str, mark: Any) -> None:
    """The floor of the latency: wait for a notification, claim, call, delete."""
    _on_sigterm()
    with (
        psycopg.connect(url, autocommit=True) as listening,
        psycopg.connect(url, autocommit=True, options=PINNED) as connection,
    ):
        listening.execute("LISTEN bare")
        wait_for_the_start()
        try:
            while True:
                for _ in listening.notifies(timeout=1.0, stop_after=1):
                    pass
                while rows := connection.execute(CLAIM, (BATCH,), prepare=True, binary=True).fetchall():
                    for found in rows:
                        mark(number_of(found))
                    connection.execute(DELETE, ([found[ID] for found in rows],), prepare=True)
        except Stopped:
            return


class EngineShaped:
    """What an engine has to do, and nothing else.

    One connection claims, and again as soon as half of the slots are free. Each row is a task of the event loop. A
    second connection writes what is done, fenced on the attempt, whenever it is not writing already.
    """

    def __init__(self, mark: Any, complete: str) -> None:
        self.mark = mark
        self.complete = complete
        self.running: set[asyncio.Task[None]] = set()
        self.done: deque[tuple[uuid.UUID, int]] = deque()
        self.half_empty = asyncio.Event()
        self.something_done = asyncio.Event()
        self.stopping = False

    async def run(self, url: str) -> None:
        loop = asyncio.get_running_loop()
        async with (
            await psycopg.AsyncConnection.connect(url, autocommit=True, options=PINNED) as claiming,
            await psycopg.AsyncConnection.connect(url, autocommit=True, options=PINNED) as completing,
        ):
            loop.add_signal_handler(signal.SIGTERM, self.stop)
            wait_for_the_start()
            await asyncio.gather(self.claim(claiming), self.report(completing))

    def stop(self) -> None:
        self.stopping = True
        self.half_empty.set()
        self.something_done.set()

    async def claim(self, connection: psycopg.AsyncConnection[Any]) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping:
            if len(self.running) > SLOTS // 2:
                self.half_empty.clear()
                await self.half_empty.wait()
                continue
            cursor = await connection.execute(CLAIM, (SLOTS - len(self.running),), prepare=True, binary=True)
            rows = await cursor.fetchall()
            for found in rows:
                task = loop.create_task(self.handle(found))
                self.running.add(task)
                task.add_done_callback(self.ended)
            if not rows:
                await asyncio.sleep(0.005)

    async def handle(self, found: tuple[Any, ...]) -> None:
        self.mark(number_of(found))
        self.done.append((found[ID], found[ATTEMPT]))

    def ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self.something_done.set()
        if len(self.running) <= SLOTS // 2:
            self.half_empty.set()

    async def report(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while self.done or self.running or not self.stopping:
            if not self.done:
                self.something_done.clear()
                await self.something_done.wait()
                continue
            batch, self.done = self.done, deque()
            ids, attempts = zip(*batch, strict=True)
            await connection.execute(self.complete, (list(ids), list(attempts)), prepare=True)


if __name__ == "__main__":
    serve({"prepare": prepare, "enqueue": enqueue, "bulk": bulk, "feed": feed, "work": work})
