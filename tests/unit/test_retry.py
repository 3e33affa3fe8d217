"""Retry policies: validated when they are made, jittered within their bounds, honest about their worst case."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durably import BadOption, Retry

fractions = st.floats(0, 1)


def test_listed_delays_make_one_attempt_more() -> None:
    policy = Retry.after("30s", "5m", "30m", "6h", "24h")

    assert policy.attempts == 6
    assert [policy.delay(spent, 0.5) for spent in range(1, 6)] == [30, 300, 1800, 21600, 86400]
    assert policy.horizon == 30 + 300 + 1800 + 21600 + 86400


def test_an_exponential_policy_grows_to_its_cap() -> None:
    policy = Retry.exponential(attempts=10, base="5s", factor=2, cap="1m", jitter=0)

    assert [policy.delay(spent, 0.5) for spent in range(1, 7)] == [5, 10, 20, 40, 60, 60]


def test_a_constant_policy_waits_the_same() -> None:
    policy = Retry.constant(4, timedelta(seconds=7))

    assert {policy.delay(spent, 0.9) for spent in range(1, 4)} == {7}
    assert policy.horizon == 21


def test_a_custom_policy_is_asked_and_capped() -> None:
    policy = Retry.custom(lambda failures: failures**3, attempts=5, cap="20s")

    assert [policy.delay(spent, 0.5) for spent in range(1, 5)] == [1, 8, 20, 20]
    assert policy.horizon == 49


def test_a_custom_policy_that_answers_nonsense_is_an_error() -> None:
    with pytest.raises(BadOption, match="answered -1"):
        Retry.custom(lambda failures: -1, attempts=5, cap="20s").delay(1, 0)


def test_never_means_one_attempt() -> None:
    assert Retry.never().attempts == 1
    assert Retry.never().horizon == 0


@given(
    spent=st.integers(1, 5000),
    chance=fractions,
    base=st.floats(0.001, 100),
    factor=st.floats(1, 50),
    more=st.floats(0, 100_000),
    jitter=fractions,
)
def test_jitter_breaks_neither_the_cap_nor_the_floor(
    spent: int, chance: float, base: float, factor: float, more: float, jitter: float
) -> None:
    policy = Retry.exponential(attempts=10_000, base=base, factor=factor, cap=base + more, jitter=jitter)

    assert base <= policy.delay(spent, chance) <= (base + more) * (1 + 1e-9)


def test_jitter_is_not_void_at_the_cap() -> None:
    policy = Retry.exponential(attempts=50, base=1, cap=100, jitter=0.25)

    assert policy.delay(40, 0.0) == 75
    assert policy.delay(40, 1.0) == 100


@given(chances=st.lists(fractions, min_size=9, max_size=9))
def test_the_horizon_is_never_exceeded(chances: list[float]) -> None:
    for policy in (
        Retry.exponential(attempts=10, base=3, cap=60, jitter=0.5),
        Retry.after(*range(1, 10), jitter=0.3),
        Retry.constant(10, 5, jitter=1),
    ):
        total = sum(policy.delay(spent, chance) for spent, chance in enumerate(chances, start=1))
        assert total <= policy.horizon * (1 + 1e-9)


def test_a_failure_may_ask_for_more_but_not_for_less() -> None:
    policy = Retry.constant(3, 10)

    assert policy.delay(1, 0, at_least=60) == 60
    assert policy.delay(1, 0, at_least=1) == 10


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Retry.exponential(attempts=0), "attempts is 0"),
        (lambda: Retry.exponential(attempts=10**6), "attempts is 1000000"),
        (lambda: Retry.exponential(base="1h", cap="1m"), "below the base"),
        (lambda: Retry.exponential(factor=0.5), "factor"),
        (lambda: Retry.exponential(jitter=1.5), "jitter is 1.5"),
        (lambda: Retry.exponential(base="soon"), "'soon' is not a duration"),
        (lambda: Retry.after("1 fortnight"), "is not a duration"),
        (lambda: Retry.constant(3, -1), "zero or more"),
        (lambda: Retry.constant(3, float("inf")), "finite"),
        (lambda: Retry.constant(3, True), "not a duration"),
        (lambda: Retry.custom("no", 3, "1m"), "not callable"),  # type: ignore[arg-type]
        (lambda: Retry.constant(3, 1, permanent=("ValueError",)), "not an exception class"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(make: object, complaint: str) -> None:
    with pytest.raises(BadOption, match=complaint):
        make()  # type: ignore[operator]


def test_permanent_exceptions_include_their_descendants() -> None:
    policy = Retry.constant(3, 1, permanent=(LookupError,))

    assert policy.is_permanent(KeyError("x"))
    assert not policy.is_permanent(ValueError("x"))
    assert not Retry.constant(3, 1).is_permanent(KeyError("x"))
