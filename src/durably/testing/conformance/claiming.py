"""Claiming: who gets what, in which order, and never twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from durably.core.moment import SECOND
from durably.core.task import Task
from durably.stores.operations.claim import next_due
from durably.stores.operations.control import set_limit
from durably.testing.world import World


class Claiming:
    def test_a_claim_takes_no_more_than_there_is_room_for(self, world: World) -> None:
        for _ in range(5):
            world.add()
        session = world.session()

        assert len(world.claim(session, room=3)) == 3
        assert len(world.claim(session, room=3)) == 2
        assert world.claim(session, room=3) == []

    def test_a_claim_counts_the_attempt_and_names_its_holder(self, world: World) -> None:
        world.add()
        [task] = world.claim(world.session("s"))

        assert (task.state, task.session, task.attempt, task.spent, task.version) == ("leased", "s", 1, 1, 1)
        assert task.token > 0
        assert task == world.get(task.id)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"options": b'{"timeout":5.0}'},
            {"tags": '["a","b"]'},
            {"once": True},
            {"expires_in": 3600 * SECOND},
            {"unique_scope": "live", "unique_key": "u", "fingerprint": "f"},
        ],
    )
    def test_a_claim_tells_all_that_there_is_to_know_of_its_tasks(self, world: World, given: dict[str, Any]) -> None:
        task_id, other = world.add(**given), world.add()
        first, second = world.claim(world.session())

        assert [first.id, second.id] == [task_id, other]
        assert [first, second] == [world.get(task_id), world.get(other)]
        for name, value in given.items():
            if name in Task.__struct_fields__:
                assert getattr(first, name) == value

    def test_a_claim_after_a_crash_tells_of_the_crash(self, world: World) -> None:
        task_id = world.add()
        world.claim(world.session())
        world.let_die()
        [task] = world.claim(world.session())

        assert (task.crashes, task.attempt) == (1, 2)
        assert task == world.get(task_id)

    def test_higher_priority_goes_first_then_whoever_waits_longest(self, world: World) -> None:
        order = []
        for priority in (5, 0, 9, 5):
            order.append(world.add(priority=priority))
            world.advance(1)

        claimed = [task.id for task in world.claim(world.session())]

        assert claimed == [order[2], order[0], order[3], order[1]]

    def test_priority_decides_who_is_left_out(self, world: World) -> None:
        low, high = world.add(priority=1), world.add(priority=8)

        assert [task.id for task in world.claim(world.session(), room=1)] == [high]
        assert world.get(low).state == "ready"

    def test_only_the_queues_that_are_served_are_claimed_from(self, world: World) -> None:
        mine, other = world.add(queue="mine"), world.add(queue="other")

        assert [task.id for task in world.claim(world.session(), queues=("mine",))] == [mine]
        assert world.get(other).state == "ready"

    def test_tokens_rise_with_every_claim(self, world: World) -> None:
        session = world.session()
        tokens = []
        for _ in range(4):
            world.add()
            world.add(key="k")
            tasks = world.claim(session)
            tokens.append({task.token for task in tasks})
            world.finish(*tasks)

        for earlier, later in pairwise(tokens):
            assert max(earlier) < min(later)

    def test_a_session_that_is_not_live_gets_nothing(self, world: World) -> None:
        world.add()

        assert not world.claim_all("nobody").live
        assert world.claim_all(world.session()).tasks

    def test_a_floor_skips_what_lies_below_it_and_a_claim_without_finds_it(self, world: World) -> None:
        session = world.session()
        early = world.add()
        world.advance(10)
        late = world.add()
        floors = {("default", 5): world.clock.now() - SECOND}

        assert [task.id for task in world.claim(session, floors=floors)] == [late]
        assert [task.id for task in world.claim(session)] == [early]

    def test_the_floor_a_claim_answers_trails_the_clock(self, world: World) -> None:
        world.add()
        world.advance(60)
        world.add()

        found = world.claim_all(world.session())

        assert found.floors == {("default", 5): world.clock.now() - 2 * SECOND}

    def test_plain_tasks_and_keys_share_a_claim_by_priority_and_age(self, world: World) -> None:
        session = world.session()
        order = []
        for index in range(6):
            order.append(world.add(key=f"k{index}") if index % 2 else world.add())
            world.advance(1)
        world.claim_all(session, room=1, queues=("elsewhere",))

        first = {task.id for task in world.claim(session, room=3)}
        second = {task.id for task in world.claim(session, room=3)}

        assert first == set(order[:3])
        assert second == set(order[3:])

    def test_limit_groups_share_a_claim_by_priority_and_age(self, world: World) -> None:
        waiting = []
        for index in range(4):
            for given in ({"gate": "g"}, {"key": f"k{index}"}, {}):
                waiting.append(world.add(**given))
                world.advance(1)
        urgent = world.add(gate="h", priority=9)
        session = world.session()

        for task_id in [urgent, *waiting]:
            [task] = world.claim(session, room=1)
            assert task.id == task_id
            world.finish(task)

    def test_room_that_was_meant_for_what_cannot_be_taken_goes_to_the_others(self, world: World) -> None:
        world.run(set_limit("q:narrow", 1, None, 1))
        for _ in range(20):
            world.add(queue="narrow")
        world.advance(1)
        keyed = {world.add(key=f"k{index}") for index in range(3)}
        grouped = {world.add(gate="g") for _ in range(3)}

        claimed = {task.id for task in world.claim(world.session(), room=10, queues=("narrow", "default"))}

        assert keyed | grouped < claimed
        assert len(claimed) == 7

    def test_what_a_draining_queue_leaves_takes_no_room_from_keys(self, world: World) -> None:
        world.call(world.app.queues, "drain", "leaving")
        world.advance(1)
        for _ in range(10):
            world.add(queue="leaving")
        world.advance(1)
        keyed = world.add(key="k")

        claimed = world.claim(world.session(), room=5, queues=("leaving", "default"))

        assert [task.id for task in claimed] == [keyed]

    def test_a_claimed_task_is_not_claimed_again(self, world: World) -> None:
        world.add()
        world.add(key="k")
        world.add(gate="g")
        first, second = world.session(), world.session()

        assert len(world.claim(first)) == 3
        assert world.claim(first) == []
        assert world.claim(second) == []

    def test_next_due_knows_the_earliest_of_delayed_tasks_and_keys(self, world: World) -> None:
        session = world.session()
        world.add(due_in=100 * SECOND)
        world.add(key="k")
        [head] = world.claim(session)
        world.apply(world.failing(head))

        soon = world.run(next_due(["default"]))

        assert (soon.delayed, soon.turns) == (world.clock.now() + 100 * SECOND, world.clock.now() + 10 * SECOND)
