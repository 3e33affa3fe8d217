"""Fencing: whoever lost the lease can change nothing, whatever it believes."""

from __future__ import annotations

from durably.core import lifecycle
from durably.core.change import Applied, Stale
from durably.core.moment import SECOND
from durably.stores.operations.commit import set_progress
from durably.testing.world import World


class Fencing:
    def test_a_worker_that_lost_its_session_cannot_complete(self, world: World) -> None:
        world.add()
        [slow] = world.claim(world.session("slow"))
        world.let_die()
        [fast] = world.claim(world.session("fast"))

        [verdict] = world.commit(lifecycle.complete(slow, b"1"))

        assert isinstance(verdict, Stale)
        assert verdict.current == fast
        assert world.get(slow.id) == fast

    def test_of_two_reports_about_one_task_in_one_batch_only_the_holders_counts(self, world: World) -> None:
        for key in (None, "k"):
            for zombie_first in (True, False):
                world.add(key=key)
                [old] = world.claim(world.session())
                world.let_die()
                session = world.session()
                [new] = world.claim(session)
                stale = lifecycle.complete(old, b'"old"', spawned=(world.draft(),))
                good = lifecycle.complete(new, b'"new"')

                verdicts = world.commit(*((stale, good) if zombie_first else (good, stale)))

                kinds = [Stale, Applied] if zombie_first else [Applied, Stale]
                assert [type(verdict) for verdict in verdicts] == kinds
                assert world.get(old.id).result == b'"new"'
                assert world.claim(session) == []

    def test_a_zombie_cannot_complete_the_next_task_of_its_key(self, world: World) -> None:
        first, second = world.add(key="k"), world.add(key="k")
        [slow] = world.claim(world.session("slow"))
        world.let_die()
        [again] = world.claim(world.session("fast"))
        assert again.id == first
        world.finish(again)
        [behind] = world.claim("fast")
        assert behind.id == second

        [verdict] = world.commit(lifecycle.complete(slow, b"1"))

        assert isinstance(verdict, Stale)
        assert behind.token > again.token > slow.token
        assert world.get(second) == behind

    def test_a_zombie_cannot_complete_a_task_that_got_its_number(self, world: World) -> None:
        delayed = world.add(due_in=SECOND)
        world.add()
        [slow] = world.claim(world.session("slow"))
        world.let_die()
        [fast] = world.claim(world.session("fast"))
        world.finish(fast)
        world.advance(2)
        world.promote()

        [verdict] = world.commit(lifecycle.complete(slow, None))

        assert isinstance(verdict, Stale)
        assert world.get(delayed).state == "ready"
        assert [task.id for task in world.claim(world.session())] == [delayed]

    def test_a_zombie_cannot_fail_snooze_or_release(self, world: World) -> None:
        for key in (None, "k"):
            task_id = world.add(key=key)
            [slow] = world.claim(world.session())
            world.let_die()
            current = world.get(task_id)
            for change in (world.failing(slow), lifecycle.snooze(slow, 5), lifecycle.release(slow, started=True)):
                [verdict] = world.commit(change)
                assert isinstance(verdict, Stale)
            assert world.get(task_id) == current
            world.finish(*world.claim(world.session()))

    def test_a_repeated_completion_finds_its_own_token_in_history(self, world: World) -> None:
        world.add()
        [task] = world.claim(world.session())
        change = lifecycle.complete(task, b"1", spawned=(world.draft(),))
        world.apply(change)

        [verdict] = world.commit(change)

        assert isinstance(verdict, Stale)
        assert verdict.current is not None
        assert (verdict.current.state, verdict.current.token) == ("done", task.token)
        assert len(world.claim("session-1")) == 1, "the successor was spawned once"

    def test_one_stale_change_does_not_hold_up_the_rest_of_its_batch(self, world: World) -> None:
        for _ in range(3):
            world.add()
        world.add(key="k")
        session = world.session()
        tasks = world.claim(session)
        world.finish(tasks[1])

        verdicts = world.commit(*(lifecycle.complete(task, b"2") for task in tasks))

        assert [type(verdict) for verdict in verdicts] == [Applied, Stale, Applied, Applied]
        assert {world.get(task.id).state for task in tasks} == {"done"}

    def test_a_stale_change_spawns_nothing(self, world: World) -> None:
        world.add()
        [task] = world.claim(world.session("s"))
        world.finish(task)
        draft = world.draft()
        world.commit(lifecycle.complete(task, b"1", spawned=(draft,)))

        assert not world.exists(draft.id)

    def test_a_cancel_while_running_makes_the_worker_decide_again(self, world: World) -> None:
        for key in (None, "k"):
            world.add(key=key)
            [task] = world.claim(world.session())
            world.apply(lifecycle.cancel(task, "not wanted"))

            [verdict] = world.commit(world.failing(task))

            assert isinstance(verdict, Stale)
            assert verdict.current is not None
            assert (verdict.current.state, verdict.current.token) == ("leased", task.token)
            world.apply(world.failing(verdict.current))
            assert world.get(task.id).state == "cancelled"

    def test_progress_needs_the_token_and_leaves_the_version(self, world: World) -> None:
        for key in (None, "k"):
            world.add(key=key)
            [task] = world.claim(world.session())

            assert world.run(set_progress(task.id, task.token, '{"fraction":0.5}', b"1"))
            assert not world.run(set_progress(task.id, task.token + 1, '{"fraction":0.9}', b"2"))

            after = world.get(task.id)
            assert (after.progress, after.details, after.version) == ('{"fraction":0.5}', b"1", task.version)
            world.finish(task)

    def test_tokens_go_on_rising_after_everything_ended(self, world: World) -> None:
        session = world.session()
        world.add()
        [first] = world.claim(session)
        world.finish(first)
        world.advance(3600)
        world.add(due_in=SECOND)
        world.advance(1)
        world.promote()
        [second] = world.claim(session)

        assert second.token > first.token
