"""Leases and recovery: what is taken back waits its turn, and nothing that cannot be taken back stands in the way."""

from __future__ import annotations

import random

import msgspec
import pytest

from durably import current
from durably.core import lifecycle
from durably.core.change import Applied, Change
from durably.core.task import Draft, Task
from durably.stores.operations import sweep
from durably.stores.operations.sweep import lapsed, mark_dead
from durably.testing.world import World
from durably.worker import scanners
from durably.worker.claims import Claims
from durably.worker.scanners import STRIKES, Expirer, Reaper
from durably.worker.session import Session


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_what_is_taken_back_from_the_dead_does_not_retake_the_front(world: World) -> None:
    held = [world.add() for _ in range(3)]
    world.claim(world.session("gone"))
    world.advance(10)
    waiting = [world.add() for _ in range(3)]

    world.let_die()

    assert ids(world.claim(world.session(), room=3)) == waiting
    assert sorted(ids(world.claim(world.session()))) == sorted(held)


def test_a_task_that_kills_its_workers_waits_while_others_go_on(world: World) -> None:
    world.add()
    for _ in range(2):
        assert world.claim(world.session())
        world.let_die()
    other = world.add()

    assert ids(world.claim(world.session())) == [other]
    assert ids(world.claim(world.session(), alone=True)) == []


def test_a_recovery_that_was_interrupted_halfway_is_finished_by_whoever_comes_next(world: World) -> None:
    task_id = world.add()
    keyed = world.add(key="k")
    world.claim(world.session("gone"))
    world.advance(31)
    assert world.run(mark_dead()) == ["gone"]
    # Here the database restarts, or the worker dies: nobody remembers that this session was declared dead.

    assert world.run(mark_dead()) == []
    found = world.run(lapsed(10, []))
    world.apply(*(lifecycle.lapse(task) for task in found))

    assert sorted(ids(world.claim(world.session()))) == sorted([task_id, keyed])


def test_a_result_that_comes_after_the_lease_but_before_anyone_judged_is_taken(world: World) -> None:
    task_id = world.add()
    [task] = world.claim(world.session())
    world.advance(300)

    world.finish(task)

    assert world.get(task_id).state == "done"


def test_rows_that_cannot_be_taken_back_do_not_starve_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanners, "BATCH", 4)
    bad = {world.add(name="bad") for _ in range(6)}
    good = {world.add() for _ in range(3)}
    world.claim(world.session("gone"))
    world.advance(31)

    def lapse(task: Task) -> Change:
        if task.name == "bad":
            raise ValueError("this row cannot be taken back")
        return lifecycle.lapse(task)

    monkeypatch.setattr(scanners, "lapse", lapse)
    judge = Session("judge", lease=1, now=-10.0)
    judge.acknowledge(0.0, 0.0)
    reaper = Reaper(world.app._engine, lambda: judge, lambda: 0.5, 1.0)
    judge._reachable_since = -10.0
    for _ in range(2 * STRIKES + 1):
        world.await_(reaper.scan())

    assert {world.get(task_id).state for task_id in good} == {"ready"}
    assert {world.get(task_id).state for task_id in bad} == {"leased"}


def test_rows_that_cannot_be_expired_do_not_starve_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanners, "BATCH", 4)
    bad = {world.add(name="bad", expires_in=1) for _ in range(6)}
    good = {world.add(expires_in=1) for _ in range(3)}
    world.advance(1)

    def expire(task: Task) -> Change:
        if task.name == "bad":
            raise ValueError("this row cannot be ended")
        return lifecycle.expire(task)

    monkeypatch.setattr(scanners, "expire", expire)
    expirer = Expirer(world.app._engine, 1.0)
    for _ in range(2 * STRIKES + 1):
        world.await_(expirer.scan())

    assert {world.get(task_id).state for task_id in good} == {"cancelled"}
    assert {world.get(task_id).state for task_id in bad} == {"ready"}


def test_a_unique_key_stays_taken_while_a_cancelled_task_still_runs(world: World) -> None:
    def wanted() -> Draft:
        return world.draft(unique_scope="live", unique_key="u", fingerprint="same")

    first = wanted()
    world.accept(first)
    [task] = world.claim(world.session())
    world.apply(lifecycle.cancel(task, "no longer wanted"))

    [answer] = world.accept(wanted())
    assert answer == msgspec.structs.replace(answer, id=first.id, existing=True)  # type: ignore[type-var]

    world.apply(lifecycle.stop(world.get(first.id)))
    second = wanted()
    [answer] = world.accept(second)
    assert answer == msgspec.structs.replace(answer, id=second.id, existing=False)  # type: ignore[type-var]


def test_a_batch_with_a_row_that_the_store_refuses_is_committed_but_for_that_row(world: World) -> None:
    @world.app.task
    async def work(number: int) -> int:
        return number

    @world.app.task
    async def spawns() -> None:
        current().then(work.call(1))

    handles = [world.call(work, "enqueue", number) for number in range(5)]
    bad = world.call(spawns, "enqueue")
    handles += [world.call(work, "enqueue", number) for number in range(5, 10)]
    seal = world.app._engine.sealed

    def spoils(change: Change) -> Change:
        """What a bug could do: a successor with a number that no database holds."""
        spawned = tuple(msgspec.structs.replace(one, due_in=2**70) for one in change.spawned)
        return msgspec.structs.replace(seal(change), spawned=spawned)

    world.app._engine.sealed = spoils  # type: ignore[method-assign]
    world.tick()

    assert [world.call(handle, "result", timeout=5) for handle in handles] == list(range(10))
    assert world.get(bad.id).state == "dead"
    assert world.outcomes(bad.id) == ["failed"]


def test_workers_that_start_together_do_not_ask_in_step(world: World) -> None:
    pauses = {Claims(world.store, ("default",), random.Random(seed)).pause(1.0) for seed in range(50)}

    assert len(pauses) == 50
    assert all(0.7 <= pause <= 1.0 for pause in pauses)


def test_tasks_that_failed_together_do_not_come_back_together(world: World) -> None:
    @world.app.task
    async def fails() -> None:
        raise ConnectionError("the peer is down")

    handles = [world.call(fails, "enqueue") for _ in range(50)]
    world.tick()

    due = {world.get(handle.id).ready_at for handle in handles}
    assert len(due) > 40


def test_a_verdict_about_one_row_says_nothing_about_its_neighbours(world: World) -> None:
    tasks = [world.add() for _ in range(5)]
    claimed = world.claim(world.session())
    stale = msgspec.structs.replace(claimed[2], version=claimed[2].version - 1)
    verdicts = world.commit(*(lifecycle.complete(task, None) for task in [*claimed[:2], stale, *claimed[3:]]))

    assert [isinstance(verdict, Applied) for verdict in verdicts] == [True, True, False, True, True]
    assert [world.get(task_id).state for task_id in tasks] == ["done", "done", "leased", "done", "done"]


def test_a_session_is_beaten_for_by_its_own_id_alone(world: World) -> None:
    one, two = world.session(), world.session()
    for _ in range(3):
        world.advance(20)
        assert world.run(sweep.beat(one, 30_000_000))

    assert world.run(mark_dead()) == [two]
