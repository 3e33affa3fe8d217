"""Ordering keys: one at a time, in the order of acceptance, whatever happens to the head."""

from __future__ import annotations

import pytest

from durably.core import lifecycle
from durably.core.change import Stale
from durably.core.moment import SECOND
from durably.errors import NotAllowed, UnknownTask
from durably.stores.operations.control import pause_key, resume_key, skip_key
from durably.stores.operations.read import list_keys
from durably.testing.world import World


def run_next(world: World, session: str) -> str:
    """Claim one task of the only key, complete it; its id."""
    [task] = world.claim(session)
    world.finish(task)
    return task.id


class Ordering:
    def test_tasks_of_a_key_run_one_at_a_time_in_order(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(4)]
        session, other = world.session(), world.session()
        seen = []
        for _ in ids:
            [task] = world.claim(session)
            assert world.claim(other) == []
            seen.append(task.id)
            world.finish(task)

        assert seen == ids
        assert world.claim(session) == []
        assert world.run(list_keys(None, None, None, 10)) == []

    def test_keys_do_not_wait_for_each_other(self, world: World) -> None:
        heads = [world.add(key=f"k{index}") for index in range(3)]
        for index in range(3):
            world.add(key=f"k{index}")

        assert {task.id for task in world.claim(world.session())} == set(heads)

    def test_the_same_key_in_another_queue_is_another_key(self, world: World) -> None:
        world.add(key="k", queue="a")
        world.add(key="k", queue="b")

        assert len(world.claim(world.session(), queues=("a", "b"))) == 2

    def test_a_leased_head_counts_as_leased_and_its_row_says_so(self, world: World) -> None:
        head = world.add(key="k")
        [task] = world.claim(world.session("s"))

        assert world.get(head) == task
        assert (task.state, task.session, task.attempt) == ("leased", "s", 1)
        [key] = world.run(list_keys(None, None, None, 10))
        assert (key.state, key.head, key.session, key.waiting) == ("leased", head, "s", 1)

    def test_a_key_whose_only_task_runs_is_not_paused_and_keeps_its_lease(self, world: World) -> None:
        world.add(key="k")
        [task] = world.claim(world.session())

        assert not world.run(pause_key("default", "k", "by hand"))
        world.finish(task)

    def test_a_failing_head_blocks_its_key_until_it_is_done(self, world: World) -> None:
        head, behind = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))

        assert world.claim(session) == []
        assert world.get(head).state == "blocked"
        world.advance(9.9)
        assert world.claim(session) == []
        world.advance(0.1)
        [again] = world.claim(session)
        assert (again.id, again.attempt, again.spent) == (head, 2, 2)
        world.finish(again)
        assert run_next(world, session) == behind

    def test_a_dead_head_lets_the_next_one_go(self, world: World) -> None:
        head, behind = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task, permanent=True))

        assert world.get(head).state == "dead"
        assert run_next(world, session) == behind

    def test_an_overtaken_head_rejoins_at_the_tail_when_it_is_due(self, world: World) -> None:
        head, second = world.add(key="k", policy="overtake"), world.add(key="k", policy="overtake")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))

        assert run_next(world, session) == second
        third = world.add(key="k", policy="overtake")
        world.advance(10)
        world.promote()
        fourth = world.add(key="k", policy="overtake")
        assert [run_next(world, session) for _ in range(3)] == [third, head, fourth]

    def test_a_head_that_gave_up_pauses_its_key_until_someone_resumes_it(self, world: World) -> None:
        head, behind = world.add(key="k", policy="pause"), world.add(key="k", policy="pause")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task, permanent=True))

        assert world.claim(session) == []
        world.advance(10_000)
        assert world.claim(session) == []
        [key] = world.run(list_keys(None, None, None, 10))
        assert key.state == "paused"
        assert "it broke" in (key.reason or "")
        world.run(resume_key("default", "k"))
        [again] = world.claim(session)
        assert (again.id, again.attempt, again.spent) == (head, 2, 1)
        world.finish(again)
        assert run_next(world, session) == behind

    def test_a_paused_head_can_be_skipped(self, world: World) -> None:
        head, behind = world.add(key="k", policy="pause"), world.add(key="k", policy="pause")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task, permanent=True))
        world.run(skip_key("default", "k", "broken order"))

        skipped = world.get(head)
        assert (skipped.state, skipped.reason) == ("cancelled", "skipped: broken order")
        assert world.outcomes(head) == ["failed"]
        assert run_next(world, session) == behind

    def test_only_a_paused_key_can_be_resumed_or_skipped(self, world: World) -> None:
        with pytest.raises(UnknownTask, match="no key 'k'"):
            world.run(resume_key("default", "k"))
        world.add(key="k")
        world.claim(world.session())
        with pytest.raises(NotAllowed, match="is leased, not paused"):
            world.run(skip_key("default", "k", ""))

    def test_an_operator_can_pause_a_key_that_waits(self, world: World) -> None:
        session = world.session()
        world.add(key="k")
        world.add(key="k")
        [head] = world.claim(session)
        assert not world.run(pause_key("default", "k", "maintenance"))
        world.finish(head)
        assert world.run(pause_key("default", "k", "maintenance"))
        assert world.claim(session) == []
        world.run(resume_key("default", "k"))
        assert len(world.claim(session)) == 1

    def test_an_operator_can_pause_a_key_that_no_worker_has_seen_yet(self, world: World) -> None:
        world.add(key="k", priority=2)
        session = world.session()

        assert world.run(pause_key("default", "k", "maintenance"))
        assert world.claim(session) == []
        world.run(resume_key("default", "k"))
        assert [task.priority for task in world.claim(session)] == [2]

    def test_pausing_a_key_without_tasks_leaves_nothing_behind(self, world: World) -> None:
        assert not world.run(pause_key("default", "nobody", "maintenance"))
        assert world.run(list_keys(None, None, None, 10)) == []

    def test_cancelling_another_task_does_not_end_a_pause(self, world: World) -> None:
        session = world.session()
        for pause in ("policy", "operator"):
            key = f"k-{pause}"
            head, behind = (world.add(key=key, policy="pause") for _ in range(2))
            if pause == "policy":
                [task] = world.claim(session)
                world.apply(world.failing(task, permanent=True))
            else:
                world.claim_all(session, room=1, queues=("elsewhere",))
                assert world.run(pause_key("default", key, "maintenance"))
            world.apply(lifecycle.cancel(world.get(behind), "no"))

            assert world.claim(session) == []
            world.apply(lifecycle.cancel(world.get(head), "no"))
            assert world.run(list_keys(None, key, None, 1)) == []

    def test_a_delayed_task_joins_its_key_when_it_is_due(self, world: World) -> None:
        delayed = world.add(key="k", due_in=10 * SECOND)
        first = world.add(key="k")
        session = world.session()

        assert run_next(world, session) == first
        assert world.claim(session) == []
        world.advance(10)
        last = world.add(key="k")
        assert world.promote() == 1
        assert [run_next(world, session) for _ in range(2)] == [last, delayed]

    def test_delayed_tasks_of_a_key_join_in_the_order_in_which_they_fall_due(self, world: World) -> None:
        later, sooner = world.add(key="k", due_in=20 * SECOND), world.add(key="k", due_in=10 * SECOND)
        world.advance(30)
        world.promote()
        session = world.session()

        assert [run_next(world, session) for _ in range(2)] == [sooner, later]

    def test_a_task_that_arrives_while_the_head_runs_is_next(self, world: World) -> None:
        world.add(key="k")
        session = world.session()
        [head] = world.claim(session)
        late = world.add(key="k")
        assert world.claim(session) == []
        world.finish(head)

        assert run_next(world, session) == late

    def test_a_released_head_runs_again_first_and_uncharged(self, world: World) -> None:
        head, _ = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(lifecycle.release(task, started=True))

        [again] = world.claim(session)

        assert (again.id, again.attempt, again.spent) == (head, 2, 1)

    def test_a_snoozed_head_holds_its_key(self, world: World) -> None:
        head, _ = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(lifecycle.snooze(task, 60))

        assert world.claim(session) == []
        world.advance(60)
        [again] = world.claim(session)
        assert (again.id, again.spent) == (head, 1)

    def test_cancelling_a_waiting_task_leaves_the_others_in_order(self, world: World) -> None:
        ids = [world.add(key="k") for _ in range(4)]
        session = world.session()
        [head] = world.claim(session)
        world.apply(lifecycle.cancel(world.get(ids[2]), "no"))
        world.finish(head)

        assert [run_next(world, session) for _ in range(2)] == [ids[1], ids[3]]

    def test_cancelling_a_head_in_backoff_frees_its_key_at_once(self, world: World) -> None:
        head, behind = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))
        world.apply(lifecycle.cancel(world.get(head), "no"))

        assert run_next(world, session) == behind

    def test_cancelling_a_later_task_does_not_shorten_the_backoff_of_the_head(self, world: World) -> None:
        head, behind = world.add(key="k"), world.add(key="k")
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))
        world.apply(lifecycle.cancel(world.get(behind), "no"))

        assert world.claim(session) == []
        world.advance(10)
        assert run_next(world, session) == head

    def test_a_key_whose_last_task_is_cancelled_leaves_nothing_behind(self, world: World) -> None:
        session = world.session()
        world.add(key="k")
        [head] = world.claim(session)
        world.apply(world.failing(head))
        world.apply(lifecycle.cancel(world.get(head.id), "no"))

        assert world.run(list_keys(None, None, None, 10)) == []
        late = world.add(key="k")
        assert run_next(world, session) == late

    def test_a_change_decided_on_a_waiting_task_is_stale_once_it_became_the_head(self, world: World) -> None:
        task_id = world.add(key="k")
        waiting = world.get(task_id)
        world.claim(world.session())

        [verdict] = world.commit(lifecycle.cancel(waiting, "no"))

        assert isinstance(verdict, Stale)
        assert world.get(task_id).state == "leased"

    def test_priority_does_not_reorder_a_key(self, world: World) -> None:
        first, second = world.add(key="k", priority=1), world.add(key="k", priority=9)
        session = world.session()

        assert [run_next(world, session) for _ in range(2)] == [first, second]

    def test_a_key_competes_with_the_priority_of_its_head(self, world: World) -> None:
        session = world.session()
        world.add(key="k", priority=9)
        urgent = world.add(key="k", priority=9)
        plain = world.add(priority=5)
        world.advance(1)
        [head] = world.claim(session, room=1)
        world.finish(head)

        assert [task.id for task in world.claim(session, room=1)] == [urgent]
        assert [task.id for task in world.claim(session, room=1)] == [plain]

    def test_a_thousand_keys_drain_in_order(self, world: World) -> None:
        drafts = [world.draft(key=f"k{index % 100}") for index in range(500)]
        world.accept(*drafts)
        session = world.session()
        seen: dict[str, list[str]] = {}
        while tasks := world.claim(session, room=1000):
            assert len({task.key for task in tasks}) == len(tasks)
            for task in tasks:
                seen.setdefault(task.key or "", []).append(task.id)
            world.finish(*tasks)

        wanted: dict[str, list[str]] = {}
        for draft in drafts:
            wanted.setdefault(draft.key or "", []).append(draft.id)
        assert seen == wanted

    def test_a_pause_ends_with_the_task_that_it_waits_for_whoever_ends_beside_it(self, world: World) -> None:
        for first in (0, 1):
            key = f"k{first}"
            head, behind, last = (world.add(key=key, policy="pause") for _ in range(3))
            session = world.session()
            [task] = world.claim(session)
            world.apply(world.failing(task, permanent=True))
            both = [lifecycle.expire(world.get(task_id)) for task_id in (head, behind)]
            world.apply(both[first], both[1 - first])

            assert run_next(world, session) == last

    def test_a_stale_change_of_a_task_on_its_last_crash_life_keeps_nobody_from_its_key(self, world: World) -> None:
        gone = world.add(key="k")
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
            world.advance(10)
        seen = world.get(gone)
        world.apply(lifecycle.cancel(seen, "no"))
        late = world.add(key="k")
        [verdict] = world.commit(lifecycle.expire(seen))

        assert isinstance(verdict, Stale)
        assert run_next(world, world.session()) == late

    def test_a_skipped_head_on_its_last_crash_life_keeps_nobody_from_its_key(self, world: World) -> None:
        world.add(key="k")
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
            world.advance(10)
        behind = world.add(key="k")
        assert world.run(pause_key("default", "k", "maintenance"))
        world.run(skip_key("default", "k", "it kills its workers"))

        assert run_next(world, world.session()) == behind

    def test_a_marker_that_outlives_its_task_keeps_nobody_from_its_key(self, world: World) -> None:
        gone = world.add(key="k", policy="overtake")
        for _ in range(2):
            world.claim(world.session())
            world.let_die()
        world.advance(10)
        assert world.promote() == 1
        world.apply(lifecycle.cancel(world.get(gone), "no"))
        late = world.add(key="k")

        assert run_next(world, world.session()) == late

    def test_a_repeated_request_for_a_task_in_backoff_keeps_nobody_from_its_key(self, world: World) -> None:
        draft = world.draft(key="k")
        world.accept(draft)
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task, retry_after=86400.0))
        world.accept(draft, again=True)
        world.apply(lifecycle.cancel(world.get(draft.id), "no"))
        late = world.add(key="k")

        assert run_next(world, session) == late
