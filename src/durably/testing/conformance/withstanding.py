"""Withstanding odd input: what one task, limit or row brings along harms nobody else."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from durably.core.retry import Retry
from durably.errors import BadOption, BadPayload, Discard, Snooze, StoreRejected
from durably.stores.operations.control import set_limit
from durably.stores.operations.read import Filter, list_tasks
from durably.testing.world import World
from durably.worker.context import current


@dataclasses.dataclass(slots=True)
class Note:
    text: str | None = None


class Mute(Discard):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Withstanding:
    def test_the_farthest_future_can_be_looked_at(self, world: World) -> None:
        handle = world.call(echoing(world).using(delay=4e12), "enqueue", 1)

        assert world.call(handle, "info").due_at == datetime.max.replace(tzinfo=UTC)
        assert world.call(handle, "why").code == "not_due"

    def test_a_number_that_no_clock_can_count_is_a_bad_option(self, world: World) -> None:
        with pytest.raises(BadOption, match="must be zero or more, and finite"):
            echoing(world).using(delay=10**400)

    def test_deep_values_and_slotted_ones_may_hold_nothing(self, world: World) -> None:
        deep: Any = None
        for _ in range(900):
            deep = [deep]
        handles = [world.call(echoing(world), "enqueue", value) for value in (deep, Note())]
        world.tick()

        assert [world.call(handle, "result", 60) for handle in handles] == [deep, {"text": None}]

    @pytest.mark.parametrize("given", [{"rate": "1e308/1s"}, {"rate": "1e-300/s"}, {"rate": 5}, {"concurrency": 2**31}])
    def test_a_limit_that_no_store_can_count_is_refused(self, world: World, given: dict[str, Any]) -> None:
        with pytest.raises(BadOption):
            world.call(world.app.queues, "limit", "default", **given)

    @pytest.mark.parametrize("rate", [math.inf, -1.0, 1e-300])
    def test_a_limit_that_makes_no_sense_holds_up_only_its_own_tasks(self, world: World, rate: float) -> None:
        world.run(set_limit("g:odd", None, rate, 1.0))
        limited = [world.add(gate="odd") for _ in range(3)]
        plain = world.add()
        session = world.session()
        claimed = {task.id for _ in range(2) for task in world.claim(session)}

        assert plain in claimed
        assert len(claimed.intersection(limited)) < 3

    @pytest.mark.parametrize("error", [Mute(), Snooze(10**400)])
    def test_an_exception_that_cannot_be_read_is_a_failure_of_its_attempt(self, world: World, error: Exception) -> None:
        @world.app.task(retry=Retry.never())
        async def work() -> None:
            raise error

        handle = world.call(work, "enqueue")
        world.tick()

        assert world.call(handle, "state") == "dead"

    def test_options_that_cannot_be_read_spoil_their_own_task_only(self, world: World) -> None:
        world.app.declare(_nothing, "work", (), {})
        spoiled = [world.add(options=data) for data in (b"\x81", b'{"x":' + b"[" * 100_000)]
        endless = world.add(options=b'{"retention":1e300}')
        fine = world.add()
        world.tick()

        assert [world.get(task_id).state for task_id in (*spoiled, endless, fine)] == ["dead", "dead", "dead", "done"]

    def test_details_that_cannot_be_stored_are_a_clear_failure(self, world: World) -> None:
        @world.app.task(retry=Retry.never())
        async def work() -> None:
            await current().asave(math.nan)

        handle = world.call(work, "enqueue")
        world.tick()

        [attempt] = world.call(handle, "attempts")
        assert "the details of 'work' cannot be stored: NaN" in attempt.message

    def test_a_result_that_cannot_be_read_is_a_clear_error(self, world: World) -> None:
        @world.app.task
        async def work() -> int:
            return "seven"  # type: ignore[return-value]

        handle = world.call(work, "enqueue")
        world.tick()

        with pytest.raises(BadPayload, match="its result cannot be read"):
            world.call(handle, "result", 60)

    def test_a_queue_that_is_named_twice_may_be_paused(self, world: World) -> None:
        world.call(world.app.queues, "pause", "default")

        assert world.app.worker(queues=["default", "default"]) is not None
        assert world.app.served_queues(["default", "default"]) == ("default",)

    def test_a_key_that_cannot_be_is_not_paused(self, world: World) -> None:
        with pytest.raises(BadOption, match="NUL"):
            world.call(world.app.keys, "pause", "default", "a\0b")

    def test_a_text_that_no_store_can_keep_is_refused(self, world: World) -> None:
        with pytest.raises(StoreRejected):
            world.run(list_tasks(Filter(key="\ud800"), 5))


def echoing(world: World) -> Any:
    known = world.app.definitions.get("echo")
    return world.app.declare(_echo, "echo", (), {}) if known is None else known


async def _echo(value: Any) -> Any:
    return value


async def _nothing() -> None: ...
