"""Unique keys: one task per key and scope; the second caller gets the first one's handle."""

from __future__ import annotations

from typing import Any

from durably.core import lifecycle
from durably.core.moment import SECOND
from durably.core.task import Draft
from durably.errors import Conflict
from durably.stores.operations.accept import Accepted
from durably.stores.operations.control import replay
from durably.testing.world import World


def unique(world: World, scope: str, **given: Any) -> Draft:
    return world.draft(**{"unique_scope": scope, "unique_key": "u", "fingerprint": "same", **given})


def accepted(world: World, draft: Draft) -> Accepted:
    [answer] = world.accept(draft)
    assert isinstance(answer, Accepted), answer
    return answer


class Uniqueness:
    def test_a_second_task_with_the_same_key_is_the_first_one(self, world: World) -> None:
        for scope in ("waiting", "live", "forever"):
            first = accepted(world, unique(world, scope))
            second = accepted(world, unique(world, scope))

            assert not first.existing
            assert second == Accepted(first.id, existing=True)

    def test_other_arguments_under_the_same_key_are_a_conflict(self, world: World) -> None:
        first = accepted(world, unique(world, "live"))
        [answer] = world.accept(unique(world, "live", fingerprint="other"))

        assert isinstance(answer, Conflict)
        assert first.id in str(answer)
        assert len(world.claim(world.session())) == 1

    def test_a_conflict_in_a_batch_leaves_the_others_accepted(self, world: World) -> None:
        accepted(world, unique(world, "live"))
        plain = world.draft()
        answers = world.accept(unique(world, "live", fingerprint="other"), plain)

        assert isinstance(answers[0], Conflict)
        assert answers[1] == Accepted(plain.id)
        assert len(world.claim(world.session())) == 2

    def test_the_same_key_twice_in_one_batch_is_one_task(self, world: World) -> None:
        first, second = unique(world, "live"), unique(world, "live")
        answers = world.accept(first, second)

        assert len({answer.id for answer in answers if isinstance(answer, Accepted)}) == 1
        assert len(world.claim(world.session())) == 1

    def test_a_waiting_key_is_free_once_the_task_is_claimed(self, world: World) -> None:
        for key in (None, "k"):
            first = accepted(world, unique(world, "waiting", key=key))
            session = world.session()
            [running] = world.claim(session)
            second = accepted(world, unique(world, "waiting", key=key))

            assert second.id != first.id
            assert not second.existing
            world.finish(running)
            world.finish(*world.claim(session))

    def test_a_waiting_key_is_not_taken_again_by_a_request_that_comes_after_the_claim(self, world: World) -> None:
        for key in (None, "k"):
            first, second = unique(world, "waiting", key=key), unique(world, "waiting")
            session = world.session()
            accepted(world, first)
            [running] = world.claim(session)
            accepted(world, first)

            assert accepted(world, second) == Accepted(second.id)
            world.finish(running, *world.claim(session))

    def test_a_live_key_is_taken_through_retries_and_free_at_the_end(self, world: World) -> None:
        first = accepted(world, unique(world, "live"))
        session = world.session()
        [task] = world.claim(session)
        world.apply(world.failing(task))
        assert accepted(world, unique(world, "live")).id == first.id
        world.advance(10)
        world.promote()
        world.finish(*world.claim(session))

        assert not accepted(world, unique(world, "live")).existing

    def test_a_live_key_stays_taken_while_a_crashed_task_waits(self, world: World) -> None:
        first = accepted(world, unique(world, "live"))
        world.claim(world.session())
        world.let_die()

        assert accepted(world, unique(world, "live")) == Accepted(first.id, existing=True)

    def test_a_dead_or_cancelled_task_frees_its_live_key(self, world: World) -> None:
        accepted(world, unique(world, "live"))
        [task] = world.claim(world.session("s"))
        world.apply(world.failing(task, permanent=True))
        second = accepted(world, unique(world, "live"))
        assert not second.existing
        world.apply(lifecycle.cancel(world.get(second.id), "no"))

        assert not accepted(world, unique(world, "live")).existing

    def test_a_forever_key_answers_with_the_task_that_is_long_done(self, world: World) -> None:
        first = accepted(world, unique(world, "forever"))
        world.finish(*world.claim(world.session()))

        assert accepted(world, unique(world, "forever")) == Accepted(first.id, existing=True)

    def test_a_period_key_is_free_in_the_next_period(self, world: World) -> None:
        hour = 3600 * SECOND
        first = accepted(world, unique(world, "period", unique_for=hour))
        assert accepted(world, unique(world, "period", unique_for=hour)).id == first.id
        world.advance(3600)

        assert not accepted(world, unique(world, "period", unique_for=hour)).existing

    def test_namespaces_do_not_share_unique_keys(self, world: World) -> None:
        first = accepted(world, unique(world, "live"))
        second = accepted(world, unique(world, "live", queue="tenant/default"))

        assert first.id != second.id

    def test_a_repeated_enqueue_of_a_unique_task_finds_itself(self, world: World) -> None:
        draft = unique(world, "live")
        world.accept(draft)
        [answer] = world.accept(draft, again=True)

        assert answer == Accepted(draft.id)
        assert len(world.claim(world.session())) == 1

    def test_a_repeated_enqueue_takes_no_key_of_a_later_period(self, world: World) -> None:
        hour = 3600 * SECOND
        for ended in (False, True):
            first = unique(world, "period", unique_for=hour)
            accepted(world, first)
            if ended:
                world.finish(*world.claim(world.session()))
            world.advance(3600)
            [again] = world.accept(first, again=True)
            second = unique(world, "period", unique_for=hour)

            assert again == Accepted(first.id)
            assert accepted(world, second) == Accepted(second.id)
            world.finish(*world.claim(world.session()))
            world.advance(3600)

    def test_a_repeated_enqueue_of_a_replayed_task_takes_no_key(self, world: World) -> None:
        for scope in ("waiting", "live"):
            first, second = unique(world, scope), unique(world, scope)
            accepted(world, first)
            session = world.session()
            [task] = world.claim(session)
            world.apply(world.failing(task, permanent=True))
            world.run(replay([first.id]))
            world.accept(first, again=True)

            assert accepted(world, second) == Accepted(second.id)
            world.finish(*world.claim(session))
