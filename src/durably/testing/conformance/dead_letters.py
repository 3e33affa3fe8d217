"""Dead letters: kept whole, listed, replayed, purged; and the hook that cannot be lost."""

from __future__ import annotations

import pytest

from durably.app import Durably
from durably.client.definition import DeadLetter, Definition
from durably.core.retry import Retry
from durably.errors import BadOption, UnknownTask
from durably.stores.operations.sweep import mark_dead
from durably.testing.world import World
from durably.worker.context import current


def broken(world: World, name: str = "broken", **options: object) -> tuple[Definition[[int], None], dict[str, bool]]:
    """A task that fails until it is mended."""
    mended = {"now": False}

    async def work(number: int) -> None:
        if not mended["now"]:
            raise ValueError(f"number {number} is broken")

    declared = world.app.declare(work, name, (), {"retry": Retry.never(), **options})  # type: ignore[typeddict-item]
    return declared, mended


class DeadLetters:
    def test_a_dead_letter_keeps_its_payload_and_every_error(self, world: World) -> None:
        task, _ = broken(world, retry=Retry.constant(3, 1))
        handle = world.call(task, "enqueue", 7)
        for _ in range(3):
            world.tick()
            world.advance(1)

        [letter] = world.call(world.app.dead, "list")
        assert (letter.id, letter.state, letter.arguments) == (handle.id, "dead", {"number": 7})
        attempts = world.call(handle, "attempts")
        assert [attempt.attempt for attempt in attempts] == [1, 2, 3]
        assert all("number 7 is broken" in attempt.trace for attempt in attempts)

    def test_a_replay_starts_a_new_cycle_and_keeps_the_lifetime_number(self, world: World) -> None:
        task, mended = broken(world, retry=Retry.constant(2, 0))
        handle = world.call(task, "enqueue", 1)
        world.tick(2)
        assert world.call(handle, "state") == "dead"

        assert world.call(world.app.dead, "replay", handle.id) == 1
        info = world.call(handle, "info")
        assert (info.state, info.attempt, info.spent, info.crashes) == ("ready", 2, 0, 0)
        world.tick()
        assert world.call(handle, "info").spent == 1
        mended["now"] = True
        world.tick()

        info = world.call(handle, "info")
        assert (info.state, info.attempt) == ("done", 4)
        assert [attempt.attempt for attempt in world.call(handle, "attempts")] == [1, 2, 3]

    def test_many_can_be_replayed_by_task_and_queue(self, world: World) -> None:
        first, _ = broken(world, "first")
        second, _ = broken(world, "second", queue="other")
        for number in range(3):
            world.call(first, "enqueue", number)
            world.call(second, "enqueue", number)
        world.tick()

        assert world.call(world.app.dead, "replay", task="first") == 3
        assert world.call(world.app.dead, "replay", queue="other", limit=2) == 2
        assert len(world.call(world.app.dead, "list")) == 1

    def test_replayed_tasks_of_a_key_keep_their_order_behind_what_waits(self, world: World) -> None:
        seen = []
        mended = {"now": False}

        @world.app.task(retry=Retry.never())
        async def ordered(number: int) -> None:
            if not mended["now"]:
                raise ValueError("no")
            seen.append(number)

        for number in range(3):
            world.call(ordered.using(key="k"), "enqueue", number)
            world.tick()
        mended["now"] = True
        world.call(ordered.using(key="k"), "enqueue", 99)
        assert world.call(world.app.dead, "replay") == 3
        world.tick(5)

        assert seen == [99, 0, 1, 2]

    def test_what_is_not_dead_cannot_be_replayed(self, world: World) -> None:
        task, _ = broken(world)
        handle = world.call(task, "enqueue", 1)

        with pytest.raises(UnknownTask, match="is ready, not a dead letter"):
            world.call(world.app.dead, "replay", handle.id)

    def test_purged_letters_are_gone_with_their_attempts(self, world: World) -> None:
        task, _ = broken(world)
        handles = [world.call(task, "enqueue", number) for number in range(3)]
        world.tick()

        assert world.call(world.app.dead, "purge", handles[0].id) == 1
        assert not world.exists(handles[0].id)
        assert world.call(handles[0], "attempts") == []
        assert world.call(world.app.dead, "purge", older_than="1h") == 0
        world.advance(3601)
        assert world.call(world.app.dead, "purge", older_than="1h") == 2

    def test_ids_and_filters_exclude_each_other(self, world: World) -> None:
        task, _ = broken(world)
        handle = world.call(task, "enqueue", 1)
        world.tick()

        with pytest.raises(BadOption, match="not both"):
            world.call(world.app.dead, "purge", handle.id, older_than="30d")
        with pytest.raises(BadOption, match="not both"):
            world.call(world.app.dead, "replay", handle.id, task="broken")

    def test_purging_everything_must_be_said(self, world: World) -> None:
        task, _ = broken(world)
        world.call(task, "enqueue", 1)
        world.tick()

        with pytest.raises(BadOption, match="everything"):
            world.call(world.app.dead, "purge")
        assert world.call(world.app.dead, "purge", everything=True) == 1

    def test_a_dead_letter_outlives_every_retention(self, world: World) -> None:
        task, _ = broken(world, retention="1s")
        handle = world.call(task, "enqueue", 1)
        world.tick()
        world.advance(10 * 365 * 86400)
        world.tick()

        assert world.call(handle, "state") == "dead"

    def test_the_hook_is_a_task_that_commits_with_the_death(self, world: World) -> None:
        letters: list[DeadLetter] = []

        @world.app.task(queue="alarms")
        async def alarm(letter: DeadLetter) -> None:
            letters.append(letter)

        task, _ = broken(world, on_dead=alarm)
        handle = world.call(task, "enqueue", 1)
        world.tick()
        assert letters == []
        assert [info.name for info in world.call(world.app.tasks, "list", queue="alarms")] == ["alarm"]
        world.tick()

        [letter] = letters
        assert (letter.id, letter.name, letter.attempt) == (handle.id, "broken", 1)
        assert "number 1 is broken" in letter.reason

    def test_a_crash_makes_the_hook_run_too(self, world: World) -> None:
        world.add(once=True, options=b'{"on_dead":"alarm"}')
        world.claim(world.session())
        world.let_die()

        [hook] = world.claim(world.session())
        assert hook.name == "alarm"
        assert b"may have run" in hook.payload

    def test_a_replayed_letter_that_dies_again_calls_its_hook_again(self, world: World) -> None:
        task_id = world.add(options=b'{"on_dead":"alarm"}')
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task, permanent=True))
        [hook] = world.claim(session)
        world.finish(hook)
        world.call(world.app.dead, "replay", task_id)
        [task] = world.claim(session)
        world.apply(world.failing(task, permanent=True))

        assert [task.name for task in world.claim(session)] == ["alarm"]

    def test_a_payload_that_cannot_be_read_is_a_dead_letter_of_its_own(self, world: World) -> None:
        seen = []

        @world.app.task(retry=Retry.never())
        async def work(number: int) -> None:
            seen.append(number)

        bad = [world.add(name="work", payload=payload) for payload in (b"\xff\xfe", b"[]", b'{"number":"x"}', b"")]
        good = [world.call(work, "enqueue", number) for number in range(3)]
        worse = world.add(name="work", options=b"not json")
        world.tick()

        assert sorted(seen) == [0, 1, 2]
        assert {world.call(handle, "state") for handle in good} == {"done"}
        assert {world.get(task_id).state for task_id in [*bad, worse]} == {"dead"}
        assert world.get(bad[0]).payload == b"\xff\xfe"

    def test_hooks_and_payloads_pass_through_the_codec(self, world: World) -> None:
        class Backwards:
            def encode(self, data: bytes) -> bytes:
                return data[::-1]

            def decode(self, data: bytes) -> bytes:
                return data[::-1]

        app = Durably(world.store, clock=world.clock, codec=Backwards())
        letters: list[DeadLetter] = []

        @app.task
        async def alarm(letter: DeadLetter) -> None:
            letters.append(letter)

        @app.task(on_dead=alarm, retry=Retry.never())
        async def work(secret: str) -> str:
            assert secret == "swordfish"
            if current().attempt == 1:
                raise ValueError("once")
            return secret

        handle = world.call(work, "enqueue", "swordfish")
        assert b"swordfish" not in world.get(handle.id).payload
        once = world.call(work.using(at_most_once=True, queue="elsewhere"), "enqueue", "swordfish")
        world.claim(world.session(), queues=("elsewhere",))
        world.advance(31)
        world.run(mark_dead())
        world.call(app, "tick")
        world.call(app, "tick")

        assert {letter.id for letter in letters} == {handle.id, once.id}
        world.call(app.dead, "replay", handle.id)
        world.call(app, "tick")
        assert world.call(handle, "result", 5) == "swordfish"
