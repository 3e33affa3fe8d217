"""Handles: ask, wait, list."""

from __future__ import annotations

import asyncio

import pytest

from durably.app import Durably
from durably.core.options import Unique
from durably.errors import Conflict, ResultExpired, ResultTimeout, UnknownTask
from durably.stores.statement import Operation
from durably.testing.world import World


class Handles:
    def test_a_handle_waits_for_the_result(self, world: World) -> None:
        @world.app.task
        async def double(number: int) -> int:
            return number * 2

        handle = world.call(double, "enqueue", 21)
        world.tick()

        assert world.call(handle, "result", 5) == 42
        assert world.call(double.handle(handle.id), "result") == 42
        assert world.call(world.app.handle(handle.id), "result") == 42
        assert world.call(Durably(world.store).handle(handle.id), "result") == 42

    def test_a_wait_that_is_too_short_says_so(self, world: World) -> None:
        @world.app.task
        async def work() -> None: ...

        handle = world.call(work, "enqueue")

        with pytest.raises(ResultTimeout, match=f"durably why {handle.id}"):
            world.call(handle, "result", 0.01)

    def test_a_task_nobody_knows_is_not_waited_for(self, world: World) -> None:
        with pytest.raises(ResultExpired):
            world.call(world.app.handle(world.ids.task(None)), "result", 60)
        with pytest.raises(UnknownTask):
            world.call(world.app.handle(world.ids.task(None)), "info")

    def test_many_waiters_share_one_query(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        @world.app.task
        async def work(number: int) -> int:
            return number

        queries = []

        async def story() -> list[int]:
            handles = [await work.aenqueue(number) for number in range(50)]
            waiting = [asyncio.create_task(handle.aresult(60)) for handle in handles]
            await asyncio.sleep(0)
            arun = world.store.arun

            async def counted(op: Operation[object]) -> object:
                queries.append(op.name)
                return await arun(op)

            monkeypatch.setattr(world.store, "arun", counted)
            await world.app.atick()
            return await asyncio.gather(*waiting)

        assert world.await_(story()) == list(range(50))
        assert 1 <= queries.count("watch") < 50

    def test_the_second_caller_of_a_unique_key_gets_the_first_ones_handle(self, world: World) -> None:
        @world.app.task
        async def charge(order: str, cents: int) -> int:
            return cents

        once = charge.using(unique="order-1")
        first = world.call(once, "enqueue", "o", 5)
        second = world.call(once, "enqueue", "o", 5)
        assert (first.existing, second.existing, first.id) == (False, True, second.id)
        with pytest.raises(Conflict):
            world.call(once, "enqueue", "o", 6)
        world.tick()

        assert world.call(second, "result", 5) == 5

    def test_bulk_counts_what_existed_already(self, world: World) -> None:
        @world.app.task
        async def work(number: int) -> None: ...

        calls = [work.using(unique=Unique(f"n{number % 3}", scope="forever")).call(number % 3) for number in range(9)]
        done = world.call(world.app, "enqueue_many", calls)

        assert (done.accepted, done.existing) == (3, 6)

    def test_tasks_are_listed_newest_first_with_filters_and_pages(self, world: World) -> None:
        @world.app.task
        async def one() -> None: ...

        @world.app.task(queue="other", tags=["red", "blue"])
        async def two() -> None: ...

        ids = []
        for index in range(6):
            world.advance(1)
            ids.append(world.call(two if index % 2 else one, "enqueue").id)
        listed = [info.id for info in world.call(world.app.tasks, "list")]
        assert listed == ids[::-1]
        assert [info.id for info in world.call(world.app.tasks, "list", task="one")] == ids[::2][::-1]
        assert [info.id for info in world.call(world.app.tasks, "list", queue="other")] == ids[1::2][::-1]
        assert [info.id for info in world.call(world.app.tasks, "list", tag="blue")] == ids[1::2][::-1]
        assert world.call(world.app.tasks, "list", tag="blu") == []
        assert [info.id for info in world.call(world.app.tasks, "list", limit=2, before=listed[1])] == listed[2:4]
        world.tick()
        assert len(world.call(world.app.tasks, "list", state="done")) == 6
        assert world.call(world.app.tasks, "list", state="ready") == []

    def test_a_short_id_finds_its_task_if_it_is_the_only_one(self, world: World) -> None:
        @world.app.task
        async def work() -> None: ...

        first = world.call(work, "enqueue")
        second = world.call(work, "enqueue")

        assert world.app.tasks.find(first.id[:35]).id in (first.id, second.id)
        with pytest.raises(UnknownTask, match="ambiguous"):
            world.app.tasks.find(first.id[:8])
        with pytest.raises(UnknownTask, match="no task"):
            world.app.tasks.find("ffffffff")
        with pytest.raises(UnknownTask, match="not a task id"):
            world.app.tasks.find("%")
