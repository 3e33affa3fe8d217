"""Handing over: the commit of a limit group's task leases the next in its line, if the next claim would have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from durably.core import lifecycle
from durably.core.change import Applied, Change, Stale
from durably.core.moment import SECOND
from durably.core.task import Task
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.control import set_limit, set_queue
from durably.stores.operations.deliver import hold_line
from durably.testing.conformance.going_on import die, go_on, next_ones
from durably.testing.world import World


def limit(world: World, concurrency: int | None, rate: float | None = None, burst: float = 1) -> None:
    world.run(set_limit("g:g", concurrency, rate, burst))


def done(*tasks: Task) -> list[Change]:
    return [lifecycle.complete(task, None) for task in tasks]


def a_key_waits_for_the_gate(world: World, _: str) -> None:
    world.add(gate="g", key="k")
    assert world.claim(world.session()) == []


def a_line_of_another_queue_waits_for_the_gate(world: World, _: str) -> None:
    world.add(gate="g", queue="other")
    assert world.claim(world.session(), queues=("other",)) == []


def another_line_is_ready(world: World, _: str) -> None:
    world.add(gate="other")
    assert world.claim(world.session(), room=0) == []


IN_THE_WAY: dict[str, Callable[[World, str], object]] = {
    "another limit group waits": lambda world, _: world.add(gate="other"),
    "another limit group waits that a claim has seen": another_line_is_ready,
    "a key waits for the same gate": a_key_waits_for_the_gate,
    "a line of another queue waits for the same gate": a_line_of_another_queue_waits_for_the_gate,
    "a key is ready": lambda world, _: world.add(key="k"),
    "a plain task waits": lambda world, _: world.add(),
    "its queue is paused": lambda world, _: world.run(set_queue("default", "paused")),
    "its queue drains": lambda world, _: world.run(set_queue("default", "draining")),
    "its queue is limited": lambda world, _: world.run(set_limit("q:default", 5, None, 1.0)),
    "its cancellation was asked for": lambda world, second: world.run(request_cancel([second], "no")),
    "its line is held back": lambda world, _: world.run(hold_line("default", "g", 10 * SECOND)),
    "its limit was lowered": lambda world, _: limit(world, 1),
    "the session is dead": die,
}


class HandingOver:
    def test_the_next_task_of_a_line_goes_to_whoever_did_the_last(self, world: World) -> None:
        limit(world, 1)
        first, second, third = (world.add(gate="g") for _ in range(3))
        session = world.session("s")
        [task] = world.claim(session)
        assert task.id == first

        committed = go_on(world, session, *done(task))

        [verdict] = committed.verdicts
        assert isinstance(verdict, Applied)
        assert committed.went is not None
        [following] = committed.went.tasks
        assert world.get(second) == following
        assert (following.state, following.session, following.attempt, following.spent) == ("leased", "s", 1, 1)
        assert following.token > task.token
        assert world.claim(world.session()) == []

        committed = go_on(world, session, *done(following))
        assert next_ones(committed) == [third]
        assert committed.went is not None
        assert next_ones(go_on(world, session, *done(*committed.went.tasks))) == []
        assert [world.get(one).state for one in (first, second, third)] == ["done"] * 3
        fourth = world.add(gate="g")
        assert [one.id for one in world.claim(session)] == [fourth]

    def test_the_most_important_goes_first(self, world: World) -> None:
        limit(world, 1)
        world.add(gate="g", priority=9)
        second, third = world.add(gate="g", priority=1), world.add(gate="g", priority=5)
        session = world.session()

        committed = go_on(world, session, *done(*world.claim(session)))

        assert next_ones(committed) == [third]
        assert committed.went is not None
        assert next_ones(go_on(world, session, *done(*committed.went.tasks))) == [second]

    def test_what_was_handed_over_lapses_with_its_session(self, world: World) -> None:
        limit(world, 1)
        world.add(gate="g")
        second = world.add(gate="g")
        session = world.session()
        go_on(world, session, *done(*world.claim(session)))

        assert [lapsed.id for lapsed in world.let_die()] == [second]
        assert world.get(second).crashes == 1
        world.advance(60)
        world.promote()
        assert [one.id for one in world.claim(world.session())] == [second]

    @pytest.mark.parametrize("what", IN_THE_WAY)
    def test_it_is_not_handed_over_when(self, world: World, what: str) -> None:
        limit(world, 2)
        for _ in range(2):
            world.add(gate="g")
        second = world.add(gate="g")
        session = world.session()
        task, _ = world.claim(session)
        IN_THE_WAY[what](world, second)

        committed = go_on(world, session, *done(task))

        assert isinstance(committed.verdicts[0], Applied)
        assert next_ones(committed) == []
        assert world.get(second).state == "blocked"

    def test_it_is_not_handed_over_while_one_waits_that_must_run_alone(self, world: World) -> None:
        limit(world, 1)
        dangerous = world.add()
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
            world.advance(10)
            world.promote()
        world.add(gate="g")
        second = world.add(gate="g")
        session = world.session()
        [task] = world.claim(session)
        assert task.id != dangerous

        assert next_ones(go_on(world, session, *done(task), spare=5)) == []
        assert world.get(second).state == "blocked"
        assert [one.id for one in world.claim(session, alone=True)] == [dangerous]

    def test_a_gate_that_was_made_after_the_claim_counts_what_runs(self, world: World) -> None:
        for _ in range(3):
            world.add(gate="g")
        session = world.session()
        task, _ = world.claim(session, room=2)
        limit(world, 1)

        assert next_ones(go_on(world, session, *done(task))) == []

    def test_a_group_without_a_limit_goes_on_too(self, world: World) -> None:
        world.add(gate="g")
        second = world.add(gate="g")
        session = world.session()

        assert next_ones(go_on(world, session, *done(*world.claim(session, room=1)))) == [second]

    def test_a_rate_is_kept(self, world: World) -> None:
        limit(world, None, 1.0, 2)
        first, second, third = (world.add(gate="g") for _ in range(3))
        session = world.session()
        [task] = world.claim(session, room=1)
        assert task.id == first

        committed = go_on(world, session, *done(task))
        assert next_ones(committed) == [second]
        assert committed.went is not None
        assert next_ones(go_on(world, session, *done(*committed.went.tasks))) == []
        assert world.claim(session) == []
        world.advance(1)
        assert [one.id for one in world.claim(session)] == [third]

    def test_a_unique_key_that_holds_until_the_claim_is_free_then(self, world: World) -> None:
        limit(world, 1)
        given = {"gate": "g", "unique_scope": "waiting", "unique_key": "u", "fingerprint": "f"}
        world.add(gate="g")
        second = world.add(**given)
        session = world.session()

        assert next_ones(go_on(world, session, *done(*world.claim(session)))) == [second]
        third = world.add(**given)
        assert world.exists(third)

    def test_it_is_handed_over_after_success_only(self, world: World) -> None:
        limit(world, 1)
        world.add(gate="g")
        second = world.add(gate="g")
        session = world.session()
        [task] = world.claim(session)

        assert next_ones(go_on(world, session, world.failing(task))) == []
        assert [one.id for one in world.claim(session)] == [second]

    def test_no_more_are_handed_over_than_there_is_room_for(self, world: World) -> None:
        limit(world, 3)
        for _ in range(6):
            world.add(gate="g")
        session = world.session()

        committed = go_on(world, session, *done(*world.claim(session)), room=2)

        assert len(next_ones(committed)) == 2
        assert len(world.claim(world.session())) == 1

    def test_every_line_goes_on_with_as_many_as_have_ended_in_it(self, world: World) -> None:
        for gate in ("g", "h"):
            world.run(set_limit(f"g:{gate}", 5, None, 1.0))
            for _ in range(4):
                world.add(gate=gate)
        session = world.session()
        tasks = world.claim(session, room=3)
        ended = sorted(task.gate or "" for task in tasks)

        committed = go_on(world, session, *done(*tasks), room=3)

        assert committed.went is not None
        assert sorted(task.gate or "" for task in committed.went.tasks) == ended

    @pytest.mark.parametrize(("spare", "goes"), [(1, False), (2, True)])
    def test_it_is_handed_over_beside_others_for_whom_there_is_room_too(
        self, world: World, spare: int, goes: bool
    ) -> None:
        limit(world, 1)
        world.add(gate="g", priority=9)
        second = world.add(gate="g")
        session = world.session()
        [task] = world.claim(session)
        world.add(key="k")
        world.claim(session, room=0)
        world.add()

        committed = go_on(world, session, *done(task), spare=spare)

        assert next_ones(committed) == [second] * goes

    def test_a_key_that_has_ended_with_it_is_given_back(self, world: World) -> None:
        limit(world, 2)
        world.add(gate="g")
        world.add(key="k")
        second, third = world.add(gate="g"), world.add(key="k")
        session = world.session()
        tasks = world.claim(session, room=2)
        assert len(tasks) == 2

        committed = go_on(world, session, *done(*tasks), room=2)

        left = {task.id for task in world.claim(session)}
        assert {*next_ones(committed)} | left == {second, third}
        assert not {*next_ones(committed)} & left

    def test_a_stale_report_hands_nothing_over(self, world: World) -> None:
        limit(world, 1)
        world.add(gate="g")
        second, _ = world.add(gate="g"), world.add(gate="g")
        session = world.session()
        [change] = done(*world.claim(session))
        assert next_ones(go_on(world, session, change)) == [second]

        committed = go_on(world, session, change)

        assert isinstance(committed.verdicts[0], Stale)
        assert next_ones(committed) == []

    @pytest.mark.parametrize(("slots", "concurrency"), [(1, 5), (5, 1), (5, 3), (5, 5)])
    def test_a_worker_drains_a_group_within_its_limit(self, world: World, slots: int, concurrency: int) -> None:
        seen: list[int] = []
        running, most = 0, 0

        @world.app.task
        async def work(number: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            seen.append(number)
            running -= 1
            return number

        limit(world, concurrency)

        async def story() -> None:
            handles = [await work.using(limit="g").aenqueue(number) for number in range(40)]
            worker = world.app.worker(concurrency=slots, poll=0.05)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in handles))
            worker.stop()
            await serving

        world.await_(story())

        assert sorted(seen) == list(range(40))
        assert most <= min(slots, concurrency)
