"""Running ahead: a worker takes several tasks of a key with one lease, and runs them one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durably.core import lifecycle
from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.task import Task
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import cancel_now, commit_and_go_on, set_progress
from durably.stores.operations.control import set_limit, set_queue
from durably.stores.operations.read import get, list_keys
from durably.stores.operations.settle import Onward
from durably.stores.operations.sweep import expired
from durably.testing.conformance.whying import why
from durably.testing.world import World
from durably.worker.report import landed


def take(world: World, session: str, ahead: int = 10) -> list[Task]:
    """Claim the only key that waits; its head, and those who follow it."""
    found = world.run(claim(session, ("default",), 10, ahead=ahead))
    [head] = found.tasks
    return [head, *found.behind.get(head.id, [])]


def report(world: World, session: str, *changes: Change, going: tuple[Task, ...] = ()) -> list[Verdict]:
    """Commit what became of a few, while the worker goes on with others."""
    leased = {(task.queue, task.key or ""): [one.id for one in going] for task in going}
    onward = Onward(session, ("default",), {"work"}, 0, going=leased)
    return world.run(commit_and_go_on(list(changes), onward)).verdicts


def done(*tasks: Task) -> list[Change]:
    return [lifecycle.complete(task, None) for task in tasks]


SPECIAL: dict[str, dict[str, Any]] = {
    "belongs to a limit group": {"gate": "g"},
    "may run only once": {"once": True},
    "is a delivery": {"name": "durably.deliver"},
    "gives its unique key up when it is claimed": {
        "unique_scope": "waiting",
        "unique_key": "u",
        "fingerprint": "f",
    },
}


class RunningAhead:
    def test_the_followers_of_a_head_are_leased_with_it_in_order(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(4)]
        session = world.session("s")

        taken = take(world, session, 3)

        assert [task.id for task in taken] == ids[:3]
        assert {(task.state, task.session, task.token, task.attempt) for task in taken} == {
            ("leased", "s", taken[0].token, 1)
        }
        assert [world.get(task.id) for task in taken] == taken
        assert world.get(ids[3]).state == "blocked"
        assert world.claim(world.session()) == []
        [key] = world.run(list_keys(None, None, None, 10))
        assert (key.state, key.head) == ("leased", ids[0])

    def test_the_key_is_kept_until_the_last_of_them_is_done(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(4)]
        session = world.session()
        first, second, third = take(world, session, 3)

        assert all(
            isinstance(verdict, Applied) for verdict in report(world, session, *done(first, second), going=(third,))
        )

        assert world.get(third.id) == third
        assert world.claim(world.session()) == []
        [verdict] = report(world, session, *done(third))
        assert isinstance(verdict, Applied)
        assert [task.id for task in world.claim(world.session())] == [ids[3]]
        assert [world.get(one).state for one in ids[:3]] == ["done"] * 3

    def test_nobody_is_settled_before_those_ahead_of_it(self, world: World) -> None:
        for _ in range(3):
            world.add(key="k")
        session = world.session()
        first, second, third = take(world, session)

        verdicts = report(world, session, *done(second, third), going=(first,))
        assert [type(verdict) for verdict in verdicts] == [Stale, Stale]
        world.run(cancel_now([first.id], "no"))
        verdicts = report(world, session, *done(first, second, third))
        assert [type(verdict) for verdict in verdicts] == [Stale, Stale, Stale]

        current = world.get(first.id)
        verdicts = report(world, session, lifecycle.stop(current), *done(second, third))
        assert [type(verdict) for verdict in verdicts] == [Applied, Applied, Applied]
        assert world.run(list_keys(None, None, None, 10)) == []

    def test_a_failure_leaves_those_behind_it_as_they_were(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(3)]
        session = world.session()
        first, second, third = take(world, session)

        verdicts = report(world, session, *done(first), world.failing(second), *done(third), going=(third,))

        assert [type(verdict) for verdict in verdicts] == [Applied, Applied, Stale]
        assert [world.get(one).state for one in ids] == ["done", "blocked", "blocked"]
        assert [world.get(one).attempt for one in ids] == [1, 1, 0]
        world.advance(3600)
        assert [task.id for task in take(world, session)] == ids[1:]

    def test_a_crash_is_charged_to_the_head_which_then_runs_by_itself(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(3)]
        session = world.session()
        first, *_ = take(world, session)
        report(world, session, *done(first), going=(world.get(ids[1]), world.get(ids[2])))

        assert [task.id for task in world.let_die()] == [ids[1]]

        assert [(world.get(one).crashes, world.get(one).attempt) for one in ids[1:]] == [(1, 1), (0, 0)]
        world.advance(10)
        session = world.session()
        [head] = take(world, session)
        assert head.id == ids[1]
        world.finish(head)
        assert [task.id for task in take(world, session)] == [ids[2]]

    @pytest.mark.parametrize("how", ["done", "failed"])
    def test_whoever_lost_a_follower_does_not_call_its_own_what_another_made_of_it(
        self, world: World, how: str
    ) -> None:
        for _ in range(2):
            world.add(key="k")
        slow = world.session()
        lost_head, lost = take(world, slow)
        world.let_die()
        world.advance(10)
        fast = world.session()
        [head] = take(world, fast)
        report(world, fast, *done(head))
        [follower] = take(world, fast)
        assert (head.id, follower.id) == (lost_head.id, lost.id)
        mine, other = (done(lost, follower)) if how == "done" else (world.failing(lost), world.failing(follower))
        world.apply(other)

        [verdict] = report(world, slow, mine)
        [again] = report(world, fast, other)

        assert isinstance(verdict, Stale)
        assert isinstance(again, Stale)
        assert verdict.current is not None
        assert again.current is not None
        assert not landed(mine, verdict.current)
        assert landed(other, again.current)

    def test_whoever_lost_a_key_cannot_end_a_follower_that_another_has_made_its_head(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(3)]
        slow = world.session()
        _, second, third = take(world, slow)
        world.let_die()
        world.advance(10)
        quick = world.session()
        world.finish(*take(world, quick))
        taken = take(world, quick)
        assert [task.id for task in taken] == ids[1:]
        assert second.version == taken[0].version

        verdicts = report(world, slow, *done(second), going=(third,))
        assert [type(verdict) for verdict in verdicts] == [Stale]
        assert [type(verdict) for verdict in report(world, slow, *done(second, third))] == [Stale, Stale]
        assert [world.get(one) for one in ids[1:]] == taken
        assert [type(verdict) for verdict in report(world, quick, *done(*taken))] == [Applied, Applied]

    def test_a_follower_that_was_asked_to_stop_ends_when_its_worker_goes_on_without_it(self, world: World) -> None:
        world.add(key="k")
        second = world.add(key="k")
        session = world.session()
        first, _ = take(world, session)
        world.run(cancel_now([second], "no more"))
        assert world.get(second).state == "leased"

        report(world, session, *done(first))

        assert (world.get(second).state, world.get(second).reason) == ("cancelled", "no more")

    def test_a_follower_that_was_asked_to_stop_does_not_run_later(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(3)]
        session = world.session()
        first, *_ = take(world, session)

        [verdict] = world.run(cancel_now([ids[1]], "changed our minds"))
        assert isinstance(verdict, Applied)
        assert (world.get(ids[1]).state, world.get(ids[1]).cancel) == ("leased", "changed our minds")
        report(world, session, world.failing(first))

        assert [world.get(one).state for one in ids] == ["blocked", "cancelled", "blocked"]

    def test_a_follower_does_not_expire_while_it_may_run(self, world: World) -> None:
        world.add(key="k")
        second = world.add(key="k", expires_in=1)
        take(world, world.session())
        world.advance(5)

        assert world.run(expired(10, [])) == []
        assert world.get(second).state == "leased"

    def test_why_tells_of_a_follower_whom_it_follows(self, world: World) -> None:
        first = world.add(key="k")
        second = world.add(key="k")
        take(world, world.session())

        assert why(world, first)[0] == "running"
        code, sentence = why(world, second)
        assert code == "following"
        assert first in sentence

    def test_a_follower_can_tell_how_far_it_is(self, world: World) -> None:
        world.add(key="k")
        second = world.add(key="k")
        _, follower = take(world, world.session())

        assert world.run(set_progress(second, follower.token, "half", None))
        assert not world.run(set_progress(second, follower.token + 1, "half", None))

    @pytest.mark.parametrize("what", SPECIAL)
    def test_it_does_not_run_ahead_to_one_that(self, world: World, what: str) -> None:
        ids = [world.add(key="k"), world.add(key="k", **SPECIAL[what]), world.add(key="k")]

        assert [task.id for task in take(world, world.session())] == ids[:1]

    def test_it_does_not_run_ahead_beyond_what_drains(self, world: World) -> None:
        ids = [world.add(key="k")]
        world.advance(1)
        world.run(set_queue("default", "draining"))
        world.advance(1)
        ids.append(world.add(key="k"))
        session = world.session()
        assert [task.id for task in take(world, session)] == ids[:1]

    def test_it_does_not_run_ahead_in_a_limited_queue(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(2)]
        world.run(set_limit("q:default", 5, None, 1.0))

        assert [task.id for task in take(world, world.session())] == ids[:1]

    def test_it_does_not_run_ahead_to_one_that_crashed(self, world: World) -> None:
        crashed = world.add(key="k", policy="overtake")
        other = world.add(key="k")
        take(world, world.session(), 1)
        world.let_die()
        world.advance(10)
        world.promote()

        assert [task.id for task in take(world, world.session())] == [other]
        assert world.get(crashed).crashes == 1

    def test_a_limit_that_is_set_meanwhile_counts_whoever_runs(self, world: World) -> None:
        for _ in range(3):
            world.add(key="k")
        session = world.session()
        first, second, third = take(world, session)
        world.run(set_limit("q:default", 1, None, 1.0))
        world.add()

        assert world.claim(world.session()) == []
        report(world, session, *done(first), going=(second, third))
        assert world.claim(world.session()) == []
        report(world, session, *done(second, third))
        assert len(world.claim(world.session())) == 1

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_a_worker_that_runs_ahead_keeps_the_order(self, world: World, concurrency: int) -> None:
        seen: list[int] = []
        running: set[int] = set()

        @world.app.task
        async def work(number: int) -> None:
            assert number % 4 not in running
            running.add(number % 4)
            await asyncio.sleep(0)
            seen.append(number)
            running.discard(number % 4)
            assert len(running) < concurrency

        async def story() -> None:
            handles = [await work.using(key=f"k{number % 4}").aenqueue(number) for number in range(80)]
            worker = world.app.worker(concurrency=concurrency, poll=0.05, ahead=5)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in handles))
            worker.stop()
            await serving

        world.await_(story())

        for key in range(4):
            assert [number for number in seen if number % 4 == key] == list(range(key, 80, 4))

    def test_a_worker_that_was_told_to_stop_begins_with_none_of_those_who_wait_behind(self, world: World) -> None:
        seen: list[int] = []

        @world.app.task
        async def work(number: int) -> None:
            seen.append(number)
            worker.stop()
            await asyncio.sleep(0)

        async def story() -> list[str]:
            handles = [await work.using(key="k").aenqueue(number) for number in range(3)]
            await worker.run()
            return [handle.id for handle in handles]

        worker = world.app.worker(concurrency=10, ahead=5)
        ids = world.await_(story())

        assert seen == [0]
        assert sorted((task.state, task.spent) for task in world.run(get(ids))) == [
            ("blocked", 0),
            ("blocked", 0),
            ("done", 1),
        ]
