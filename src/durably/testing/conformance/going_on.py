"""Going on: the commit of a key's head leases the next one, exactly when the next claim would have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from durably.core import lifecycle
from durably.core.change import Applied, Change, Stale
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.commit import Committed, commit_and_go_on
from durably.stores.operations.control import set_limit, set_queue
from durably.stores.operations.read import list_keys
from durably.stores.operations.settle import Onward
from durably.stores.operations.sweep import mark_dead
from durably.testing.world import World


def go_on(world: World, session: str, *changes: Change, room: int = 1, spare: int = 0) -> Committed:
    """Commit the changes, with room for more."""
    return world.run(commit_and_go_on(list(changes), Onward(session, ["default"], {"work"}, room, spare)))


def next_ones(committed: Committed) -> list[str]:
    """The tasks that it went on with."""
    return [] if committed.went is None else [task.id for task in committed.went.tasks]


def die(world: World, _: str) -> None:
    world.advance(31)
    world.run(mark_dead())


IN_THE_WAY: dict[str, Callable[[World, str], object]] = {
    "another key is ready": lambda world, _: world.add(key="other"),
    "a plain task waits": lambda world, _: world.add(),
    "a limit group waits": lambda world, _: world.add(gate="g"),
    "its queue is paused": lambda world, _: world.run(set_queue("default", "paused")),
    "its queue drains": lambda world, _: world.run(set_queue("default", "draining")),
    "its queue is limited": lambda world, _: world.run(set_limit("q:default", 5, None, 1.0)),
    "its cancellation was asked for": lambda world, second: world.run(request_cancel([second], "no")),
    "the session is dead": die,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "belongs to a limit group": {"gate": "g"},
    "gives its unique key up when it is claimed": {
        "unique_scope": "waiting",
        "unique_key": "u",
        "fingerprint": "f",
    },
    "is not known here": {"name": "stranger"},
}


class GoingOn:
    def test_the_next_task_of_a_key_goes_to_whoever_did_the_last(self, world: World) -> None:
        first, second, third = (world.add(key="k") for _ in range(3))
        session = world.session("s")
        [task] = world.claim(session)
        assert task.id == first

        committed = go_on(world, session, lifecycle.complete(task, b"1"))

        [verdict] = committed.verdicts
        assert isinstance(verdict, Applied)
        assert committed.went is not None
        [following] = committed.went.tasks
        assert world.get(second) == following
        assert (following.state, following.session, following.attempt) == ("leased", "s", 1)
        assert following.token > task.token
        [key] = world.run(list_keys(None, None, None, 10))
        assert (key.state, key.head, key.session) == ("leased", second, "s")
        assert world.claim(world.session()) == []

        committed = go_on(world, session, lifecycle.complete(following, b"2"))
        assert next_ones(committed) == [third]
        assert committed.went is not None
        assert next_ones(go_on(world, session, lifecycle.complete(committed.went.tasks[0], b"3"))) == []
        assert world.run(list_keys(None, None, None, 10)) == []
        assert [world.get(one).state for one in (first, second, third)] == ["done"] * 3

    @pytest.mark.parametrize("between", [0, 1, 5, 50])
    def test_the_next_one_is_found_however_many_others_came_between(self, world: World, between: int) -> None:
        world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        for _ in range(between):
            world.add(queue="elsewhere")
        second = world.add(key="k")
        for _ in range(3):
            world.add(key="k")
        assert world.claim(session) == []

        assert next_ones(go_on(world, session, lifecycle.complete(task, None))) == [second]

    def test_several_keys_go_on_at_once_each_with_its_next(self, world: World) -> None:
        names = ["b", "a", "c"]
        firsts = {world.add(key=name): name for name in names}
        session = world.session()
        tasks = world.claim(session)
        assert {task.id for task in tasks} == set(firsts)
        seconds = {world.add(key=name) for name in names}
        assert world.claim(session) == []

        done = [lifecycle.complete(task, None) for task in tasks]
        assert set(next_ones(go_on(world, session, *done, room=3))) == seconds

    def test_what_was_gone_on_with_lapses_with_its_session(self, world: World) -> None:
        world.add(key="k")
        second = world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        go_on(world, session, lifecycle.complete(task, None))

        assert [lapsed.id for lapsed in world.let_die()] == [second]
        assert (world.get(second).state, world.get(second).crashes) == ("blocked", 1)

    @pytest.mark.parametrize("what", IN_THE_WAY)
    def test_it_does_not_go_on_when(self, world: World, what: str) -> None:
        world.add(key="k")
        second = world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        IN_THE_WAY[what](world, second)

        committed = go_on(world, session, lifecycle.complete(task, None))

        assert isinstance(committed.verdicts[0], Applied)
        assert next_ones(committed) == []
        assert world.get(second).state == "blocked"

    @pytest.mark.parametrize("given", [{"key": "other"}, {"gate": "g"}], ids=["key", "limit group"])
    def test_it_does_not_go_on_while_another_waits_that_a_claim_has_seen(
        self, world: World, given: dict[str, str]
    ) -> None:
        world.add(key="k")
        second = world.add(key="k")
        world.add(**given)
        session = world.session()
        [task] = world.claim(session, room=1)

        assert next_ones(go_on(world, session, lifecycle.complete(task, None))) == []
        assert world.get(second).state == "blocked"

    @pytest.mark.parametrize("what", SPECIAL)
    def test_it_does_not_go_on_with_one_that(self, world: World, what: str) -> None:
        world.add(key="k")
        second = world.add(key="k", **SPECIAL[what])
        session = world.session()
        [task] = world.claim(session)

        assert next_ones(go_on(world, session, lifecycle.complete(task, None))) == []
        assert [one.id for one in world.claim(session)] == [second]

    def test_it_does_not_go_on_with_one_that_must_run_alone(self, world: World) -> None:
        dangerous = world.add(key="k", policy="overtake")
        for _ in range(2):
            world.add(key="k")
            [task] = world.claim(world.session())
            assert task.id == dangerous
            world.let_die()
            world.advance(10)
            world.promote()
            session = world.session()
            [task] = world.claim(session)
            if world.get(dangerous).crashes == 1:
                world.finish(task)

        assert next_ones(go_on(world, session, lifecycle.complete(task, None))) == []
        assert [one.id for one in world.claim(session, alone=True)] == [dangerous]

    def test_it_goes_on_after_success_only(self, world: World) -> None:
        first = world.add(key="k")
        world.add(key="k")
        session = world.session()
        [task] = world.claim(session)

        assert next_ones(go_on(world, session, world.failing(task))) == []
        world.advance(3600)
        assert [one.id for one in world.claim(session)] == [first]

    def test_it_takes_no_more_than_there_is_room_for(self, world: World) -> None:
        for index in range(6):
            world.add(key=f"k{index % 3}")
        session = world.session()
        done = [lifecycle.complete(task, None) for task in world.claim(session)]

        committed = go_on(world, session, *done, room=2)

        assert len(next_ones(committed)) == 2
        assert len(world.claim(session)) == 1

    @pytest.mark.parametrize(("spare", "goes"), [(1, False), (2, True)])
    def test_it_goes_on_beside_others_for_whom_there_is_room_too(self, world: World, spare: int, goes: bool) -> None:
        world.add(key="k")
        second = world.add(key="k")
        world.add(key="other")
        world.add()
        session = world.session()
        [task] = world.claim(session, room=1)

        committed = go_on(world, session, lifecycle.complete(task, None), spare=spare)

        assert next_ones(committed) == [second] * goes

    def test_a_stale_report_goes_on_with_nothing(self, world: World) -> None:
        world.add(key="k")
        second = world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        change = lifecycle.complete(task, None)
        assert next_ones(go_on(world, session, change)) == [second]

        committed = go_on(world, session, change)

        assert isinstance(committed.verdicts[0], Stale)
        assert next_ones(committed) == []

    @pytest.mark.parametrize("concurrency", [1, 2, 5])
    def test_a_worker_drains_keys_in_order_within_its_concurrency(self, world: World, concurrency: int) -> None:
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

        async def story() -> None:
            handles = [await work.using(key=f"k{number % 4}").aenqueue(number) for number in range(40)]
            worker = world.app.worker(concurrency=concurrency, poll=0.05)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in handles))
            worker.stop()
            await serving

        world.await_(story())

        assert len(seen) == 40
        for key in range(4):
            assert [number for number in seen if number % 4 == key] == list(range(key, 40, 4))
        assert most <= concurrency
