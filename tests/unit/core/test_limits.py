"""Limits: permits and buckets, without a clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durably import BadOption
from durably.core.limits import Allowance, Gate, allowance, parse_rate, refilled
from durably.core.moment import SECOND


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
        # A millionth of a token is forgiven, and takes as long as the rate says.
        early = max(found.wait // 50, math.ceil(1 / rate) + 1)
        assert allowance(gate, 0, elapsed + found.wait - early, room).count == 0


def test_rates_are_read_as_people_write_them() -> None:
    assert parse_rate("20/s") == (20.0, 20.0)
    assert parse_rate("300/m") == (5.0, 300.0)
    assert parse_rate("1/2h") == (1 / 7200, 1.0)
    for wrong in ("20", "s/20", "-1/s", "0/s", "20/", "20/0s", "many/s", "nan/s"):
        with pytest.raises(BadOption, match="rate"):
            parse_rate(wrong)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("20", "rate: '20' is not a rate; write it like '20/s', '300/m' or '1000/1h'"),
        ("inf/s", "rate: 'inf/s' is not a rate; write it like '20/s', '300/m' or '1000/1h'"),
        (20, "rate: 20 is not a rate; write it like '20/s', '300/m' or '1000/1h'"),
        ("0/s", "rate: '0/s' is not a rate; write it like '20/s', '300/m' or '1000/1h'"),
        ("-0.5/s", "rate: '-0.5/s' is not a rate; write it like '20/s', '300/m' or '1000/1h'"),
        ("20/0s", "rate: '20/0s' has an empty period; write it like '20/s'"),
        ("20/x", "rate: '1x' is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        ("1e10/s", "rate: '1e10/s' must be from one in 30 years to a billion per second"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused_in_these_words(text: str, complaint: str) -> None:
    with pytest.raises(BadOption) as refused:
        parse_rate(text)
    assert str(refused.value) == complaint


def test_rates_reach_from_one_in_30_years_to_a_billion_per_second() -> None:
    assert parse_rate("1000000000/s") == (1e9, 1e9)
    assert parse_rate("1/1000000000s") == (1e-9, 1.0)
    assert parse_rate("1000000000/1000000s") == (1e3, 1e9)
    for beyond in ("1000000001/s", "1/1000000001s"):
        with pytest.raises(BadOption, match="must be from one in 30 years"):
            parse_rate(beyond)


def test_a_slow_rate_has_a_burst_of_one_and_spaces_mean_nothing() -> None:
    assert parse_rate("0.5/s") == (0.5, 1.0)
    assert parse_rate(" 20 / 2 s ") == (10.0, 20.0)


def test_a_gate_without_limits_lets_everything_pass() -> None:
    assert allowance(Gate("g:x", None, None, 5.0, 0.0, 0), 100, 0, 7) == Allowance(7, 0)


@pytest.mark.parametrize(("in_use", "count", "wait"), [(0, 3, 0), (2, 1, 0), (3, 0, 2 * SECOND), (5, 0, 2 * SECOND)])
def test_permits_in_use_leave_the_others(in_use: int, count: int, wait: int) -> None:
    assert allowance(Gate("g:x", 3, None, 1.0, 1.0, 0), in_use, 0, 10) == Allowance(count, wait)


def test_permits_and_rate_both_hold() -> None:
    assert allowance(Gate("g:x", 2, 1.0, 5.0, 5.0, 0), 0, 0, 10) == Allowance(2, 0)
    assert allowance(Gate("g:x", 9, 1.0, 5.0, 3.0, 0), 0, 0, 10) == Allowance(3, 0)
    assert allowance(Gate("g:x", 1, 1.0, 5.0, 0.0, 0), 1, 0, 10) == Allowance(0, 2 * SECOND)
    assert allowance(Gate("g:x", 1, 0.1, 5.0, 0.0, 0), 1, 0, 10) == Allowance(0, 10 * SECOND)
    assert allowance(Gate("g:x", 1, 0.1, 5.0, 3.0, 0), 1, 0, 10) == Allowance(0, 2 * SECOND)


@pytest.mark.parametrize(("tokens", "wait"), [(0.0, 4 * SECOND), (0.75, SECOND), (0.9999996, 0), (0.9999989, 5)])
def test_an_empty_bucket_says_when_it_holds_one_again(tokens: float, wait: int) -> None:
    gate = Gate("g:x", None, 0.25, 5.0, tokens, 0)

    assert allowance(gate, 0, 0, 10) == Allowance(0 if wait else 1, wait)


def test_a_bucket_fills_with_time_up_to_its_burst_and_never_loses_to_a_clock_that_is_behind() -> None:
    gate = Gate("g:x", None, 2.0, 5.0, 1.0, 10 * SECOND)

    assert [refilled(gate, second * SECOND) for second in (9, 10, 11, 12, 13)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert refilled(Gate("g:x", None, None, 5.0, 1.0, 0), SECOND) == 5.0


@pytest.mark.parametrize(
    "gate",
    [
        Gate("g:x", None, 1.0, 5.0, -math.inf, 0),
        Gate("g:x", None, 0.0, 5.0, 0.0, 0),
        Gate("g:x", None, -1.0, 5.0, 0.0, 0),
    ],
)
def test_a_gate_that_was_tampered_with_is_shut_and_looked_at_again_in_a_second(gate: Gate) -> None:
    assert allowance(gate, 0, SECOND, 10) == Allowance(0, SECOND)


def test_no_wait_is_longer_than_that_of_the_slowest_rate() -> None:
    assert allowance(Gate("g:x", None, 1e-9, 5.0, 0.0, 0), 0, 0, 10) == Allowance(0, 1_000_000_000 * SECOND)
    assert allowance(Gate("g:x", None, 1e-9, 5.0, -7.0, 0), 0, 0, 10) == Allowance(0, 1_000_000_000 * SECOND)
