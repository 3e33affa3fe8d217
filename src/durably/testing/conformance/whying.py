"""Why: one sentence for every place where a task can be."""

from __future__ import annotations

from durably.stores.operations.control import set_limit, set_queue
from durably.stores.operations.sweep import mark_dead, open_session
from durably.testing.world import LEASE, World

KNOWS = '{"queues":["default"],"names":["work"]}'


def why(world: World, task_id: str) -> tuple[str, str]:
    found = world.call(world.app, "why", task_id)
    return found.code, found.sentence


def serve(world: World, session: str = "s", info: str = KNOWS) -> str:
    world.run(open_session(session, LEASE, "host-1", 4711, info))
    return session


class Whying:
    def test_no_worker(self, world: World) -> None:
        assert why(world, world.add())[0] == "no_worker"

    def test_nobody_serves_its_queue(self, world: World) -> None:
        serve(world)
        code, sentence = why(world, world.add(queue="reports"))

        assert code == "queue_not_served"
        assert "'reports'" in sentence

    def test_nobody_knows_its_name(self, world: World) -> None:
        serve(world)
        code, sentence = why(world, world.add(name="from the future"))

        assert code == "unknown_name"
        assert "from the future" in sentence

    def test_next_or_behind_others(self, world: World) -> None:
        serve(world)
        first = world.add()
        world.advance(1)
        second = world.add()

        assert why(world, first)[0] == "next"
        assert why(world, second) == (
            "behind_others",
            "It is ready and waits for a free slot: 1 ready tasks of its queue come before it.",
        )

    def test_not_due_until(self, world: World) -> None:
        serve(world)
        code, sentence = why(world, world.add(due_in=90_000_000))

        assert code == "not_due"
        assert "in 1m 30s" in sentence

    def test_waits_for_its_next_attempt(self, world: World) -> None:
        for key in (None, "k"):
            world.add(key=key)
            [task] = world.claim(serve(world, f"s-{key}"))
            world.apply(world.failing(task))
            code, sentence = why(world, task.id)

            assert code == "retry"
            assert "attempt 1 failed with Boom: it broke" in sentence

    def test_behind_the_head_of_its_key(self, world: World) -> None:
        head, behind = world.add(key="k"), world.add(key="k")
        world.claim(serve(world))
        code, sentence = why(world, behind)

        assert code == "behind_head"
        assert head in sentence
        assert "which is running" in sentence

    def test_its_key_is_paused(self, world: World) -> None:
        world.add(key="k", policy="pause")
        behind = world.add(key="k")
        [task] = world.claim(serve(world))
        world.apply(world.failing(task, permanent=True))

        for task_id in (task.id, behind):
            code, sentence = why(world, task_id)
            assert code == "key_paused"
            assert "it broke" in sentence
            assert "durably keys resume default k" in sentence

    def test_its_queue_is_paused_or_draining(self, world: World) -> None:
        serve(world)
        world.run(set_queue("default", "paused"))
        assert why(world, world.add())[0] == "queue_paused"
        world.run(set_queue("default", "draining"))
        world.advance(1)
        assert why(world, world.add())[0] == "queue_draining"

    def test_a_limit_is_reached(self, world: World) -> None:
        session = serve(world)
        world.run(set_limit("q:default", 1, None, 1))
        world.run(set_limit("g:tenant", 0, None, 1))
        world.add()
        world.claim(session)

        assert why(world, world.add()) == (
            "limit_reached",
            "The limit of the queue 'default' is reached: 1 of 1 are running.",
        )
        world.run(set_limit("q:default", None, None, 1))
        assert why(world, world.add(gate="tenant"))[0] == "limit_reached"

    def test_a_rate_is_reached(self, world: World) -> None:
        session = serve(world)
        world.run(set_limit("q:default", None, 0.1, 1))
        world.add()
        world.claim(session)
        code, sentence = why(world, world.add())

        assert code == "rate_limited"
        assert "in 10s" in sentence

    def test_it_is_running_until_its_lease_is_over(self, world: World) -> None:
        for key in (None, "k"):
            world.add(key=key)
            [task] = world.claim(serve(world, f"s-{key}"))
            code, sentence = why(world, task.id)
            assert code == "running"
            assert f"leased by session s-{key} (host-1, process 4711) until" in sentence
            world.advance(31)
            assert why(world, task.id)[0] == "lease_over"
            world.run(mark_dead())
            assert why(world, task.id)[0] == "orphaned"

    def test_it_must_run_alone(self, world: World) -> None:
        task_id = world.add()
        for number in range(2):
            world.claim(serve(world, f"s{number}"))
            world.let_die()
            world.advance(10)
            world.promote()
        serve(world)

        assert why(world, task_id)[0] == "runs_alone"

    def test_it_has_ended(self, world: World) -> None:
        session = serve(world)
        for _ in range(3):
            world.add()
        first, second, third = world.claim(session)
        world.finish(first)
        world.apply(world.failing(second, permanent=True))
        world.call(world.app.handle(third.id), "cancel", "changed my mind")

        assert why(world, first.id)[0] == "done"
        code, sentence = why(world, second.id)
        assert code == "dead"
        assert f"`durably dead replay {second.id}`" in sentence
        assert why(world, third.id)[0] == "stopping"
