"""Small parts by themselves: deadlines, sessions, the failure tracker, batches of drafts, events, contexts."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from durably import BadOption
from durably.client.bulk import BATCH, BYTES, SLICE, batches
from durably.core.task import NO_OPTIONS, Draft
from durably.observe.events import Event, Events
from durably.worker.deadlines import Deadlines
from durably.worker.execute import Attempt
from durably.worker.scanners import ROUNDS, STRIKES, Failures, one_by_one
from durably.worker.session import Session

from .core.facts import a_task


def test_deadlines_ring_in_time_and_not_for_what_was_disarmed() -> None:
    rung: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        all_rung = asyncio.Event()

        def expire(what: str) -> None:
            rung.append(what)
            deadlines.disarm(0.01, what)
            if what == "slow":
                all_rung.set()

        deadlines: Deadlines[str] = Deadlines(loop, expire)
        deadlines.arm(0.03, "slow")
        deadlines.arm(0.01, "done")
        deadlines.arm(0.01, "quick")
        deadlines.disarm(0.01, "done")
        await all_rung.wait()
        deadlines.arm(0.01, "never")
        deadlines.close()

    asyncio.run(story())
    assert rung == ["quick", "slow"]


def test_deadlines_let_go_of_what_was_disarmed() -> None:
    class Attempt: ...

    async def story() -> None:
        deadlines: Deadlines[Attempt] = Deadlines(asyncio.get_running_loop(), lambda what: None)
        first, second = Attempt(), Attempt()
        gone = weakref.ref(second)
        deadlines.arm(3600, first)
        deadlines.arm(3600, second)
        deadlines.disarm(3600, second)
        del second

        assert gone() is None
        deadlines.close()

    asyncio.run(story())


def test_a_session_starts_nothing_after_a_lease_without_an_answer() -> None:
    session = Session("s", lease=10, now=0)

    assert session.may_start(9.9)
    assert not session.may_start(10)
    session.acknowledge(sent=9, now=9.5)
    assert session.may_start(18.9)
    assert not session.may_start(19)
    session.lost = True
    assert not session.may_start(10)


def test_a_session_judges_nobody_before_it_has_reached_the_store_for_a_lease() -> None:
    session = Session("s", lease=10, now=0)
    for now in (2.5, 5.0, 7.5, 10.0):
        assert not session.may_judge(now - 0.1)
        session.acknowledge(now, now)
    assert session.may_judge(10.0)
    # An outage: its own beat was late, so others may have had no chance either.
    session.acknowledge(25.0, 25.0)
    assert not session.may_judge(25.0)
    for now in (27.5, 30.0, 32.5, 35.0):
        session.acknowledge(now, now)
    assert session.may_judge(35.0)


def test_a_row_that_keeps_failing_is_left_out_for_some_rounds() -> None:
    failures = Failures()
    for _ in range(STRIKES):
        assert failures.begin() == []
        failures.struck("bad", ValueError())
    for _ in range(ROUNDS - 1):
        assert failures.begin() == ["bad"]
    assert failures.begin() == []
    failures.struck("bad", ValueError())
    assert failures.begin() == ["bad"], "one more strike is enough after that"


def test_a_success_forgets_the_strikes() -> None:
    failures = Failures()
    for _ in range(10):
        failures.begin()
        failures.struck("shaky", ValueError())
        failures.passed("shaky")
    assert failures.begin() == []


def test_one_bad_row_stops_nobody_else() -> None:
    done: list[str] = []
    failures = Failures()

    async def whole(rows: list[str]) -> int:
        if "bad" in rows:
            raise BadOption("no")
        done.extend(rows)
        return len(rows)

    assert asyncio.run(one_by_one(["a", "bad", "b"], failures, whole)) == 2
    assert done == ["a", "b"]


def sliced(drafts: list[Draft]) -> Iterator[list[Draft]]:
    return (drafts[place : place + SLICE] for place in range(0, len(drafts), SLICE))


def test_a_batch_of_drafts_ends_with_their_number_or_with_their_bytes() -> None:
    small = [Draft(str(number), "noop", "default", b"{}") for number in range(BATCH + 1)]
    large = [Draft(str(number), "noop", "default", bytes(BYTES)) for number in range(SLICE + 1)]

    assert [len(batch) for batch in batches(sliced(small))] == [BATCH, 1]
    assert [len(batch) for batch in batches(sliced(large))] == [SLICE, 1]
    assert [draft for batch in batches(sliced(small)) for draft in batch] == small


def test_events_are_observed_as_long_as_anybody_listens() -> None:
    events = Events()
    seen: list[Event] = []
    assert not events.observed
    leave, leave_too = events.subscribe(seen.append), events.subscribe(seen.append)
    leave()
    assert events.observed
    events.emit(Event("started"))
    leave_too()
    assert not events.observed
    assert seen == [Event("started")]


def test_everyone_who_asks_for_the_context_of_an_attempt_gets_the_same_one() -> None:
    meeting = threading.Barrier(2, timeout=10)
    made: list[object] = []

    def introduce(attempt: Attempt) -> Any:
        made.append(attempt)
        return object()

    class Declared:
        class settings:
            timeout = None

    declared: Any = Declared
    attempt = Attempt(a_task(), declared, NO_OPTIONS, ([], {}), 0.0, None, introduce)
    found: list[object] = []

    def ask() -> None:
        meeting.wait()
        found.append(attempt.context)

    assert attempt.known is None
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [attempt]
    assert found == [attempt.known] * 2
