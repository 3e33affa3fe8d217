"""Workers killed with -9 while they hold work: everything runs again, nothing is lost, nothing ends twice."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack

import pytest

from durably import Durably
from tests.crash.processes import Stage

LEASE = 2.0
IN_FLIGHT = 500
MANY, SLOTS = 4_000, 20


def test_a_killed_worker_with_500_tasks_in_flight_loses_none(
    stage: Stage, shop: Durably, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = shop.declare(_stand_in, "hold", (), {})
    options = ("--lease", f"{LEASE}s", "--concurrency", str(IN_FLIGHT))
    shop.migrate()
    shop.enqueue_many(hold.call(number) for number in range(IN_FLIGHT))
    with ExitStack() as processes:
        victim = processes.enter_context(stage.worker(*options))
        stage.until(lambda: len(stage.lines()) == IN_FLIGHT, victim)
        survivor = processes.enter_context(stage.worker(*options))
        stage.until(lambda: _old_enough(shop, survivor.pid), victim, survivor)
        victim.kill()
        killed = time.monotonic()
        stage.until(lambda: len(stage.lines()) == 3 * IN_FLIGHT, survivor)
        took = time.monotonic() - killed
        stage.until(lambda: _counts(shop) == {"done": IN_FLIGHT}, survivor)

    lines = stage.lines()
    starts = Counter(line[1] for line in lines if line[0] == "start")
    ends = Counter(line[1] for line in lines if line[0] == "end")
    assert set(starts.values()) == {2}
    assert ends == Counter(str(number) for number in range(IN_FLIGHT))
    assert {line[3] for line in lines if line[0] == "start" and line[2] == "1"} == {str(victim.pid)}
    tasks = shop.tasks.list(limit=IN_FLIGHT + 1)
    assert {(task.state, task.attempt, task.crashes) for task in tasks} == {("done", 2, 1)}
    with capsys.disabled():
        kind = stage.store.partition(":")[0]
        print(
            f"\n{kind}: {IN_FLIGHT} tasks of a killed worker ran again {took:.2f} s after the kill "
            f"(lease {LEASE:g} s, target {LEASE + 2:g} s)"
        )


def test_a_crash_repeats_no_more_than_was_in_flight_however_much_is_batched(stage: Stage, shop: Durably) -> None:
    count = shop.declare(_stand_in, "count", (), {})
    shop.migrate()
    shop.enqueue_many(count.call(number) for number in range(MANY))
    options = ("--lease", f"{LEASE}s", "--concurrency", str(SLOTS))
    with stage.worker(*options) as victim:
        stage.until(lambda: len(stage.lines()) > MANY // 4, victim)
        victim.kill()
        victim.wait()
    held = _counts(shop).get("leased", 0)
    assert _counts(shop).get("ready", 0) > 0, "it was killed in the middle"
    with stage.worker(*options) as survivor:
        stage.until(lambda: _counts(shop) == {"done": MANY}, survivor)

    runs = Counter(line[1] for line in stage.lines())
    assert runs.keys() == {str(number) for number in range(MANY)}
    assert runs.total() - MANY <= held <= 2 * SLOTS


def test_one_task_that_kills_its_process_among_99_others_is_the_only_dead_letter(stage: Stage, shop: Durably) -> None:
    nap = shop.declare(_stand_in, "nap", (), {})
    kill = shop.declare(_wait_for, "kill", (), {})
    shop.migrate()
    for number in range(99):
        nap.enqueue(number)
    killer = kill.enqueue(99)
    with stage.worker("--lease", "1s", "--concurrency", "100", parent=True) as worker:
        stage.until(lambda: sum(_counts(shop).get(state, 0) for state in ("done", "dead")) == 100, worker)

    assert _counts(shop) == {"done": 99, "dead": 1}
    [letter] = shop.dead.list()
    assert letter.id == killer.id
    assert (letter.crashes, [attempt.outcome for attempt in killer.attempts()]) == (3, ["crashed"] * 3)
    kills = [line for line in stage.lines() if line[0] == "kill"]
    assert len({line[2] for line in kills}) == 3, "three processes died"


async def _stand_in(number: int) -> int:
    return number


async def _wait_for(wait_for: int) -> None: ...


def _counts(app: Durably) -> dict[str, int]:
    return app.queues.list()[0].counts


def _old_enough(app: Durably, pid: int) -> bool:
    """Whether the worker has been there long enough to judge others."""
    ages = [one.beat_at - one.started_at for one in app.sessions.list() if one.pid == pid and one.state == "live"]
    return bool(ages) and max(ages) > 2 * LEASE * 1_000_000
