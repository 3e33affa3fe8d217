"""Retries: as often and as late as the policy says, and not once more."""

from __future__ import annotations

from durably.core import lifecycle
from durably.core.moment import SECOND
from durably.core.retry import Retry
from durably.errors import Permanent, RetryAfter, Snooze
from durably.testing.world import RETRY, World


class Retrying:
    def test_a_failed_task_waits_as_its_policy_says_then_dies(self, world: World) -> None:
        task_id = world.add()
        session = world.session()
        for attempt, wait in enumerate((10, 20, 30), start=1):
            [task] = world.claim(session)
            assert (task.attempt, task.spent) == (attempt, attempt)
            world.apply(world.failing(task))
            after = world.get(task_id)
            assert (after.state, after.ready_at) == ("delayed", world.clock.now() + wait * SECOND)
            assert after.session is None
            world.advance(wait)
            world.promote()
        [task] = world.claim(session)
        world.apply(world.failing(task))

        dead = world.get(task_id)
        assert (dead.state, dead.attempt, dead.payload) == ("dead", 4, b"{}")
        assert dead.reason == "attempts exhausted (4): Boom: it broke"
        assert world.outcomes(task_id) == ["failed"] * 4

    def test_a_permanent_failure_is_a_dead_letter_at_once(self, world: World) -> None:
        task_id = world.add()
        [task] = world.claim(world.session())
        world.apply(world.failing(task, permanent=True))

        assert world.get(task_id).reason == "permanent: Boom: it broke"

    def test_a_failure_can_ask_for_a_longer_wait_than_the_policy(self, world: World) -> None:
        task_id = world.add()
        [task] = world.claim(world.session())
        world.apply(world.failing(task, retry_after=99.0))

        assert world.get(task_id).ready_at == world.clock.now() + 99 * SECOND

    def test_a_failure_that_is_due_again_at_once_is_ready(self, world: World) -> None:
        task_id = world.add()
        [task] = world.claim(world.session())
        world.apply(world.failing(task, retry=Retry.constant(5, 0)))

        assert world.get(task_id).state == "ready"

    def test_a_snooze_charges_no_attempt(self, world: World) -> None:
        task_id = world.add()
        session = world.session()
        for _ in range(10):
            [task] = world.claim(session)
            world.apply(lifecycle.snooze(task, 5))
            world.advance(5)
            world.promote()

        task = world.get(task_id)
        assert (task.state, task.attempt, task.spent) == ("ready", 10, 0)
        assert world.outcomes(task_id) == []

    def test_a_graceful_release_refunds_the_budget_but_not_the_number(self, world: World) -> None:
        task_id = world.add()
        session = world.session()
        [task] = world.claim(session)
        world.apply(lifecycle.release(task, started=True))

        after = world.get(task_id)
        assert (after.state, after.attempt, after.spent) == ("ready", 1, 0)

    def test_an_at_most_once_task_is_released_only_if_it_had_not_begun(self, world: World) -> None:
        session = world.session()
        for started, state in ((False, "ready"), (True, "dead")):
            task_id = world.add(once=True)
            [task] = [task for task in world.claim(session) if task.id == task_id]
            world.apply(lifecycle.release(task, started=started))
            assert world.get(task_id).state == state

    def test_each_round_runs_a_task_once_even_if_its_retry_is_due(self, world: World) -> None:
        runs = []

        @world.app.task(retry=Retry.constant(5, 0))
        async def broken() -> None:
            runs.append(world.clock.now())
            raise ValueError("no")

        handle = world.call(broken, "enqueue")
        for expected in range(1, 6):
            assert world.tick() == 1
            assert len(runs) == expected
        assert world.tick() == 0
        assert world.call(handle, "state") == "dead"

    def test_a_handler_decides_about_its_own_retry(self, world: World) -> None:
        answers: list[Exception] = [RetryAfter("1m"), Snooze("5m"), Permanent("the customer is gone")]

        @world.app.task(retry=RETRY)
        async def choosy() -> None:
            raise answers.pop(0)

        handle = world.call(choosy, "enqueue")
        world.tick()
        assert world.call(handle, "info").due_at.timestamp() * SECOND == world.clock.now() + 60 * SECOND
        world.advance(60)
        world.tick()
        info = world.call(handle, "info")
        assert (info.spent, info.due_at.timestamp() * SECOND) == (1, world.clock.now() + 300 * SECOND)
        world.advance(300)
        world.tick()
        info = world.call(handle, "info")
        assert (info.state, info.attempt) == ("dead", 3)
        assert info.reason == "permanent: the customer is gone"
        assert [attempt.outcome for attempt in world.call(handle, "attempts")] == ["failed", "failed"]

    def test_a_policy_can_name_exceptions_as_permanent(self, world: World) -> None:
        @world.app.task(retry=Retry.constant(9, 1, permanent=(LookupError,)))
        async def missing() -> None:
            raise KeyError("gone")

        handle = world.call(missing, "enqueue")
        world.tick()

        assert world.call(handle, "state") == "dead"

    def test_a_policy_given_for_one_call_travels_with_it(self, world: World) -> None:
        @world.app.task(retry=Retry.never())
        async def broken() -> None:
            raise ValueError("no")

        handle = world.call(broken.using(retry=Retry.after(7, 8)), "enqueue")
        world.tick()

        assert world.call(handle, "info").due_at.timestamp() * SECOND == world.clock.now() + 7 * SECOND

    def test_an_error_with_nul_and_surrogates_is_kept_readable(self, world: World) -> None:
        @world.app.task(retry=Retry.never())
        async def broken() -> None:
            raise ValueError("a\0b\ud800c")

        handle = world.call(broken, "enqueue")
        world.tick()

        [attempt] = world.call(handle, "attempts")
        assert attempt.message == "a\ufffdb?c"
        assert world.call(handle, "state") == "dead"

    def test_an_error_that_cannot_even_be_printed_is_still_an_error(self, world: World) -> None:
        class Nasty(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        @world.app.task(retry=Retry.never())
        async def broken() -> None:
            raise Nasty

        handle = world.call(broken, "enqueue")
        world.tick()

        [attempt] = world.call(handle, "attempts")
        assert "could not be turned into text" in attempt.message

    def test_an_at_most_once_task_is_not_tried_again(self, world: World) -> None:
        runs = []

        @world.app.task(at_most_once=True, retry=Retry.constant(5, 0))
        async def once() -> None:
            runs.append(1)
            raise ValueError("no")

        handle = world.call(once, "enqueue")
        world.tick(3)

        assert runs == [1]
        info = world.call(handle, "info")
        assert (info.state, info.reason) == ("dead", "at most once: ValueError: no")
