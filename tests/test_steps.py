"""Handlers that end in their first step share a task of the event loop, and nobody can tell; who waits has its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from durably import Durably
from durably.worker import running
from durably.worker.running import AT_ONCE
from durably.worker.steps import Rest, as_coroutine

mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="calm")
held: list[Any] = []


@pytest.fixture
def app(sqlite_path: Path) -> Durably:
    return Durably(f"sqlite:///{sqlite_path}")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the loop turns after so many attempts only."""
    monkeypatch.setattr(running, "TURN", 3600.0)


def mine() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_quick_handlers_take_turns_in_one_task(app: Durably) -> None:
    seen: list[int] = []

    @app.task
    async def quick() -> None:
        seen.append(id(mine()))

    app.enqueue_many(quick.call() for _ in range(AT_ONCE))
    app.tick()

    assert len(seen) == AT_ONCE
    assert len(set(seen)) == 1


def test_the_loop_turns_between_handlers_that_take_their_time(app: Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "TURN", -1.0)
    turns: list[int] = []

    @app.task
    async def thorough() -> None:
        asyncio.get_running_loop().call_soon(lambda: turns.append(len(began)))
        began.append(None)

    began: list[None] = []
    app.enqueue_many(thorough.call() for _ in range(5))
    app.tick()

    assert turns == [1, 2, 3, 4, 5]


def keep(task: asyncio.Task[Any]) -> None:
    held.append(task)


def keep_weakly(task: asyncio.Task[Any]) -> None:
    held.append(WeakKeyDictionary({task: "a state of its own"}))


def call_back(task: asyncio.Task[Any]) -> None:
    task.add_done_callback(held.append)


def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    task.uncancel()
    task.cancel()


@pytest.mark.parametrize("touch", [keep, keep_weakly, call_back, cancel])
def test_who_keeps_hold_of_its_task_leaves_another_one_to_the_next(
    app: Durably, touch: Callable[[asyncio.Task[Any]], None]
) -> None:
    seen: list[int] = []

    @app.task
    async def quick() -> None:
        seen.append(mine().cancelling())
        assert not any(mine() is one or (isinstance(one, WeakKeyDictionary) and mine() in one) for one in held)
        assert not mine()._callbacks
        touch(mine())

    held.clear()
    app.enqueue_many(quick.call() for _ in range(3))
    app.tick()

    assert seen == [0, 0, 0]
    assert app.queues.list()[0].counts == {"done": 3}


def test_who_waits_goes_on_in_the_task_and_the_variables_in_which_it_began(app: Durably) -> None:
    seen: list[tuple[str, bool, str, str]] = []
    turns: list[str] = []

    @app.task
    async def slow(name: str) -> None:
        before = mine()
        mood.set(name)
        turns.append(name)
        await asyncio.sleep(0)
        turns.append(name)
        await asyncio.sleep(0)
        seen.append((name, mine() is before, mood.get(), mine().get_name()))

    @app.task
    async def quick() -> None:
        turns.append("quick")
        assert mood.get() == "calm"

    first, second = slow.enqueue("first"), slow.enqueue("second")
    quick.enqueue()
    app.tick()

    assert sorted(seen) == [("first", True, "first", first.id), ("second", True, "second", second.id)]
    assert turns[0] == "first"
    assert turns.index("second") < len(turns) - 1 - turns[::-1].index("first"), (
        "the second began before the first ended"
    )


def test_what_belongs_to_the_running_task_works_inside_a_handler(app: Durably) -> None:
    @app.task
    async def work() -> list[str]:
        said = []
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            said.append("timed out")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                group.create_task(failing())
        except* ValueError as caught:
            said.append(str(caught.exceptions[0]))
        return said

    async def failing() -> None:
        raise ValueError("one of a group")

    handle = work.enqueue()
    app.tick()
    assert handle.result(timeout="5s") == ["timed out", "one of a group"]


async def test_anything_that_can_be_awaited_can_be_driven_step_by_step() -> None:
    async def coroutine() -> str:
        return "now"

    async def waits() -> str:
        await asyncio.sleep(0)
        return "later"

    work = coroutine()
    assert as_coroutine(work) is work
    assert await work == "now"
    assert await as_coroutine(asyncio.ensure_future(waits())) == "later"


async def test_what_is_left_of_a_coroutine_is_closed_with_whoever_awaits_it() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(mood.get())

    variables = contextvars.copy_context()
    variables.run(mood.set, "its own")
    coroutine = work()
    waits_for = variables.run(coroutine.send, None)

    async def outer() -> None:
        await Rest(coroutine, variables, waits_for)

    outside = outer()
    outside.send(None)
    outside.close()
    assert len(ended) == 1


async def test_handlers_that_wait_begin_in_the_same_turn_of_the_loop(app: Durably) -> None:
    turn = 0
    seen: list[int] = []

    @app.task
    async def slow() -> None:
        seen.append(turn)
        await asyncio.sleep(0)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await app.aenqueue_many(slow.call() for _ in range(AT_ONCE + 1))
    await app.atick()
    counting.cancel()

    first, *others = seen
    assert first < others[0]
    assert len(others) == AT_ONCE
    assert len(set(others)) == 1
