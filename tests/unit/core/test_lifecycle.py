"""The rules: what becomes of a task when something happens to it, compared whole, so that nothing else changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from durably.core.change import Change
from durably.core.ids import derived
from durably.core.lifecycle import (
    cancel,
    complete,
    complete_anew,
    discard,
    expire,
    fail,
    hurry,
    lapse,
    put_back,
    release,
    resume,
    skip,
    snooze,
    spoil,
    stop,
)
from durably.core.moment import SECOND
from durably.core.retry import Retry
from durably.core.task import Attempt, Draft, Failure, Options, Policy, State, Task

from .facts import a_task

WEEK = 7 * 86400 * SECOND
RETRY = Retry.after(30, 60)
FAILURE = Failure("builtins.ValueError", "no such card\nand more")
CRASH = Failure("durably.Crashed", "the worker died while it ran (session worker)")


def attempt_of(task: Task, outcome: str, failure: Failure, ran: int = 0) -> Attempt:
    return Attempt(task.attempt, outcome, failure, task.session, task.token, ran)


def kept(task: Task, **changes: Any) -> Change:
    """A change to the state given, in which the task keeps all of its numbers."""
    return Change(task, **{"spent": task.spent, "crashes": task.crashes, **changes})


def cancelled(task: Task, reason: str, **changes: Any) -> Change:
    return kept(task, state=State.CANCELLED, reason=reason, keep_for=WEEK, **changes)


def test_a_completed_task_is_done_and_kept_for_its_retention() -> None:
    task = a_task(spent=2, crashes=1)
    next_one = Draft("x", "ship", "billing", b"{}")

    assert complete(task, b'"ok"', spawned=(next_one,), ran=5) == kept(
        task, state=State.DONE, result=b'"ok"', spawned=(next_one,), keep_for=WEEK, started_ago=5
    )
    assert complete(task, None) == kept(task, state=State.DONE, keep_for=WEEK)
    assert complete(task, None, retention=0.0).keep_for == 0
    assert complete(task, None, retention=2.5).keep_for == 2_500_000


def test_a_success_stands_when_something_else_was_written_about_the_task_meanwhile() -> None:
    before, now = a_task(spent=2), a_task(spent=3, version=9, crashes=1, cancel="too late")
    decided = complete(before, b"1", retention=3.0, spawned=(Draft("x", "ship", "billing", b"{}"),), ran=5)

    assert complete_anew(decided, now) == complete(now, b"1", retention=3.0, spawned=decided.spawned, ran=5)


def test_a_completion_comes_before_a_cancel_request_that_came_too_late() -> None:
    assert complete(a_task(cancel="no longer wanted"), b"1").state == State.DONE


def test_a_failed_attempt_waits_as_its_policy_says() -> None:
    task = a_task(spent=2, attempt=4, crashes=1, alone=True)

    assert fail(task, FAILURE, RETRY, 0.5, ran=9) == kept(
        task, state=State.DELAYED, alone=True, due_in=60 * SECOND, attempt=attempt_of(task, "failed", FAILURE, 9)
    )
    assert fail(task, FAILURE, RETRY, 0.5, outcome="timed out").attempt == attempt_of(task, "timed out", FAILURE)


def test_jitter_and_what_the_failure_asks_for_lengthen_the_wait() -> None:
    spread = Retry.constant(5, 10, jitter=0.5)
    slow_down = msgspec.structs.replace(FAILURE, retry_after=90.0)

    assert fail(a_task(), FAILURE, spread, 1.0).due_in == 15 * SECOND
    assert fail(a_task(), slow_down, spread, 1.0).due_in == 90 * SECOND


def test_a_retry_without_a_wait_is_ready_at_once() -> None:
    assert fail(a_task(), FAILURE, Retry.constant(3, 0), 0.0).state == State.READY
    assert fail(a_task(), FAILURE, Retry.constant(3, 0.000_001), 0.0).state == State.DELAYED


def test_the_last_attempt_of_the_budget_makes_a_dead_letter() -> None:
    for spent, state in ((2, State.DELAYED), (3, State.DEAD), (4, State.DEAD)):
        assert fail(a_task(spent=spent), FAILURE, RETRY, 0.0).state == state
    task = a_task(spent=3, attempt=8, crashes=2)

    assert fail(task, FAILURE, RETRY, 0.0, ran=9) == kept(
        task,
        state=State.DEAD,
        reason="attempts exhausted (3): builtins.ValueError: no such card",
        attempt=attempt_of(task, "failed", FAILURE, 9),
        started_ago=9,
    )


def test_a_permanent_failure_makes_a_dead_letter_whatever_is_left_of_the_budget() -> None:
    task = a_task(once=True)
    failure = Failure("durably.Permanent", "the card is closed", permanent=True)

    assert fail(task, failure, RETRY, 0.0) == kept(
        task,
        state=State.DEAD,
        reason="permanent: the card is closed",
        attempt=attempt_of(task, "failed", failure),
    )


def test_what_nobody_wants_to_try_any_more_says_just_that() -> None:
    task = a_task()
    failure = Failure("durably.GivenUp", "attempts exhausted (6): 500", permanent=True, certain=False)

    assert fail(task, failure, RETRY, 0.0).reason == "attempts exhausted (6): 500"


def test_a_task_that_may_run_only_once_is_not_tried_again() -> None:
    task = a_task(once=True)

    assert fail(task, FAILURE, RETRY, 0.0) == kept(
        task,
        state=State.DEAD,
        reason="at most once: builtins.ValueError: no such card",
        attempt=attempt_of(task, "failed", FAILURE),
    )


@pytest.mark.parametrize(
    ("failure", "brief"),
    [
        (Failure("builtins.ValueError", "one\ntwo"), "builtins.ValueError: one"),
        (Failure("builtins.ValueError", ""), "builtins.ValueError"),
        (Failure("builtins.ValueError", "\ntwo"), "builtins.ValueError"),
        (Failure("durably.Permanent", "said on purpose"), "said on purpose"),
        (Failure("durably.Permanent", ""), "durably.Permanent"),
    ],
)
def test_a_reason_is_the_first_line_of_what_went_wrong(failure: Failure, brief: str) -> None:
    assert spoil(a_task(), failure).reason == f"permanent: {brief}"


def test_a_reason_is_cut_where_an_error_would_be() -> None:
    reason = discard(a_task(), "x" * 5_000).reason

    assert reason is not None
    assert len(reason) < 2_100
    assert "[... 3011 characters left out ...]" in reason


def test_a_cancel_request_ends_whatever_comes_back_unfinished() -> None:
    task = a_task(cancel="asked by Ann", key="k", policy=Policy.PAUSE, once=True)

    failed = cancelled(task, "asked by Ann", attempt=attempt_of(task, "failed", FAILURE, 4), started_ago=4)
    crashed = cancelled(task, "asked by Ann", attempt=attempt_of(task, "crashed", CRASH), crashes=1)
    assert fail(task, msgspec.structs.replace(FAILURE, permanent=True), RETRY, 0.0).state == State.CANCELLED
    assert fail(task, FAILURE, RETRY, 0.0, ran=4) == failed
    assert lapse(task) == crashed
    for change in (snooze(task, 5), release(task, started=True), put_back(task, 5), stop(task)):
        assert change == cancelled(task, "asked by Ann")


def test_a_handler_that_stopped_without_a_reason_was_cancelled() -> None:
    assert stop(a_task()) == cancelled(a_task(), "cancelled")


def test_a_snooze_gives_the_attempt_back() -> None:
    task = a_task(spent=3, crashes=1, alone=True)

    assert snooze(task, 90.0) == kept(task, state=State.DELAYED, spent=2, alone=True, due_in=90 * SECOND)
    assert snooze(a_task(spent=0), 90.0).spent == 0


def test_a_task_of_an_unknown_name_is_put_back_uncharged() -> None:
    task = a_task(spent=3, crashes=1, alone=True)

    assert put_back(task, 4.0) == kept(task, state=State.DELAYED, spent=2, alone=True, due_in=4 * SECOND)
    assert put_back(a_task(spent=0), 4.0).spent == 0


def test_a_released_task_is_ready_at_once_and_uncharged() -> None:
    task = a_task(spent=3, crashes=1, alone=True)

    for started in (True, False):
        assert release(task, started=started) == kept(task, state=State.READY, spent=2, alone=True)
    assert release(a_task(spent=0), started=True).spent == 0


def test_a_released_task_that_may_run_only_once_is_dead_if_it_had_begun() -> None:
    task = a_task(once=True)

    assert release(task, started=False) == kept(task, state=State.READY, spent=0)
    assert release(task, started=True) == kept(
        task, state=State.DEAD, reason="at most once: the worker shut down while it ran, so it may have run"
    )


def test_a_discarded_task_says_why() -> None:
    assert discard(a_task(), "too late") == cancelled(a_task(), "discarded: too late")
    assert discard(a_task(), "") == cancelled(a_task(), "discarded")


def test_a_skipped_task_says_why() -> None:
    assert skip(a_task(), "no use") == cancelled(a_task(), "skipped: no use")
    assert skip(a_task(), "") == cancelled(a_task(), "skipped")


def test_an_expired_task_says_so() -> None:
    assert expire(a_task(state="ready")) == cancelled(a_task(state="ready"), "expired")


@pytest.mark.parametrize("state", ["ready", "delayed", "blocked"])
def test_a_task_that_waits_is_cancelled_at_once(state: str) -> None:
    assert cancel(a_task(state=state), "no longer wanted") == cancelled(a_task(state=state), "no longer wanted")


def test_a_task_that_runs_is_asked_to_stop() -> None:
    task = a_task(spent=2, crashes=1, alone=True)

    assert cancel(task, "no longer wanted") == kept(task, state=State.LEASED, alone=True, cancel="no longer wanted")


def test_a_cancelled_task_is_kept_for_the_retention_that_it_brought() -> None:
    assert expire(a_task(options=Options(retention=60.0))).keep_for == 60 * SECOND
    assert expire(a_task(options=Options(retention=0.0))).keep_for == 0


def test_a_dead_letter_is_kept_until_it_is_purged() -> None:
    assert spoil(a_task(options=Options(retention=60.0)), FAILURE).keep_for is None


def test_a_first_crash_costs_no_wait_and_later_ones_more_and_more() -> None:
    waits = [lapse(a_task(crashes=crashes)).due_in // SECOND for crashes in range(10)]

    assert waits == [0, 5, 20, 80, 320, 1280, 5120, 5120, 5120, 5120]


def test_a_crash_charges_no_attempt_and_is_recorded() -> None:
    task = a_task(attempt=4, spent=2, crashes=0)

    assert lapse(task) == kept(task, state=State.READY, crashes=1, attempt=attempt_of(task, "crashed", CRASH))


def test_the_last_crash_life_is_lived_alone_and_only_then_does_a_crash_convict() -> None:
    for crashes, alone in ((0, False), (1, True), (2, True), (7, True)):
        assert lapse(a_task(crashes=crashes)) == msgspec.structs.replace(
            lapse(a_task(crashes=crashes)), state=State.READY if crashes == 0 else State.DELAYED, alone=alone
        )
    assert not lapse(a_task(crashes=0, alone=True)).ends
    assert not lapse(a_task(crashes=1, alone=True)).ends
    task = a_task(crashes=2, alone=True)

    assert lapse(task) == kept(
        task,
        state=State.DEAD,
        crashes=3,
        reason="killed its process 3 times; the last time it ran alone",
        attempt=attempt_of(task, "crashed", CRASH),
    )


def test_the_crash_cap_travels_with_the_task() -> None:
    options = Options(crash_cap=5)

    assert [lapse(a_task(options=options, crashes=crashes)).alone for crashes in range(5)] == [False] * 3 + [True] * 2
    assert not lapse(a_task(options=options, crashes=3, alone=True)).ends
    assert lapse(a_task(options=options, crashes=4, alone=True)).state == State.DEAD


def test_a_crash_of_a_task_that_may_run_only_once_leaves_a_dead_letter_that_says_so() -> None:
    task = a_task(once=True)

    assert lapse(task) == kept(
        task,
        state=State.DEAD,
        crashes=1,
        reason="at most once: the worker died while it ran, so it may have run",
        attempt=attempt_of(task, "crashed", CRASH),
    )


def test_a_head_that_must_wait_holds_its_place_in_its_key() -> None:
    head = a_task(key="k", crashes=1)

    for change in (fail(head, FAILURE, RETRY, 0.0), snooze(head, 30.0), put_back(head, 30.0), lapse(head)):
        assert (change.state, change.rejoin) == (State.BLOCKED, False)
        assert change.due_in > 0
    assert release(head, started=True).state == State.BLOCKED


def test_an_overtaken_head_leaves_its_place_when_it_failed_or_crashed_but_not_when_it_snoozed() -> None:
    head = a_task(key="k", policy=Policy.OVERTAKE, crashes=1)

    for change in (fail(head, FAILURE, RETRY, 0.0), lapse(head)):
        assert (change.state, change.rejoin) == (State.DELAYED, True)
    for change in (fail(head, FAILURE, Retry.constant(3, 0), 0.0), lapse(a_task(key="k", policy=Policy.OVERTAKE))):
        assert (change.state, change.rejoin) == (State.BLOCKED, True)
    for change in (snooze(head, 30.0), release(head, started=True), put_back(head, 30.0)):
        assert (change.state, change.rejoin) == (State.BLOCKED, False)


def test_a_task_of_a_limit_group_takes_its_turn_again_and_waits_for_itself_until_it_is_due() -> None:
    limited = a_task(gate="api")

    assert release(limited, started=True).state == State.BLOCKED
    assert snooze(limited, 30.0).state == State.DELAYED


def test_a_head_that_gave_up_pauses_its_key_if_the_others_must_wait_for_a_person() -> None:
    head = a_task(key="k", policy=Policy.PAUSE, spent=3, crashes=1, alone=True, options=Options(on_dead="tell"))

    assert fail(head, FAILURE, RETRY, 0.0) == kept(
        head,
        state=State.BLOCKED,
        pause=True,
        reason="attempts exhausted (3): builtins.ValueError: no such card",
        attempt=attempt_of(head, "failed", FAILURE),
    )
    crashed = lapse(a_task(key="k", policy=Policy.PAUSE, crashes=2, alone=True))
    assert (crashed.state, crashed.pause, crashed.crashes, crashed.alone) == (State.BLOCKED, True, 3, False)


def test_only_a_key_can_be_paused() -> None:
    for task in (a_task(policy=Policy.PAUSE, spent=3), a_task(key="k", spent=3)):
        assert fail(task, FAILURE, RETRY, 0.0).state == State.DEAD


def test_a_resumed_head_begins_a_new_cycle() -> None:
    head = a_task(state="blocked", key="k", spent=8, crashes=3, alone=True)

    assert resume(head) == Change(head, State.BLOCKED, 0, 0)


def test_what_waits_can_be_made_due_without_a_new_budget() -> None:
    late = a_task(state="delayed", spent=3, crashes=1)
    held = a_task(state="blocked", key="k", spent=2)

    lonely = a_task(state="delayed", alone=True)

    assert hurry(late) == Change(late, State.DELAYED, 3, 1)
    assert hurry(lonely).alone
    assert hurry(held) == Change(held, State.BLOCKED, 2, 0)


def test_a_row_that_cannot_be_read_is_a_dead_letter_even_in_a_key_that_would_pause() -> None:
    task = a_task(key="k", policy=Policy.PAUSE, cancel="asked")

    assert spoil(task, FAILURE) == kept(
        task,
        state=State.DEAD,
        reason="permanent: builtins.ValueError: no such card",
        attempt=attempt_of(task, "spoiled", FAILURE),
    )


def test_a_death_spawns_the_hook_that_the_task_brought() -> None:
    task = a_task(attempt=4, options=Options(on_dead="tell", on_dead_queue="shop/alarms"))
    letter = (
        b'{"letter":{"id":"0190a5b2-4c00-7abc-8000-000000000001","name":"charge","queue":"billing",'
        b'"reason":"permanent: builtins.ValueError: no such card","attempt":4}}'
    )
    hook = Draft(derived(task.id, 4, "dead", None), "tell", "shop/alarms", letter)

    assert spoil(task, FAILURE).spawned == (hook,)
    assert fail(task, FAILURE, Retry.never(), 0.0).spawned[0].name == "tell"
    assert lapse(msgspec.structs.replace(task, crashes=2, alone=True)).spawned[0].name == "tell"


def test_a_hook_without_a_queue_goes_to_the_default_one() -> None:
    [hook] = spoil(a_task(options=Options(on_dead="tell")), FAILURE).spawned

    assert hook.queue == "default"


def test_a_task_that_was_cancelled_spawns_no_hook() -> None:
    assert expire(a_task(options=Options(on_dead="tell"))).spawned == ()


def test_options_that_cannot_be_read_do_not_stop_a_task_from_ending() -> None:
    for broken in (b"{", b'{"crash_cap":"many"}', b"\xff", b'{"x":' + b"[" * 100_000):
        task = a_task(options=broken, crashes=2, alone=True)

        assert lapse(task).state == State.DEAD
        assert expire(task).keep_for == WEEK
