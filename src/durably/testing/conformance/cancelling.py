"""Cancelling: what waits ends, what runs is asked, and a request within a transaction waits for its commit."""

from __future__ import annotations

import asyncio

import pytest

from durably.errors import TaskCancelled
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.commit import apply_cancel_requests, cancel_now
from durably.stores.operations.sweep import cancelled
from durably.testing.world import World


class Cancelling:
    def test_what_waits_is_cancelled_at_once_and_says_why(self, world: World) -> None:
        @world.app.task
        async def work() -> None: ...

        for task in (work, work.using(delay="1h"), work.using(key="k"), work.using(limit="g")):
            handle = world.call(task, "enqueue")

            assert world.call(handle, "cancel", "changed my mind") == "cancelled"
            info = world.call(handle, "info")
            assert (info.state, info.reason) == ("cancelled", "changed my mind")
        assert world.tick() == 0

    def test_a_cancelled_task_raises_its_reason_to_whoever_waits(self, world: World) -> None:
        @world.app.task
        async def work() -> None: ...

        handle = world.call(work.using(delay="1h"), "enqueue")
        world.call(handle, "cancel", "changed my mind")

        with pytest.raises(TaskCancelled, match="changed my mind"):
            world.call(handle, "result", 5)

    def test_what_has_ended_cannot_be_cancelled(self, world: World) -> None:
        @world.app.task
        async def work() -> str:
            return "done"

        handle = world.call(work, "enqueue")
        world.tick()

        assert world.call(handle, "cancel") == "ended"
        assert world.call(handle, "result", 5) == "done"

    def test_what_runs_is_asked_to_stop_and_a_coroutine_stops(self, world: World) -> None:
        begun = asyncio.Event()

        @world.app.task
        async def endless() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def story() -> tuple[str, str]:
            worker = world.app.worker(poll=0.05)
            serving = asyncio.create_task(worker.run())
            handle = await endless.aenqueue()
            await begun.wait()
            answer = await handle.acancel("enough")
            with pytest.raises(TaskCancelled, match="enough"):
                await handle.aresult(60)
            worker.stop()
            await serving
            return str(answer), (await handle.ainfo()).reason or ""

        assert world.await_(story()) == ("stopping", "enough")

    def test_a_running_task_that_finishes_in_spite_of_a_request_is_done(self, world: World) -> None:
        task_id = world.add()
        [task] = world.claim(world.session())
        world.run(cancel_now([task_id], "too late"))
        assert world.run(cancelled()) == {task_id: "too late"}

        current_task = world.get(task_id)
        assert current_task.cancel == "too late"
        world.finish(current_task)
        assert world.get(task_id).state == "done"
        assert task.token == current_task.token

    def test_a_request_is_carried_out_before_the_next_claim(self, world: World) -> None:
        first, second = world.add(), world.add(key="k")
        world.run(request_cancel([first, second], "not needed"))

        assert world.claim(world.session()) == []
        assert {(world.get(task_id).state, world.get(task_id).reason) for task_id in (first, second)} == {
            ("cancelled", "not needed")
        }

    def test_a_request_is_carried_out_before_a_claim_of_plain_tasks_only(self, world: World) -> None:
        unwanted, wanted = world.add(), world.add()
        world.run(request_cancel([unwanted], "not needed"))

        assert [task.id for task in world.claim(world.session())] == [wanted]
        assert world.get(unwanted).state == "cancelled"

    def test_requests_for_ended_and_unknown_tasks_are_cleared_away(self, world: World) -> None:
        done = world.add()
        world.finish(*world.claim(world.session("s")))
        world.run(request_cancel([done, world.ids.task(None)], "late"))

        assert world.run(apply_cancel_requests()) == []
        assert world.run(apply_cancel_requests()) == []
        assert world.get(done).state == "done"

    def test_a_request_for_a_running_task_reaches_its_worker(self, world: World) -> None:
        task_id = world.add(key="k")
        world.claim(world.session())
        world.run(request_cancel([task_id], "please stop"))
        world.run(apply_cancel_requests())

        assert world.run(cancelled()) == {task_id: "please stop"}
        assert world.get(task_id).state == "leased"
