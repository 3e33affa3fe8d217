"""Queues: paused, drained, resumed; and namespaces that do not see each other."""

from __future__ import annotations

from durably.app import Durably
from durably.core.retry import Retry
from durably.testing.world import World


class Queues:
    def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(self, world: World) -> None:
        world.call(world.app.queues, "pause", "default")
        ids = {world.add(), world.add(key="k"), world.add(gate="g")}
        session = world.session()

        assert world.claim(session) == []
        world.call(world.app.queues, "resume", "default")
        assert {task.id for task in world.claim(session)} == ids

    def test_pausing_one_queue_leaves_the_others_open(self, world: World) -> None:
        world.call(world.app.queues, "pause", "default")
        world.add()
        other = world.add(queue="other")

        assert [task.id for task in world.claim(world.session(), queues=("default", "other"))] == [other]

    def test_a_draining_queue_runs_what_it_had_and_leaves_what_comes_later(self, world: World) -> None:
        before = {world.add(), world.add(key="a"), world.add(gate="g")}
        world.advance(1)
        world.call(world.app.queues, "drain", "default")
        world.advance(1)
        after = {world.add(), world.add(key="b"), world.add(gate="h")}
        session = world.session()

        assert {task.id for task in world.claim(session)} == before
        assert world.claim(session) == []
        world.call(world.app.queues, "resume", "default")
        world.advance(2)
        assert {task.id for task in world.claim(session)} == after

    def test_a_retry_of_what_a_draining_queue_had_still_runs(self, world: World) -> None:
        task_id = world.add()
        session = world.session()
        [task] = world.claim(session)
        world.call(world.app.queues, "drain", "default")
        world.apply(world.failing(task))
        world.advance(10)
        world.promote()

        assert [task.id for task in world.claim(session)] == [task_id]

    def test_the_list_counts_by_state_and_shows_setting_and_limit(self, world: World) -> None:
        world.add()
        world.add(due_in=10_000_000)
        world.add(key="k")
        world.add(key="k")
        world.claim(world.session(), room=2)
        world.call(world.app.queues, "pause", "default")
        world.call(world.app.queues, "limit", "default", concurrency=7, rate="3/s")

        [queue] = world.call(world.app.queues, "list")

        assert queue.counts == {"leased": 2, "delayed": 1, "blocked": 1}
        assert (queue.name, queue.state) == ("default", "paused")
        assert queue.limit is not None
        assert (queue.limit.concurrency, queue.limit.rate) == (7, 3.0)

    def test_namespaces_have_queues_of_their_own(self, world: World) -> None:
        tenant = Durably(world.store, namespace="tenant", clock=world.clock)
        seen = []

        @tenant.task(name="work")
        async def theirs() -> None:
            seen.append("tenant")

        @world.app.task(name="work")
        async def ours() -> None:
            seen.append("default")

        world.call(theirs, "enqueue")
        assert world.tick() == 0
        world.call(ours, "enqueue")
        assert world.call(tenant, "tick") == 1
        assert seen == ["tenant"]
        assert world.tick() == 1
        assert seen == ["tenant", "default"]

    def test_a_call_can_go_to_another_queue_and_namespace(self, world: World) -> None:
        @world.app.task
        async def work() -> None: ...

        handle = world.call(work.using(queue="reports", namespace="tenant"), "enqueue")

        info = world.call(handle, "info")
        assert (info.namespace, info.queue) == ("tenant", "reports")

    def test_an_application_sees_and_replays_only_its_own_namespace(self, world: World) -> None:
        tenant = Durably(world.store, namespace="tenant", clock=world.clock)

        async def fails() -> None:
            raise ValueError("no")

        for app in (tenant, world.app):
            world.call(app.declare(fails, "fails", (), {"retry": Retry.never()}), "enqueue")
            world.call(app, "tick")

        for app, namespace in ((tenant, "tenant"), (world.app, "default")):
            assert [info.namespace for info in world.call(app.dead, "list")] == [namespace]
            assert [info.namespace for info in world.call(app.tasks, "list")] == [namespace]
        assert world.call(tenant.dead, "replay") == 1
        assert len(world.call(world.app.dead, "list")) == 1
        assert world.call(world.app.dead, "purge", everything=True) == 1
        assert world.call(tenant.tasks, "list")[0].state == "ready"
