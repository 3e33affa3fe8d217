"""Bare SQLite with synchronous=FULL: one table, one connection, nothing of an engine.

Its rows are as wide as what an engine must know of a task: seventeen columns, and an id that is text.
"""

from __future__ import annotations

import signal
import sqlite3
import time
import uuid
from typing import Any

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

TABLES = """
CREATE TABLE bare (
    id TEXT PRIMARY KEY, seq INTEGER NOT NULL, version INTEGER NOT NULL, created_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL, started_at INTEGER, expires_at INTEGER, token INTEGER NOT NULL,
    priority INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, name TEXT NOT NULL, queue TEXT NOT NULL,
    key TEXT, session TEXT, payload BLOB NOT NULL, options BLOB
) WITHOUT ROWID;
CREATE INDEX bare_ready ON bare (queue, priority, ready_at) WHERE state = 'ready';
"""
INSERT = """
INSERT INTO bare (id, seq, version, created_at, ready_at, token, priority, attempt, state, name, queue, payload)
VALUES (?, ?, 0, ?, ?, 0, 5, 0, 'ready', 'noop', 'default', ?)
"""
CLAIM = """
UPDATE bare SET state = 'leased', attempt = attempt + 1
 WHERE id IN (SELECT id FROM bare WHERE state = 'ready' AND queue = 'default' AND priority = 5
               ORDER BY ready_at LIMIT ?)
RETURNING *
"""
PAYLOAD = 15


def connect(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def row(number: int) -> tuple[str, int, int, int, bytes]:
    return str(uuid.UUID(int=number)), number, number, number, b'{"i": %d}' % number


def prepare(url: str, **_: Any) -> None:
    connect(url).executescript(TABLES)
    say("prepared")


def enqueue(url: str, seconds: float, **_: Any) -> None:
    """Insert one row per transaction."""
    connection = connect(url)
    done = 0
    say("begin")
    for number in timed(seconds):
        connection.execute(INSERT, row(number))
        done += 1
    say("end", count=done)


def bulk(url: str, count: int, **_: Any) -> None:
    """All rows in transactions of a thousand."""
    connection = connect(url)
    say("begin")
    for first in range(0, count, 1000):
        _insert(connection, range(first, min(first + 1000, count)))
    say("end", count=count)


def feed(url: str, count: int, rate: float, batch: int, stamps: str, **_: Any) -> None:
    """At a given rate."""
    connection = connect(url)
    say("begin")
    for numbers in paced(count, rate, batch, stamps):
        _insert(connection, numbers)
    say("end", count=count)


def _insert(connection: sqlite3.Connection, numbers: range) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, map(row, numbers))
    connection.execute("COMMIT")


class Stopped(Exception):
    """It is time to leave."""


def work(url: str, marks: str, size: int, batch: int, stamps: str | None = None, **_: Any) -> None:
    """Claim a batch, call it, delete it, until told to stop."""
    mark = handler(marks, size, stamps)

    def stop(*_: object) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    connection = connect(url)
    wait_for_the_start()
    try:
        while True:
            rows = connection.execute(CLAIM, (batch,)).fetchall()
            for found in rows:
                mark(int(found[PAYLOAD][6:-1]))
            if rows:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("DELETE FROM bare WHERE id = ?", [found[:1] for found in rows])
                connection.execute("COMMIT")
            else:
                time.sleep(0.005)
    except Stopped:
        return


if __name__ == "__main__":
    serve({"prepare": prepare, "enqueue": enqueue, "bulk": bulk, "feed": feed, "work": work})
