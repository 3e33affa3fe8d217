"""Many processes on one file, and a worker before a backlog of a million."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack

import psycopg
import pytest

from durably import Durably
from tests.crash.processes import Stage

EACH = 150
BACKLOG = 1_000_000

SQLITE_BACKLOG = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO durably_tasks (id, version, created_at, ready_at, token, partition, priority, attempt, spent, crashes, once,
                           alone, state, name, queue, payload)
SELECT printf('00000000-0000-7000-8000-%012x', i), 0, 0, i, 0, 0, 5, 0, 0, 0, 0, 0, 'ready', 'nothing', 'default',
       CAST('{"number":1}' AS BLOB)
  FROM n
"""
POSTGRES_BACKLOG = """
INSERT INTO durably.tasks (id, seq, version, created_at, ready_at, token, partition, priority, attempt, spent, crashes,
                           once, alone, state, name, queue, payload)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, i, 0, 0, i, 0, 0, 5, 0, 0, 0, false, false,
       'ready', 'nothing', 'default', '{"number":1}'::bytea
  FROM generate_series(1, %s) AS i
"""


def test_eight_processes_on_one_store_never_meet_a_locked_database(stage: Stage, shop: Durably) -> None:
    shop.migrate()
    with ExitStack() as stack:
        workers = [stack.enter_context(stage.worker("--lease", "20s", "--concurrency", "20")) for _ in range(4)]
        producers = [
            stack.enter_context(stage.process("-m", "tests.crash.producer", str(index * EACH), str(EACH)))
            for index in range(4)
        ]
        for producer in producers:
            assert producer.wait() == 0, stage.logs.read_text()
        stage.until(lambda: shop.queues.list()[0].counts == {"done": 4 * EACH}, *workers)

    seen = Counter(line[1] for line in stage.lines() if line[0] == "count")
    assert seen == Counter(str(number) for number in range(4 * EACH))
    logs = stage.logs.read_text()
    assert "locked" not in logs
    assert "Traceback" not in logs


def test_a_worker_before_a_backlog_of_a_million_stays_small(
    stage: Stage, shop: Durably, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.migrate()
    if stage.store.startswith("sqlite"):
        file = sqlite3.connect(stage.store.removeprefix("sqlite:///"))
        with file:
            file.execute(SQLITE_BACKLOG, (BACKLOG,))
        file.close()
    else:
        with psycopg.connect(stage.store) as connection:
            connection.execute(POSTGRES_BACKLOG.encode(), [BACKLOG])
    with stage.process("-m", "tests.crash.hungry", "20000") as process:
        assert process.wait() == 0, stage.logs.read_text()

    [(_, peak, seen)] = [line for line in stage.lines() if line[0] == "peak"]
    assert int(seen) >= 20_000
    with capsys.disabled():
        print(f"\n{stage.store.partition(':')[0]}: {peak} MB at most before a backlog of {BACKLOG:,}")
    assert int(peak) < 200
