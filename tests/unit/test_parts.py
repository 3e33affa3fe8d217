"""Small parts by themselves: ids, limits, deadlines, sessions, the failure tracker, the codec's edges."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durably import BadOption, BadPayload
from durably.core.codec import Signature, encode
from durably.core.ids import PARTITIONS, Ids, derived, partition_for, partition_of
from durably.core.limits import Gate, allowance, parse_rate
from durably.core.moment import SECOND
from durably.testing.clock import ManualClock
from durably.worker.deadlines import Deadlines, Expires
from durably.worker.scanners import ROUNDS, STRIKES, Failures, one_by_one
from durably.worker.session import Session


def test_ids_are_uuids_of_version_7_that_sort_by_time_and_carry_their_partition() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = []
    for _ in range(50):
        made.append(ids.task("customer-7"))
        clock.advance(0.001)

    assert made == sorted(made)
    assert {UUID(one).version for one in made} == {7}
    assert {partition_of(one) for one in made} == {partition_for("customer-7")}
    assert len({partition_of(ids.task(None)) for _ in range(200)}) > 100


def test_ids_repeat_with_the_same_clock_and_chance() -> None:
    first, second = (Ids(ManualClock(), random.Random(7)) for _ in range(2))

    assert [first.task(None) for _ in range(5)] == [second.task(None) for _ in range(5)]
    assert first.session() == second.session()


def test_derived_ids_depend_on_task_attempt_and_index_alone() -> None:
    parent = Ids(ManualClock()).task(None)

    assert derived(parent, 1, 0, None) == derived(parent, 1, 0, None)
    assert len({derived(parent, attempt, index, None) for attempt in range(5) for index in range(5)}) == 25
    assert partition_of(derived(parent, 1, 0, "k")) == partition_for("k") < PARTITIONS
    assert UUID(derived(parent, 1, 0, "k")).version == 7


@given(
    tokens=st.floats(0, 50), elapsed=st.integers(0, 100 * SECOND), rate=st.floats(0.01, 100), room=st.integers(1, 100)
)
def test_a_bucket_gives_no_more_than_it_holds_and_says_when_to_come_back(
    tokens: float, elapsed: int, rate: float, room: int
) -> None:
    gate = Gate("g:x", None, rate, 50.0, tokens, 0)
    found = allowance(gate, 0, elapsed, room)

    assert 0 <= found.count <= min(room, 50)
    if found.count == 0:
        later = allowance(gate, 0, elapsed + found.wait, room)
        assert later.count >= 1
        assert allowance(gate, 0, elapsed + found.wait - max(found.wait // 50, 2), room).count == 0


def test_rates_are_read_as_people_write_them() -> None:
    assert parse_rate("20/s") == (20.0, 20.0)
    assert parse_rate("300/m") == (5.0, 300.0)
    assert parse_rate("1/2h") == (1 / 7200, 1.0)
    for wrong in ("20", "s/20", "-1/s", "0/s", "20/", "20/0s", "many/s", "nan/s"):
        with pytest.raises(BadOption, match="rate"):
            parse_rate(wrong)


class Watched:
    def __init__(self, name: str) -> None:
        self.name = name
        self.finished = False


def test_deadlines_ring_in_time_and_not_for_what_has_finished() -> None:
    rung: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        all_rung = asyncio.Event()

        def expire(what: Expires) -> None:
            assert isinstance(what, Watched)
            rung.append(what.name)
            if what.name == "slow":
                all_rung.set()

        deadlines = Deadlines(loop, expire)
        quick, done, slow = Watched("quick"), Watched("done"), Watched("slow")
        deadlines.arm(0.03, slow)
        deadlines.arm(0.01, done)
        deadlines.arm(0.01, quick)
        done.finished = True
        await all_rung.wait()
        deadlines.arm(0.01, Watched("never"))
        deadlines.close()

    asyncio.run(story())
    assert rung == ["quick", "slow"]


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


def test_arguments_travel_by_name_in_every_form_of_signature() -> None:
    def every(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> None: ...

    signature = Signature(every, "every")
    args, kwargs = signature.decode(signature.encode((1, 2, 8, 9), {"c": 4, "d": 5}))

    assert (args, kwargs) == ([1, 2, 8, 9], {"c": 4, "d": 5})


def test_annotations_that_cannot_be_resolved_are_a_clear_error() -> None:
    async def broken(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadPayload, match="signature of task 'broken' cannot be used: name 'Missing' is not defined"):
        Signature(broken, "broken").encode((1,), {})


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), [1.0, {"x": float("-inf")}], "\ud800", object(), {1, object()}],
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(BadPayload, match="cannot be stored"):
        encode(value, "it")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadPayload):
        encode(loop, "it")


def test_null_is_not_mistaken_for_nan() -> None:
    class Holder(msgspec.Struct):
        inner: float | None

    assert encode([None, Holder(None), {"a": None}], "it") == b'[null,{"inner":null},{"a":null}]'
    with pytest.raises(BadPayload):
        encode(Holder(float("nan")), "it")
