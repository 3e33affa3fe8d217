"""Recovery: whoever dies loses nothing, convicts no innocent, and cannot hide what it held."""

from __future__ import annotations

from durably.core import lifecycle
from durably.core.moment import SECOND
from durably.stores.operations.commit import commit
from durably.stores.operations.read import get, sessions
from durably.stores.operations.sweep import beat, bury, close_session, lapsed, mark_dead, open_session
from durably.testing.world import LEASE, RETRY, World
from durably.worker.context import current


class Recovering:
    def test_what_a_dead_session_held_runs_again(self, world: World) -> None:
        ids = {world.add(), world.add(key="k"), world.add(gate="g")}
        assert {task.id for task in world.claim(world.session("gone"))} == ids

        assert {task.id for task in world.let_die()} == ids

        again = world.claim(world.session())
        assert {task.id for task in again} == ids
        assert {(task.attempt, task.crashes) for task in again} == {(2, 1)}
        assert all(world.outcomes(task_id) == ["crashed"] for task_id in ids)

    def test_a_session_that_beats_keeps_what_it_holds(self, world: World) -> None:
        world.add()
        session = world.session()
        world.claim(session)
        for _ in range(10):
            world.advance(20)
            assert world.run(beat(session, LEASE))
            assert world.run(mark_dead()) == []
            assert world.run(lapsed(10, [])) == []

    def test_a_long_delay_is_not_mistaken_for_a_crash(self, world: World) -> None:
        task_id = world.add(due_in=3600 * SECOND)
        world.advance(1800)
        world.run(mark_dead())

        assert world.run(lapsed(10, [])) == []
        assert world.get(task_id).state == "delayed"

    def test_a_dead_session_cannot_beat_claim_or_come_back(self, world: World) -> None:
        session = world.session()
        world.add()
        world.advance(31)
        assert world.run(mark_dead()) == [session]

        assert not world.run(beat(session, LEASE))
        assert not world.claim_all(session).live

    def test_a_session_that_is_opened_again_is_the_same_and_a_dead_one_stays_dead(self, world: World) -> None:
        assert world.run(open_session("s", LEASE, "host", 1, "{}"))
        world.advance(20)
        assert world.run(open_session("s", LEASE, "host", 1, "{}"))
        world.advance(20)
        assert world.run(mark_dead()) == []
        assert [(found.id, found.state) for found in world.run(sessions())] == [("s", "live")]

        world.advance(11)
        assert world.run(mark_dead()) == ["s"]
        assert not world.run(open_session("s", LEASE, "host", 1, "{}"))
        assert not world.run(beat("s", LEASE))

    def test_a_late_beat_before_anyone_judged_keeps_the_session(self, world: World) -> None:
        session = world.session()
        world.advance(45)

        assert world.run(beat(session, LEASE))
        assert world.run(mark_dead()) == []

    def test_a_dead_session_stays_known_until_nothing_points_at_it(self, world: World) -> None:
        for given in ({}, {"key": "k"}):
            world.add(**given)
        world.claim(world.session("gone"))
        world.advance(31)
        world.run(mark_dead())
        world.run(bury())
        assert [session.id for session in world.run(sessions())] == ["gone"]

        world.apply(*(lifecycle.lapse(task) for task in world.run(lapsed(10, []))))
        world.run(bury())

        assert world.run(sessions()) == []

    def test_what_is_leased_to_a_session_nobody_knows_is_found_too(self, world: World) -> None:
        task_id = world.add()
        session = world.session()
        world.claim(session)
        world.run(close_session(session))

        assert [task.id for task in world.run(lapsed(10, []))] == [task_id]

    def test_rows_to_skip_never_fill_the_batch(self, world: World) -> None:
        ids = [world.add() for _ in range(5)]
        world.claim(world.session())
        world.advance(31)
        world.run(mark_dead())
        bad = ids[:3]

        assert {task.id for task in world.run(lapsed(3, bad))} == set(ids[3:])

    def test_the_reaper_cannot_overwrite_what_completed_meanwhile(self, world: World) -> None:
        world.add()
        [task] = world.claim(world.session())
        world.advance(31)
        world.run(mark_dead())
        [seen] = world.run(lapsed(10, []))
        world.finish(task)
        world.commit(lifecycle.lapse(seen))

        assert world.get(task.id).state == "done"

    def test_a_first_crash_costs_no_wait_and_a_second_one_does(self, world: World) -> None:
        task_id = world.add()
        world.claim(world.session())
        world.let_die()
        assert world.get(task_id).state == "ready"
        world.claim(world.session())
        world.let_die()

        task = world.get(task_id)
        assert (task.state, task.ready_at - world.clock.now()) == ("delayed", 5 * SECOND)

    def test_a_task_on_its_last_crash_life_is_claimed_only_alone(self, world: World) -> None:
        for key in (None, "k"):
            task_id = world.add(key=key)
            for _ in range(2):
                [task] = world.claim(world.session())
                world.let_die()
                world.advance(10)
                world.promote()
            other = world.add()
            session = world.session()

            found = world.claim_all(session)
            assert [task.id for task in found.tasks] == [other]
            assert found.alone_waiting
            [task] = world.claim(session, room=1, alone=True)
            assert (task.id, task.crashes) == (task_id, 2)
            assert not world.claim_all(session).alone_waiting
            world.finish(task, *found.tasks)

    def test_only_a_crash_alone_makes_a_dead_letter(self, world: World) -> None:
        for key in (None, "k"):
            task_id = world.add(key=key)
            for alone in (False, False, True):
                world.claim(world.session(), room=1, alone=alone)
                world.let_die()
                world.advance(10)
                world.promote()

            task = world.get(task_id)
            assert (task.state, task.crashes) == ("dead", 3)
            assert "killed its process 3 times" in (task.reason or "")
            assert world.outcomes(task_id) == ["crashed"] * 3

    def test_a_limited_task_on_its_last_crash_life_is_claimed_alone_too(self, world: World) -> None:
        task_id = world.add(gate="g")
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
            world.advance(10)
            world.promote()
        session = world.session()

        assert world.claim(session) == []
        assert world.claim_all(session).alone_waiting
        assert [task.id for task in world.claim(session, room=1, alone=True)] == [task_id]

    def test_an_at_most_once_task_that_crashed_is_dead_and_says_it_may_have_run(self, world: World) -> None:
        task_id = world.add(once=True)
        world.claim(world.session())
        world.let_die()

        task = world.get(task_id)
        assert task.state == "dead"
        assert "may have run" in (task.reason or "")

    def test_a_crashed_head_is_the_next_of_its_key(self, world: World) -> None:
        head, _ = world.add(key="k"), world.add(key="k")
        world.claim(world.session())
        world.let_die()

        assert [task.id for task in world.claim(world.session())] == [head]

    def test_a_crash_of_a_cancelled_task_ends_it_and_is_counted(self, world: World) -> None:
        task_id = world.add()
        [task] = world.claim(world.session())
        world.apply(lifecycle.cancel(task, "no"))
        world.let_die()

        ended = world.get(task_id)
        assert (ended.state, ended.reason, ended.crashes) == ("cancelled", "no", 1)

    def test_a_zombie_whose_task_was_buried_meanwhile_does_not_tell_of_a_completion(self, world: World) -> None:
        told: list[str] = []

        @world.app.task(at_most_once=True)
        async def work() -> None:
            [held] = await world.store.arun(get([current().id]))
            await world.store.arun(commit([lifecycle.lapse(held)]))

        handle = world.call(work, "enqueue")
        world.app.events.subscribe(lambda event: told.append(event.kind))
        world.tick()

        assert world.call(handle, "state") == "dead"
        assert told[-1] == "fenced"
        assert "completed" not in told

    def test_a_failure_whose_answer_was_lost_is_told_as_a_failure(self, world: World) -> None:
        told: list[str] = []

        @world.app.task(retry=RETRY)
        async def work() -> None:
            [held] = await world.store.arun(get([current().id]))
            await world.store.arun(commit([world.failing(held)]))
            raise ValueError("the report that landed before")

        for key in (None, "k"):
            handle = world.call(work.using(key=key), "enqueue")
            stop = world.app.events.subscribe(lambda event: told.append(event.kind))
            world.tick()
            stop()

            assert (world.call(handle, "info").spent, world.outcomes(handle.id)) == (1, ["failed"])
            assert told[-1] == "failed"
            assert "fenced" not in told
