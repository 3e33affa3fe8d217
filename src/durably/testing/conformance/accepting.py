"""Accepting tasks: what was accepted is there, once, as it was given."""

from __future__ import annotations

import pytest

from durably.core.ids import partition_of
from durably.core.moment import SECOND
from durably.errors import BadPayload
from durably.testing.world import World


class Accepting:
    def test_an_accepted_task_is_ready_with_what_it_was_given(self, world: World) -> None:
        task = world.get(world.add(payload=b'{"n":1}', priority=7, tags='["red"]', options=b'{"crash_cap":5}'))

        assert (task.state, task.name, task.queue, task.payload) == ("ready", "work", "default", b'{"n":1}')
        assert (task.priority, task.tags, task.options) == (7, '["red"]', b'{"crash_cap":5}')
        assert (task.attempt, task.spent, task.crashes, task.token) == (0, 0, 0, 0)
        assert task.created_at == task.ready_at == world.clock.now()

    def test_a_delayed_task_is_not_due_before_its_time(self, world: World) -> None:
        task_id = world.add(due_in=60 * SECOND)
        session = world.session()

        world.advance(59.999)
        assert world.promote() == 0
        assert world.claim(session) == []
        assert world.get(task_id).state == "delayed"

        world.advance(0.001)
        assert world.promote() == 1
        assert [task.id for task in world.claim(session)] == [task_id]

    def test_a_task_for_a_moment_in_the_past_is_ready_at_once(self, world: World) -> None:
        task = world.get(world.add(at=world.clock.now() - SECOND))

        assert (task.state, task.ready_at) == ("ready", world.clock.now())

    def test_a_task_for_a_moment_in_the_future_waits_for_it(self, world: World) -> None:
        task = world.get(world.add(at=world.clock.now() + SECOND))

        assert (task.state, task.ready_at) == ("delayed", world.clock.now() + SECOND)

    def test_the_same_id_is_accepted_once(self, world: World) -> None:
        draft = world.draft()
        world.accept(draft)
        world.accept(draft)

        assert len(world.claim(world.session())) == 1

    def test_a_repeated_enqueue_does_not_revive_a_task_that_ended_meanwhile(self, world: World) -> None:
        draft = world.draft()
        world.accept(draft)
        world.finish(*world.claim(world.session("s")))
        world.accept(draft, again=True)

        assert world.get(draft.id).state == "done"
        assert world.claim("s") == []

    def test_every_task_knows_its_partition_and_a_key_has_one(self, world: World) -> None:
        first, second = world.add(key="customer-7"), world.add(key="customer-7")

        assert partition_of(first) == partition_of(second)

    def test_a_thousand_tasks_in_one_statement_keep_their_order(self, world: World) -> None:
        drafts = [world.draft() for _ in range(1000)]
        world.accept(*drafts)

        tasks = world.claim(world.session(), room=1000)

        assert [task.id for task in sorted(tasks, key=lambda task: task.seq)] == [draft.id for draft in drafts]

    def test_many_calls_from_a_generator_are_accepted_in_batches(self, world: World) -> None:
        @world.app.task
        async def work(n: int) -> None: ...

        done = world.call(world.app, "enqueue_many", (work.call(n) for n in range(2500)))

        assert (done.accepted, done.existing) == (2500, 0)
        [queue] = world.call(world.app.queues, "list")
        assert queue.counts == {"ready": 2500}

    def test_a_payload_over_the_limit_is_refused_with_both_sizes(self, world: World) -> None:
        @world.app.task
        async def work(text: str) -> None: ...

        with pytest.raises(BadPayload, match=r"take 300,0.. bytes, and the limit is 262,144"):
            world.call(work, "enqueue", "x" * 300_000)
        assert world.call(world.app.queues, "list") == []

    def test_text_of_every_plane_survives(self, world: World) -> None:
        told = "\u0001 \U0001f680 \u2028 ä \\u0000 '; DROP TABLE tasks; --"
        seen: list[str] = []

        @world.app.task
        async def work(text: str) -> str:
            seen.append(text)
            return text

        handle = world.call(work.using(key=told, tags=[told]), "enqueue", told)
        world.tick()

        assert seen == [told]
        assert world.call(handle, "result", 5) == told
        assert world.call(handle, "info").tags == [told]
