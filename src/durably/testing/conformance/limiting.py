"""Limits: they hold across workers, leak nothing in a crash, and slow nobody else."""

from __future__ import annotations

import msgspec

from durably.core import lifecycle
from durably.core.change import Stale
from durably.stores.operations.claim import GATE_BATCH, next_due
from durably.stores.operations.control import set_limit, set_queue
from durably.testing.world import World


def limit(world: World, gate: str, concurrency: int | None = None, rate: float | None = None, burst: float = 1) -> None:
    world.run(set_limit(gate, concurrency, rate, burst))


class Limiting:
    def test_a_queue_runs_no_more_at_once_than_its_limit(self, world: World) -> None:
        limit(world, "q:default", concurrency=2)
        for _ in range(5):
            world.add()
        first, second = world.session(), world.session()

        held = world.claim(first)
        assert len(held) == 2
        assert world.claim(second) == []
        world.finish(held[0])
        assert len(world.claim(second)) == 1
        assert world.claim(first) == []

    def test_a_queues_limit_counts_keyed_tasks_and_groups_too(self, world: World) -> None:
        limit(world, "q:default", concurrency=2)
        for index in range(3):
            world.add(key=f"k{index}")
            world.add(gate="g")
            world.add()
        session = world.session()
        total = 0
        while held := world.claim(session):
            assert len(held) <= 2
            assert world.claim(world.session()) == []
            total += len(held)
            world.finish(*held)
            world.advance(3)

        assert total == 9

    def test_a_group_runs_no_more_at_once_than_its_limit_in_all_queues_together(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=3)
        for index in range(6):
            world.add(gate="tenant", queue="a" if index % 2 else "b")
        session = world.session()
        queues = ("a", "b")

        held = world.claim(session, queues=queues)
        assert len(held) == 3
        assert world.claim(session, queues=queues) == []
        world.finish(*held)
        assert len(world.claim(session, queues=queues)) == 3

    def test_a_group_that_ends_lets_those_on_who_wait_for_its_queue(self, world: World) -> None:
        limit(world, "q:default", concurrency=2)
        world.add(gate="g")
        session = world.session()
        [task] = world.claim(session)
        keyed = {world.add(key="k"), world.add(key="l")}
        [first] = world.claim(session)

        world.finish(task)

        assert {first.id} | {one.id for one in world.claim(session)} == keyed

    def test_a_throttled_group_at_the_front_slows_no_one_else(self, world: World) -> None:
        limit(world, "g:slow", concurrency=1)
        for _ in range(300):
            world.add(gate="slow", priority=9)
        others = {world.add() for _ in range(5)} | {world.add(gate="fast") for _ in range(5)}
        session = world.session()

        claimed = {task.id for task in world.claim(session, room=20)} | {
            task.id for task in world.claim(session, room=20)
        }

        assert others <= claimed
        assert len(claimed) == 11

    def test_every_group_gets_its_turn_however_many_others_always_have_work(self, world: World) -> None:
        for index in range(GATE_BATCH):
            world.add(gate=f"busy {index}")
            world.add(gate=f"busy {index}")
        world.advance(1)
        late = world.add(gate="late")
        world.advance(1)
        session = world.session()
        seen: set[str] = set()
        for _ in range(2):
            held = world.claim(session, room=GATE_BATCH)
            seen.update(task.id for task in held)
            for task in held:
                world.add(gate=task.gate)
            world.finish(*held)

        assert late in seen

    def test_a_queue_that_is_paused_hides_no_group_of_another(self, world: World) -> None:
        for index in range(GATE_BATCH):
            world.add(gate=f"paused {index}", queue="a")
        world.advance(1)
        other = world.add(gate="other", queue="b")
        world.run(set_queue("a", "paused"))

        assert [task.id for task in world.claim(world.session(), queues=("a", "b"))] == [other]

    def test_a_group_without_a_limit_is_not_limited(self, world: World) -> None:
        for _ in range(10):
            world.add(gate="free")
        session = world.session()

        assert len(world.claim(session)) == 10

    def test_a_crash_leaks_no_permit(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        limit(world, "q:default", concurrency=2)
        world.add(gate="tenant")
        world.add()
        assert len(world.claim(world.session())) == 2
        world.let_die()

        again = world.claim(world.session())

        assert len(again) == 2
        world.finish(*again)

    def test_a_report_that_came_too_late_gives_back_no_permit_and_wakes_nobody(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        world.add(gate="tenant")
        session = world.session()
        [held] = world.claim(session)
        world.add(key="k", gate="tenant")
        assert world.claim(session) == []
        waits_until = world.run(next_due(("default",))).turns
        [late] = world.commit(lifecycle.complete(msgspec.structs.replace(held, version=held.version + 1), None))

        assert isinstance(late, Stale)
        assert waits_until is not None
        assert world.run(next_due(("default",))).turns == waits_until
        assert world.claim(session) == []

    def test_a_limit_that_is_raised_lets_more_pass_at_once(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        for _ in range(4):
            world.add(gate="tenant")
        session = world.session()
        assert len(world.claim(session)) == 1
        assert world.claim(session) == []
        limit(world, "g:tenant", concurrency=3)

        assert len(world.claim(session)) == 2

    def test_a_limit_that_is_lifted_lets_everything_pass(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        for _ in range(4):
            world.add(gate="tenant")
        session = world.session()
        assert len(world.claim(session)) == 1
        assert world.claim(session) == []
        limit(world, "g:tenant")

        assert len(world.claim(session)) == 3

    def test_what_already_runs_counts_against_a_limit_that_is_set_later(self, world: World) -> None:
        world.add()
        world.add(key="k")
        session = world.session()
        running = world.claim(session)
        assert len(running) == 2
        for _ in range(3):
            world.add()
        limit(world, "q:default", concurrency=3)

        assert len(world.claim(session)) == 1

    def test_a_rate_lets_a_burst_pass_and_then_its_measure(self, world: World) -> None:
        limit(world, "g:api", rate=2.0, burst=3)
        for _ in range(20):
            world.add(gate="api")
        session = world.session()
        started = []
        for _ in range(9):
            tasks = world.claim(session)
            started.append(len(tasks))
            world.finish(*tasks)
            world.advance(0.5)

        assert started == [3, 1, 1, 1, 1, 1, 1, 1, 1]

    def test_a_rate_holds_on_a_queue_and_says_when_to_ask_again(self, world: World) -> None:
        limit(world, "q:default", rate=0.5, burst=1)
        for _ in range(3):
            world.add()
        session = world.session()
        assert len(world.claim(session)) == 1
        found = world.claim_all(session)

        assert found.tasks == []
        assert found.again_in == 2_000_000
        world.advance(2)
        assert len(world.claim(session)) == 1

    def test_a_bucket_does_not_fill_beyond_its_burst(self, world: World) -> None:
        limit(world, "g:api", rate=1.0, burst=2)
        world.advance(3600)
        for _ in range(5):
            world.add(gate="api")

        assert len(world.claim(world.session())) == 2

    def test_a_keyed_task_of_a_full_group_waits_and_is_woken_by_a_returned_permit(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        first, second = world.add(key="a", gate="tenant"), world.add(key="b", gate="tenant")
        session = world.session()
        [running] = world.claim(session)
        assert world.claim(session) == []
        world.finish(running)

        [after] = world.claim(session)

        assert {running.id, after.id} == {first, second}

    def test_a_key_in_backoff_holds_no_permit(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        world.add(key="a", gate="tenant")
        other = world.add(key="b", gate="tenant")
        session = world.session()
        [head] = world.claim(session)
        world.apply(world.failing(head))

        assert [task.id for task in world.claim(session)] == [other]

    def test_a_retried_task_of_a_group_takes_its_turn_again(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        task_id = world.add(gate="tenant")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))
        world.advance(10)
        world.promote()

        [again] = world.claim(session)

        assert (again.id, again.attempt) == (task_id, 2)

    def test_a_released_task_of_a_group_gives_its_permit_back(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=1)
        world.add(gate="tenant")
        session = world.session()
        [task] = world.claim(session)
        world.apply(lifecycle.release(task, started=False))

        assert len(world.claim(session)) == 1

    def test_a_limit_of_zero_stops_a_group(self, world: World) -> None:
        limit(world, "g:tenant", concurrency=0)
        world.add(gate="tenant")
        free = world.add()

        assert [task.id for task in world.claim(world.session())] == [free]

    def test_a_task_of_a_group_that_must_run_alone_is_found_while_its_queue_drains(self, world: World) -> None:
        task_id = world.add(gate="tenant")
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
        world.advance(10)
        world.promote()
        world.run(set_queue("default", "draining"))
        session = world.session()
        world.claim(session)
        world.advance(2)

        found = world.claim_all(session)

        assert (found.tasks, found.alone_waiting) == ([], True)
        assert [task.id for task in world.claim(session, alone=True)] == [task_id]
