"""`why`: the sentence that a person gets, word for word, and the evidence that it rests on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from durably.core.explain import Evidence, SessionFacts, Why, explain
from durably.core.limits import Gate
from durably.core.moment import SECOND

from .facts import ID, NOW, a_key, a_session, a_task, an_attempt, evidence

NOW_TEXT = "2027-01-15 08:00:00 UTC (0ms ago)"
IN_A_MINUTE = "2027-01-15 08:01:00 UTC (in 1m)"
A_MINUTE_AGO = "2027-01-15 07:59:00 UTC (1m ago)"
MINUTE = 60 * SECOND
OTHER = "0190a5b2-4c00-7abc-8000-000000000002"


def is_so(facts: Evidence, code: str, sentence: str, told: dict[str, Any]) -> None:
    assert explain(facts) == Why(code, sentence, told)


def test_a_task_that_is_done() -> None:
    told = {"finished_at": NOW - MINUTE}
    done = a_task(state="done", finished_at=NOW - MINUTE)
    is_so(evidence(done), "done", f"It is done: it finished {A_MINUTE_AGO}, at the first attempt.", told)
    later = msgspec.structs.replace(done, attempt=3)
    is_so(evidence(later), "done", f"It is done: it finished {A_MINUTE_AGO}, at attempt 3.", told)


def test_an_end_without_a_moment_is_told_all_the_same() -> None:
    done = a_task(state="done", finished_at=None)

    assert explain(evidence(done)).sentence.startswith("It is done: it finished 1970-01-01 00:00:00 UTC (")


def test_a_dead_letter() -> None:
    dead = a_task(state="dead", finished_at=NOW, reason="permanent: no")
    sentence = f"It is a dead letter since {NOW_TEXT}: permanent: no. `durably dead replay {ID}` gives it a new cycle."
    told: dict[str, Any] = {"reason": "permanent: no", "attempts": 0, "finished_at": NOW}
    is_so(evidence(dead), "dead", sentence, told)
    attempts = [an_attempt(message="first"), an_attempt(message="second"), an_attempt(kind="KeyError", message="last")]
    told |= {"attempts": 3, "last_error": "last", "last_error_kind": "KeyError"}
    is_so(evidence(dead, attempts=attempts), "dead", sentence, told)


def test_a_cancelled_task() -> None:
    cancelled = a_task(state="cancelled", finished_at=NOW, reason="expired")
    told = {"reason": "expired", "attempts": 0, "finished_at": NOW}
    is_so(evidence(cancelled), "cancelled", f"It was cancelled {NOW_TEXT}: expired.", told)


def test_a_task_that_runs() -> None:
    running = a_task(attempt=2, started_at=NOW - MINUTE)
    told: dict[str, Any] = {"session": "worker", "token": 7, "attempt": 2, "lease_until": NOW + 29 * SECOND}
    told |= {"host": "here", "pid": 42, "started_at": NOW - MINUTE}
    until = "until 2027-01-15 08:00:29 UTC (in 29s)."
    leased = f"attempt 2, leased by session worker (here, process 42) {until}"
    facts = evidence(running, sessions=[a_session(id="other"), a_session()])
    is_so(facts, "running", f"It is running since {A_MINUTE_AGO}, {leased}", told)
    asked = msgspec.structs.replace(running, cancel="no longer wanted", started_at=None)
    told |= {"cancel": "no longer wanted", "started_at": None}
    is_so(evidence(asked), "stopping", f"It is running, {leased} It was asked to stop: no longer wanted.", told)


def test_a_task_that_was_leased_with_the_head_of_its_key() -> None:
    head, follower = a_task(id="first", key="k"), a_task(key="k")
    told: dict[str, Any] = {"session": "worker", "token": 7, "attempt": 1, "lease_until": NOW + 29 * SECOND}
    told |= {"host": "here", "pid": 42, "started_at": None, "head": "first"}
    sentence = (
        "It was leased together with first, which is ahead of it in its key, by session worker (here, process 42) "
        "until 2027-01-15 08:00:29 UTC (in 29s); it runs after that one, and may have begun."
    )
    is_so(evidence(follower, head=head), "following", sentence, told)
    asked = msgspec.structs.replace(follower, cancel="no")
    is_so(evidence(asked, head=head), "stopping", f"{sentence} It was asked to stop: no.", told | {"cancel": "no"})
    assert explain(evidence(follower, head=follower)) == explain(evidence(follower))
    assert explain(evidence(follower)).code == "running"


@pytest.mark.parametrize("sessions", [[], [a_session(id="other")], [a_session(state="dead")]])
def test_a_task_whose_worker_died(sessions: list[SessionFacts]) -> None:
    sentence = "Its worker died (session worker); the next sweep of any live worker takes it back."
    told = {"session": "worker", "token": 7, "attempt": 1}
    is_so(evidence(a_task(), sessions=sessions), "orphaned", sentence, told)


def test_a_task_whose_worker_is_silent() -> None:
    silent = a_session(expires_at=NOW - 1, beat_at=NOW - MINUTE)
    sentence = (
        f"Its worker (here, process 42) has not been heard of since {A_MINUTE_AGO}; its lease is over, and the next "
        "sweep of any live worker takes the task back."
    )
    told = {"session": "worker", "token": 7, "attempt": 1, "lease_until": NOW - 1, "host": "here", "pid": 42}
    is_so(evidence(a_task(), sessions=[silent]), "lease_over", sentence, told | {"started_at": None})
    assert explain(evidence(a_task(), sessions=[a_session(expires_at=NOW)])).code == "running"


def test_a_task_that_is_not_due() -> None:
    delayed = a_task(state="delayed", ready_at=NOW + MINUTE)
    told: dict[str, Any] = {"due_at": NOW + MINUTE}
    is_so(evidence(delayed, queue_state="paused"), "not_due", f"It is not due until {IN_A_MINUTE}.", told)
    sentence = f"It waits for its next attempt until {IN_A_MINUTE}: attempt 3 failed with ValueError: no such card."
    told |= {"last_error": "no such card.\nand more", "last_error_kind": "ValueError"}
    attempts = [an_attempt(message="earlier"), an_attempt(message="later"), an_attempt(attempt=3)]
    is_so(evidence(delayed, attempts=attempts), "retry", sentence, told)


def test_an_error_without_words_is_told_without_them() -> None:
    delayed = a_task(state="delayed", ready_at=NOW + MINUTE)

    for message, shown in (("", ""), ("why...", "why"), ("whyX", "whyX")):
        sentence = explain(evidence(delayed, attempts=[an_attempt(message=message)])).sentence
        assert sentence.endswith(f"attempt 1 failed with ValueError: {shown}.")


def test_a_task_that_has_just_fallen_due() -> None:
    due = a_task(state="delayed", ready_at=NOW - MINUTE)
    sentence = f"It fell due {A_MINUTE_AGO} and is about to be promoted."
    is_so(evidence(due), "due", sentence, {"due_at": NOW - MINUTE})
    assert explain(evidence(a_task(state="delayed", ready_at=NOW))).code == "due"
    assert explain(evidence(due, queue_state="paused")).code == "queue_paused"


READY = a_task(state="ready")


def test_a_task_that_is_next_or_behind_others() -> None:
    sentence = "It is ready and first in its queue: a worker takes it at its next claim."
    is_so(evidence(READY), "next", sentence, {"ahead": 0})
    sentence = "It is ready and waits for a free slot: 3 ready tasks of its queue come before it."
    is_so(evidence(READY, ahead=3), "behind_others", sentence, {"ahead": 3})


@pytest.mark.parametrize(
    ("queue", "named"), [("billing", "queue 'billing'"), ("shop/billing", "queue 'billing' of namespace 'shop'")]
)
def test_a_paused_or_draining_queue(queue: str, named: str) -> None:
    task = a_task(state="ready", queue=queue, created_at=NOW)
    sentence = f"The {named} is paused; `durably queues resume {queue}` opens it."
    paused = {"queue": queue, "queue_state": "paused"}
    is_so(evidence(task, queue_state="paused"), "queue_paused", sentence, paused)
    facts = evidence(task, queue_cutoff=NOW - MINUTE)
    sentence = (
        f"The {named} is draining since {A_MINUTE_AGO} and this task came later; `durably queues resume {queue}` "
        "opens it."
    )
    is_so(facts, "queue_draining", sentence, {"queue": queue, "cutoff": NOW - MINUTE})


def test_what_a_draining_queue_had_is_not_held_up() -> None:
    assert explain(evidence(a_task(state="ready", created_at=NOW), queue_cutoff=NOW)).code == "next"


@pytest.mark.parametrize("sessions", [[], [a_session(state="dead")], [a_session(expires_at=NOW - 1)]])
def test_nobody_lives(sessions: list[SessionFacts]) -> None:
    sentence = "No live worker: start one with `durably worker module:app`."
    told = {"live_workers": 0, "serving_queue": 0}
    is_so(evidence(READY, sessions=sessions), "no_worker", sentence, told)


def test_a_session_lives_to_the_last_moment_of_its_lease() -> None:
    assert explain(evidence(READY, sessions=[a_session(expires_at=NOW)])).code == "next"


def test_nobody_serves_its_queue() -> None:
    sessions = [a_session(id="one", queues=("b", "a")), a_session(id="two", queues=("a",))]
    sentence = "No live worker serves the queue 'billing'; the 2 that live serve a, b."
    told = {"live_workers": 2, "serving_queue": 0, "served": ["a", "b"]}
    is_so(evidence(READY, sessions=sessions), "queue_not_served", sentence, told)


def test_nobody_knows_its_name() -> None:
    sessions = [a_session(names=("ship",)), a_session(id="elsewhere", queues=("a",))]
    sentence = (
        "No live worker knows a task named 'charge': 1 serve the queue 'billing', but their code does not declare it."
    )
    told = {"live_workers": 2, "serving_queue": 1}
    is_so(evidence(READY, sessions=sessions), "unknown_name", sentence, told)
    assert explain(evidence(READY, sessions=[*sessions, a_session(id="third")])).code == "next"


def test_a_limit_is_reached() -> None:
    api = Gate("g:api", 2, None, 1.0, 1.0, NOW)
    queue = Gate("q:billing", 2, None, 1.0, 1.0, NOW)
    told = {"limit": "g:api", "concurrency": 2, "rate": None, "in_use": 2}
    facts = evidence(READY, limits=[queue, api], in_use={"g:api": 2, "q:billing": 1})
    is_so(facts, "limit_reached", "The limit of the limit group 'api' is reached: 2 of 2 are running.", told)
    told |= {"limit": "q:billing", "in_use": 3}
    facts = evidence(READY, limits=[api, queue], in_use={"q:billing": 3})
    is_so(facts, "limit_reached", "The limit of the queue 'billing' is reached: 3 of 2 are running.", told)
    assert explain(evidence(READY, limits=[api, queue])).code == "next"


@pytest.mark.parametrize("concurrency", [None, 1])
def test_a_rate_is_reached(concurrency: int | None) -> None:
    gate = Gate("g:api", concurrency, 0.1, 1.0, 0.0, NOW)
    sentence = "The rate limit of the limit group 'api' is reached: the next start is possible in 10s."
    told = {"limit": "g:api", "concurrency": concurrency, "rate": 0.1, "in_use": 0}
    is_so(evidence(READY, limits=[gate]), "rate_limited", sentence, told)


def test_a_bucket_that_has_filled_up_since_lets_one_start() -> None:
    assert explain(evidence(READY, limits=[Gate("g:api", None, 0.1, 1.0, 0.0, NOW - MINUTE)])).code == "next"


def test_a_bucket_with_one_token_lets_one_start() -> None:
    assert explain(evidence(READY, limits=[Gate("g:api", None, 0.1, 1.0, 1.0, NOW)])).code == "next"


def test_a_task_that_must_run_alone() -> None:
    sentence = (
        "It must run alone, since its process died 2 times: a worker takes it once it has nothing else in flight."
    )
    is_so(evidence(a_task(state="ready", alone=True, crashes=2)), "runs_alone", sentence, {"crashes": 2})


KEYED = a_task(state="blocked", key="customer-7", gate="api")


def test_a_paused_key() -> None:
    advice = "`durably keys resume billing customer-7` tries the head again, `durably keys skip` takes it out."
    told = {"key": "customer-7", "head": None, "reason": None}
    by_hand = a_key(state="paused")
    is_so(
        evidence(KEYED, key=by_hand),
        "key_paused",
        f"Its key 'customer-7' is paused: by an operator. {advice}",
        told,
    )
    gave_up = a_key(state="paused", reason="attempts exhausted (3): no.\nmore")
    told |= {"head": OTHER, "reason": "attempts exhausted (3): no.\nmore"}
    is_so(
        evidence(KEYED, key=gave_up, head=a_task(id=OTHER)),
        "key_paused",
        f"Its key 'customer-7' is paused: attempts exhausted (3): no. {advice}",
        told,
    )


@pytest.mark.parametrize(
    ("state", "key", "doing"),
    [
        ("leased", None, "which is running"),
        ("leased", a_key(state="leased", ready_at=NOW + MINUTE), "which is running"),
        ("blocked", None, "which is not done either"),
        ("blocked", a_key(ready_at=NOW), "which is not done either"),
        ("blocked", a_key(ready_at=NOW + MINUTE), f"which waits for its next attempt until {IN_A_MINUTE}"),
    ],
)
def test_a_task_behind_the_head_of_its_key(state: str, key: Any, doing: str) -> None:
    head = a_task(id=OTHER, state=state, attempt=3)
    told = {"key": "customer-7", "head": OTHER, "head_state": state, "head_attempt": 3}
    sentence = f"It is behind task {OTHER}, the head of its key 'customer-7', {doing}."
    is_so(evidence(KEYED, key=key, head=head), "behind_head", sentence, told)


@pytest.mark.parametrize(("key", "head"), [(None, None), (a_key(), None), (a_key(), KEYED)])
def test_the_head_of_a_key_is_next(key: Any, head: Any) -> None:
    sentence = "It is the head of its key 'customer-7': a worker takes it at its next claim."
    is_so(evidence(KEYED, key=key, head=head), "next", sentence, {"key": "customer-7"})


def test_a_head_is_held_up_like_any_other() -> None:
    facts = evidence(KEYED, key=a_key(ready_at=NOW + MINUTE), head=KEYED, queue_state="paused")

    assert explain(facts).code == "queue_paused"


def test_a_head_that_waits_for_its_next_attempt() -> None:
    waits = f"It is the head of its key 'customer-7' and waits for its next attempt until {IN_A_MINUTE}"
    told = {"key": "customer-7", "due_at": NOW + MINUTE}
    key = a_key(ready_at=NOW + MINUTE)
    is_so(evidence(KEYED, key=key), "retry", f"{waits}.", told)
    attempts = [an_attempt(message="earlier"), an_attempt(message="later"), an_attempt(attempt=3)]
    failed = f"{waits}: attempt 3 failed with ValueError: no such card."
    is_so(evidence(KEYED, key=key, attempts=attempts), "retry", failed, told)


GROUPED = a_task(state="blocked", gate="api")


@pytest.mark.parametrize("line", [None, NOW])
def test_a_task_of_a_group_waits_for_its_turn(line: int | None) -> None:
    sentence = "It waits for its turn in the limit group 'api': a worker takes it at one of its next claims."
    is_so(evidence(GROUPED, line_ready_at=line), "next", sentence, {"limit": "g:api"})


def test_a_group_that_was_full() -> None:
    sentence = f"The limit group 'api' was full; it is looked at again at {IN_A_MINUTE}."
    facts = evidence(GROUPED, line_ready_at=NOW + MINUTE)
    is_so(facts, "limit_reached", sentence, {"limit": "g:api"})
    assert explain(evidence(GROUPED, line_ready_at=NOW + MINUTE, queue_state="paused")).code == "queue_paused"


def test_a_state_that_nobody_knows_is_told_as_such() -> None:
    sentence = "It is in a state that does not exist ('lost'): something other than Durably wrote its row."
    is_so(evidence(a_task(state="lost")), "unknown_state", sentence, {"state": "lost"})


FIXED = ("s", "live", 1, 2, 3, "here", 42)


def test_a_session_tells_about_itself() -> None:
    info = b'{"queues":["a"],"names":["n"],"concurrency":"8","lease":30,"stuck":1}'

    assert SessionFacts.of((*FIXED, info)) == SessionFacts(*FIXED, ("a",), ("n",), 8, 30.0, 1)


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("info", [b"{}", b"{", b'{"queues":5}', b"[]", DEEP], ids=lambda info: info[:20].decode())
def test_a_session_that_tells_nothing_readable_is_still_known(info: bytes) -> None:
    assert SessionFacts.of((*FIXED, info)) == SessionFacts(*FIXED, (), (), 0, 0.0, 0)
