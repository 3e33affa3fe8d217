"""Handlers: arguments and results as they are typed, context, successors, progress, timeouts."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from durably.core.retry import Retry
from durably.errors import BadPayload, Discard, DurablyError, TaskCancelled, TaskFailed
from durably.testing.world import World
from durably.worker.context import current

stamp: ContextVar[str] = ContextVar("stamp", default="clean")


@dataclass
class Order:
    id: UUID
    total: Decimal
    at: datetime


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Handlers:
    def test_arguments_and_result_arrive_in_their_own_types(self, world: World) -> None:
        seen: list[Any] = []

        @world.app.task
        async def work(order: Order, data: bytes, points: list[Point], *rest: int, flag: bool = False) -> Order:
            seen.append((order, data, points, rest, flag))
            return order

        order = Order(UUID(int=7), Decimal("12.50"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        handle = world.call(work, "enqueue", order, b"\x00\xff", [Point(1), Point(2, 3)], 4, 5, flag=True)
        world.tick()

        assert seen == [(order, b"\x00\xff", [Point(1), Point(2, 3)], (4, 5), True)]
        assert world.call(handle, "result", 5) == order

    def test_wrong_arguments_are_refused_when_they_are_given(self, world: World) -> None:
        @world.app.task
        async def work(number: int) -> None: ...

        with pytest.raises(TypeError, match="missing a required argument: 'number'"):
            world.call(work, "enqueue")
        with pytest.raises(BadPayload, match=r"Expected `int`, got `str`"):
            world.call(work, "enqueue", "seven")
        with pytest.raises(BadPayload, match="NaN"):
            world.call(world.app.declare(_anything, "anything", (), {}), "enqueue", float("nan"))
        with pytest.raises(BadPayload):
            world.call(world.app.definitions["anything"], "enqueue", "\ud800")
        with pytest.raises(BadPayload):
            world.call(world.app.definitions["anything"], "enqueue", object())
        assert world.call(world.app.queues, "list") == []

    def test_plain_functions_run_in_threads(self, world: World) -> None:
        @world.app.task
        def work() -> bool:
            return threading.current_thread() is threading.main_thread()

        handle = world.call(work, "enqueue")
        world.tick()

        assert world.call(handle, "result", 5) is False

    def test_a_handler_knows_who_it_is(self, world: World) -> None:
        seen: list[tuple[str, str, int, int, bool, str | None]] = []

        def note() -> None:
            me = current()
            seen.append((me.id, me.name, me.attempt, me.token, me.cancelled, me.key))

        @world.app.task
        async def on_loop() -> None:
            note()

        @world.app.task
        def in_thread() -> None:
            note()

        first = world.call(on_loop.using(key="k"), "enqueue")
        second = world.call(in_thread, "enqueue")
        world.tick()

        told = {row[0]: row[1:] for row in seen}
        for handle, name, key in ((first, "on_loop", "k"), (second, "in_thread", None)):
            info = world.call(handle, "info")
            assert told[handle.id] == (name, 1, info.token, False, key)

    def test_outside_a_handler_there_is_no_current_task(self, world: World) -> None:
        with pytest.raises(DurablyError, match="inside a running task"):
            current()

    def test_contextvars_of_one_handler_do_not_reach_the_next(self, world: World) -> None:
        seen = []

        @world.app.task
        async def work() -> None:
            seen.append(stamp.get())
            stamp.set("dirty")

        @world.app.task
        def thread() -> None:
            seen.append(stamp.get())
            stamp.set("dirty")

        for _ in range(3):
            world.call(work, "enqueue")
            world.call(thread, "enqueue")
        world.tick()

        assert seen == ["clean"] * 6

    def test_a_successor_is_accepted_with_the_completion(self, world: World) -> None:
        seen: list[int] = []

        @world.app.task
        async def second(number: int) -> None:
            seen.append(number)

        @world.app.task
        async def first() -> None:
            current().then(second.call(1))
            current().then(second.using(delay="1m").call(2))

        world.call(first, "enqueue")
        world.tick(2)
        assert seen == [1]
        world.advance(60)
        world.tick()
        assert seen == [1, 2]

    def test_a_failed_attempt_leaves_no_successor(self, world: World) -> None:
        seen: list[int] = []

        @world.app.task
        async def second() -> None:
            seen.append(current().attempt)

        @world.app.task(retry=Retry.constant(2, 0))
        async def first() -> None:
            current().then(second.call())
            if current().attempt == 1:
                raise ValueError("not yet")

        world.call(first, "enqueue")
        world.tick(4)

        assert seen == [1]

    def test_progress_is_seen_and_details_reach_the_next_attempt(self, world: World) -> None:
        seen: list[Any] = []

        @world.app.task(retry=Retry.constant(3, 0))
        async def work() -> None:
            seen.append(current().details)
            current().progress(0.25, "a quarter")
            await current().asave({"page": current().attempt})
            seen.append(current().details)
            raise ValueError("again")

        handle = world.call(work, "enqueue")
        world.tick()
        progress = world.call(handle, "progress")
        assert (progress.fraction, progress.message) == (0.25, "a quarter")
        world.tick()

        assert seen == [None, {"page": 1}, {"page": 1}, {"page": 2}]

    def test_a_thread_saves_details_synchronously(self, world: World) -> None:
        seen: list[Any] = []

        @world.app.task(retry=Retry.constant(2, 0))
        def work() -> None:
            seen.append(current().details)
            current().save([current().attempt])
            raise ValueError("again")

        world.call(work, "enqueue")
        world.tick(2)

        assert seen == [None, [1]]

    def test_a_discarded_task_is_cancelled_with_its_reason(self, world: World) -> None:
        @world.app.task
        async def work() -> None:
            raise Discard("the order is gone")

        handle = world.call(work, "enqueue")
        world.tick()

        with pytest.raises(TaskCancelled, match="discarded: the order is gone"):
            world.call(handle, "result", 5)

    def test_a_coroutine_that_takes_too_long_is_stopped_and_recorded(self, world: World) -> None:
        @world.app.task(timeout="10ms", retry=Retry.never())
        async def slow() -> None:
            await asyncio.Event().wait()

        handle = world.call(slow, "enqueue")
        world.tick()

        with pytest.raises(TaskFailed, match="timed out after"):
            world.call(handle, "result", 5)
        [attempt] = world.call(handle, "attempts")
        assert attempt.outcome == "timed out"

    def test_a_thread_that_takes_too_long_is_recorded_while_it_keeps_its_slot(self, world: World) -> None:
        release = threading.Event()
        events: list[str] = []
        world.app.events.subscribe(lambda event: events.append(event.kind))

        @world.app.task(timeout="10ms", retry=Retry.never())
        def hung() -> str:
            release.wait()
            return "too late"

        async def story() -> tuple[str, int, list[int]]:
            worker = world.app.worker(concurrency=2, poll=0.05, stuck_limit=1)
            serving = asyncio.create_task(worker.run())
            handle = await hung.aenqueue()
            with pytest.raises(TaskFailed, match="timed out"):
                await handle.aresult(60)
            stuck = [0]
            while stuck == [0]:
                stuck = [session.stuck for session in await world.app.sessions.alist()]
                await asyncio.sleep(0.01)
            release.set()
            worker.stop()
            await serving
            return (await handle.astate()), len(await handle.aattempts()), stuck

        assert world.await_(story()) == ("dead", 1, [1])
        assert "stuck" in events
        assert "worker_stuck" in events

    def test_each_attempt_that_hangs_keeps_a_slot_even_if_they_are_of_one_task(self, world: World) -> None:
        release = threading.Event()
        events: list[str] = []
        world.app.events.subscribe(lambda event: events.append(event.kind))

        @world.app.task(timeout="10ms", retry=Retry.after(0))
        def hung() -> None:
            release.wait()

        @world.app.task
        async def other() -> None: ...

        async def story() -> str:
            worker = world.app.worker(concurrency=2, poll=0.05, stuck_limit=2)
            serving = asyncio.create_task(worker.run())
            handle = await hung.aenqueue()
            with pytest.raises(TaskFailed, match="timed out"):
                await handle.aresult(60)
            waiting = await other.aenqueue()
            state = await waiting.astate()
            while "worker_stuck" not in events and state != "done":
                state = await waiting.astate()
                await asyncio.sleep(0.01)
            release.set()
            worker.stop()
            await serving
            return state

        assert world.await_(story()) == "ready"
        assert "worker_stuck" in events

    def test_a_result_that_cannot_be_stored_is_a_clear_failure(self, world: World) -> None:
        @world.app.task
        async def work() -> Any:
            return object()

        handle = world.call(work, "enqueue")
        world.tick()

        with pytest.raises(TaskFailed, match="the result of 'work' cannot be stored"):
            world.call(handle, "result", 5)

    def test_a_handler_that_leaves_by_exit_or_cancellation_only_fails_itself(self, world: World) -> None:
        @world.app.task(retry=Retry.never())
        async def leaves() -> None:
            raise SystemExit(3)

        @world.app.task(retry=Retry.never())
        async def cancels() -> None:
            raise asyncio.CancelledError

        @world.app.task(retry=Retry.never())
        def exits() -> None:
            raise SystemExit(4)

        handles = [world.call(task, "enqueue") for task in (leaves, cancels, exits)]
        world.tick()

        assert [world.call(handle, "state") for handle in handles] == ["dead"] * 3

    def test_an_unknown_name_is_put_back_uncharged(self, world: World) -> None:
        task_id = world.add(name="from the future")
        keyed = world.add(name="from the future", key="k")
        world.tick()

        for found in (world.get(task_id), world.get(keyed)):
            assert found.state in ("delayed", "blocked")
            assert found.spent == 0
        world.advance(60)

        @world.app.task(name="from the future")
        async def known() -> None: ...

        world.tick()
        assert {world.get(task_id).state, world.get(keyed).state} == {"done"}

    def test_a_renamed_task_runs_under_its_alias(self, world: World) -> None:
        task_id = world.add(name="old_name")

        @world.app.task(aliases=("old_name",))
        async def new_name() -> None: ...

        world.tick()
        assert world.get(task_id).state == "done"

    def test_a_signature_can_grow_defaults_while_tasks_wait(self, world: World) -> None:
        seen: list[tuple[int, str]] = []
        world.add(name="work", payload=b'{"number":1}')

        @world.app.task
        async def work(number: int, colour: str = "blue") -> None:
            seen.append((number, colour))

        world.tick()
        assert seen == [(1, "blue")]


async def _anything(value: Any) -> None: ...
