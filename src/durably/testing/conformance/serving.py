"""Serving: a running worker, from its first claim to its last report."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from durably.core.retry import Retry
from durably.errors import BadOption
from durably.stores.operations.sweep import close_session
from durably.testing.world import World
from durably.worker.context import current


class Serving:
    def test_a_worker_drains_what_was_due_before_it_began_and_what_comes_after(self, world: World) -> None:
        seen: list[int] = []

        @world.app.task
        async def work(number: int) -> int:
            seen.append(number)
            return number

        async def story() -> list[int]:
            before = [await work.aenqueue(number) for number in range(20)]
            worker = world.app.worker(concurrency=7, poll=0.05)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in before))
            after = [await work.aenqueue(number) for number in range(20, 40)]
            results = await asyncio.gather(*(handle.aresult(60) for handle in [*before, *after]))
            worker.stop()
            await serving
            return results

        assert world.await_(story()) == list(range(40))
        assert Counter(seen) == Counter(range(40))

    def test_a_worker_runs_no_more_at_once_than_its_concurrency(self, world: World) -> None:
        running, most = 0, 0

        @world.app.task
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        async def story() -> None:
            handles = [await work.aenqueue() for _ in range(30)]
            worker = world.app.worker(concurrency=3, poll=0.05)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in handles))
            worker.stop()
            await serving

        world.await_(story())
        assert 1 <= most <= 3

    def test_a_stopped_worker_finishes_what_runs_and_claims_nothing_more(self, world: World) -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @world.app.task
        async def work() -> str:
            begun.set()
            await go.wait()
            return "finished"

        async def story() -> tuple[str, str]:
            worker = world.app.worker(concurrency=1, poll=0.05)
            serving = asyncio.create_task(worker.run())
            first, second = await work.aenqueue(), await work.aenqueue()
            await begun.wait()
            worker.stop()
            go.set()
            await serving
            return await first.aresult(60), await second.astate()

        assert world.await_(story()) == ("finished", "ready")

    def test_what_outlasts_the_grace_period_is_given_back_uncharged(self, world: World) -> None:
        begun = asyncio.Event()
        hold = threading.Event()
        in_thread = threading.Event()

        @world.app.task
        async def endless() -> None:
            begun.set()
            await asyncio.Event().wait()

        @world.app.task
        def hung() -> None:
            in_thread.set()
            hold.wait()

        async def story() -> list[tuple[str, int, int]]:
            worker = world.app.worker(poll=0.05, grace=0.01)
            serving = asyncio.create_task(worker.run())
            handles = [await endless.aenqueue(), await endless.using(key="k").aenqueue(), await hung.aenqueue()]
            await begun.wait()
            await asyncio.to_thread(in_thread.wait)
            worker.stop()
            await serving
            hold.set()
            infos = [await handle.ainfo() for handle in handles]
            return [(info.state, info.attempt, info.spent) for info in infos]

        assert world.await_(story()) == [("ready", 1, 0), ("blocked", 1, 0), ("ready", 1, 0)]

    def test_a_cancelled_run_shuts_down_in_order(self, world: World) -> None:
        begun = asyncio.Event()

        @world.app.task
        async def endless() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def story() -> tuple[str, list[str]]:
            serving = asyncio.create_task(world.app.run_worker(poll=0.05, grace=0.01))
            handle = await endless.aenqueue()
            await begun.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            return await handle.astate(), [s.state for s in await world.app.sessions.alist()]

        state, sessions = world.await_(story())
        assert state == "ready"
        assert "live" not in sessions

    def test_every_transition_is_an_event(self, world: World) -> None:
        kinds: list[str] = []
        world.app.events.subscribe(lambda event: kinds.append(event.kind))

        @world.app.task(retry=Retry.constant(2, 0))
        async def broken() -> None:
            raise ValueError("no")

        @world.app.task
        async def fine() -> None: ...

        world.call(fine, "enqueue")
        world.tick()
        world.call(broken, "enqueue")
        world.tick(2)

        assert kinds == [
            "enqueued",
            "started",
            "completed",
            "enqueued",
            "started",
            "failed",
            "started",
            "failed",
            "dead",
        ]

    def test_a_subscriber_that_fails_harms_nobody(self, world: World) -> None:
        def fails(event: object) -> None:
            raise RuntimeError("subscriber")

        world.app.events.subscribe(fails)

        @world.app.task
        async def work() -> int:
            return 1

        handle = world.call(work, "enqueue")
        world.tick()

        assert world.call(handle, "result", 5) == 1

    def test_a_heartbeat_that_cannot_fit_into_its_lease_is_refused(self, world: World) -> None:
        for lease, heartbeat in ((10, 10), (10, 3), (0, 1), (10, 0)):
            with pytest.raises(BadOption):
                world.app.worker(lease=lease, heartbeat=heartbeat)
        world.app.worker(lease=10, heartbeat=2.5)

    def test_a_lost_session_drops_what_it_ran_and_begins_a_new_one(self, world: World) -> None:
        attempts: list[str] = []
        begun = asyncio.Event()

        @world.app.task
        async def work() -> str:
            attempts.append(str(current().attempt))
            begun.set()
            if len(attempts) == 1:
                await asyncio.Event().wait()
            return "second attempt"

        async def story() -> tuple[str, int]:
            worker = world.app.worker(poll=0.05, lease=0.4)
            serving = asyncio.create_task(worker.run())
            handle = await work.aenqueue()
            await begun.wait()
            first = worker.session
            assert first is not None
            await world.store.arun(close_session(first))
            result = await handle.aresult(60)
            assert worker.session != first
            worker.stop()
            await serving
            return result, (await handle.ainfo()).crashes

        assert world.await_(story()) == ("second attempt", 1)
        assert attempts == ["1", "2"]

    def test_order_per_key_is_kept_by_a_running_worker(self, world: World) -> None:
        seen: dict[str, list[int]] = {}

        @world.app.task(retry=Retry.constant(3, 0))
        async def work(key: str, number: int) -> None:
            if number % 3 == 0 and current().attempt == 1:
                raise ValueError("try again")
            seen.setdefault(key, []).append(number)

        async def story() -> None:
            handles = [
                await work.using(key=key).aenqueue(key, number) for number in range(10) for key in ("a", "b", "c")
            ]
            worker = world.app.worker(concurrency=10, poll=0.05)
            serving = asyncio.create_task(worker.run())
            await asyncio.gather(*(handle.aresult(60) for handle in handles))
            worker.stop()
            await serving

        world.await_(story())
        assert seen == {key: list(range(10)) for key in ("a", "b", "c")}
