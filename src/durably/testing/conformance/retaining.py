"""Retention and expiry: what has had its time goes by itself, and says why."""

from __future__ import annotations

import msgspec
import pytest

from durably.core import lifecycle
from durably.core.moment import SECOND
from durably.core.options import Unique
from durably.errors import ResultExpired, TaskCancelled
from durably.stores.operations.sweep import expired, prune
from durably.testing.world import World


class Retaining:
    def test_a_done_task_is_kept_for_its_retention_and_then_goes(self, world: World) -> None:
        @world.app.task(retention="1h")
        async def work() -> int:
            return 7

        handle = world.call(work, "enqueue")
        world.tick()
        world.advance(3599)
        assert world.run(prune(100)) == 0
        assert world.call(handle, "result", 5) == 7
        world.advance(1)
        assert world.run(prune(100)) == 1

        with pytest.raises(ResultExpired, match=handle.id):
            world.call(handle, "result", 5)

    def test_retention_is_on_by_default(self, world: World) -> None:
        task_id = world.add()
        world.finish(*world.claim(world.session()))
        world.advance(8 * 86400)
        world.run(prune(100))

        assert not world.exists(task_id)

    def test_pruning_goes_in_batches_and_takes_attempts_along(self, world: World) -> None:
        session = world.session()
        for _ in range(5):
            task_id = world.add()
            [task] = world.claim(session)
            world.apply(world.failing(task))
            world.apply(lifecycle.cancel(world.get(task_id), "no"))
        world.advance(8 * 86400)

        assert [world.run(prune(3)), world.run(prune(3)), world.run(prune(3))] == [3, 2, 0]
        assert world.outcomes(task_id) == []

    def test_what_ended_together_is_pruned_in_batches_too(self, world: World) -> None:
        ids = [world.add() for _ in range(5)]
        world.finish(*world.claim(world.session()))
        world.advance(8 * 86400)

        assert [world.run(prune(3)), sum(map(world.exists, ids)), world.run(prune(3)), world.run(prune(3))] == [
            3,
            2,
            2,
            0,
        ]
        assert not any(map(world.exists, ids))

    @pytest.mark.parametrize("kind", ["plain", "key", "gate"])
    def test_each_of_those_that_ended_together_is_kept_as_long_as_it_should(self, world: World, kind: str) -> None:
        for number in range(3):
            world.add(**({} if kind == "plain" else {kind: f"one-{number}"}))
        short, long, ever = world.claim(world.session())
        world.apply(
            lifecycle.complete(short, None, 10.0),
            lifecycle.complete(long, None, 20.0),
            msgspec.structs.replace(lifecycle.complete(ever, None), keep_for=None),
        )

        left = []
        for _ in range(3):
            world.advance(10)
            left.append((world.run(prune(100)), [world.exists(one.id) for one in (short, long, ever)]))
        assert left == [(1, [False, True, True]), (1, [False, False, True]), (0, [False, False, True])]

    @pytest.mark.parametrize("kind", ["plain", "key", "gate"])
    def test_what_ended_together_goes_together(self, world: World, kind: str) -> None:
        for number in range(3):
            world.add(**({} if kind == "plain" else {kind: f"one-{number}"}))
        world.finish(*world.claim(world.session()))
        world.advance(8 * 86400)

        assert [world.run(prune(100)), world.run(prune(100))] == [3, 0]

    def test_a_forever_key_remembers_the_result_after_the_history_is_gone(self, world: World) -> None:
        @world.app.task(retention="1s")
        async def charge(cents: int) -> int:
            return cents * 2

        once = charge.using(unique=Unique("order-1", scope="forever"))
        world.call(once, "enqueue", 21)
        world.tick()
        world.advance(3600)
        world.run(prune(100))

        again = world.call(once, "enqueue", 21)
        assert again.existing
        assert world.call(again, "result", 5) == 42

    def test_a_period_key_is_pruned_after_its_period(self, world: World) -> None:
        world.accept(world.draft(unique_scope="period", unique_key="u", fingerprint="f", unique_for=60 * SECOND))
        world.advance(61)

        assert world.run(prune(100)) == 1

    def test_what_waits_too_long_expires_with_that_reason(self, world: World) -> None:
        ids = [world.add(expires_in=60 * SECOND, **given) for given in ({}, {"key": "k"}, {"due_in": 100 * SECOND})]
        behind = world.add(key="k")
        world.advance(59)
        assert world.run(expired(10, [])) == []
        world.advance(1)
        world.apply(*(lifecycle.expire(task) for task in world.run(expired(10, []))))

        assert {(world.get(task_id).state, world.get(task_id).reason) for task_id in ids} == {("cancelled", "expired")}
        assert [task.id for task in world.claim(world.session())] == [behind]

    def test_an_expired_task_is_not_run_even_if_nobody_swept(self, world: World) -> None:
        ran = []

        @world.app.task(expires="1m")
        async def work() -> None:
            ran.append(1)

        handle = world.call(work, "enqueue")
        world.advance(61)
        world.tick()

        assert ran == []
        with pytest.raises(TaskCancelled, match="expired"):
            world.call(handle, "result", 5)

    def test_what_runs_does_not_expire(self, world: World) -> None:
        task_id = world.add(expires_in=60 * SECOND)
        keyed = world.add(key="k", expires_in=60 * SECOND)
        world.claim(world.session())
        world.advance(61)

        assert world.run(expired(10, [])) == []
        assert {world.get(task_id).state, world.get(keyed).state} == {"leased"}
