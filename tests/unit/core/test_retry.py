"""Retry policies: validated when they are made, jittered within their bounds, honest about their worst case."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durably import BadOption, Retry
from durably.core.retry import DEFAULT_RETRY

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


def test_policies_that_are_not_spelled_out_have_these_numbers() -> None:
    assert Retry("constant", 3) == Retry("constant", 3, (), 0.0, 1.0, 0.0, 0.0, (), None)
    assert Retry.exponential() == Retry("exponential", 8, (), 1.0, 2.0, 3600.0, 0.25)
    assert Retry.constant() == Retry("constant", 8, (), 10.0, 1.0, 0.0, 0.0)
    assert Retry.after("1s") == Retry("after", 2, (1.0,))
    assert Retry.never() == Retry("after", 1)
    assert Retry.exponential() == DEFAULT_RETRY


def test_policies_keep_what_they_are_given() -> None:
    given: Any = {"jitter": 0.5, "permanent": (KeyError, Own)}
    names = ("builtins.KeyError", f"{__name__}.Own")

    assert Retry.after(1, 2, **given) == Retry("after", 3, (1.0, 2.0), jitter=0.5, permanent=names)
    assert Retry.exponential(5, 2, 3, "1m", **given) == Retry("exponential", 5, (), 2.0, 3.0, 60.0, 0.5, names)
    assert Retry.constant(5, 2, **given) == Retry("constant", 5, (), 2.0, jitter=0.5, permanent=names)
    custom = Retry.custom(float, 5, "1m", permanent=(KeyError, Own))
    assert custom == Retry("custom", 5, cap=60.0, permanent=names, function=float)


class Own(Exception): ...


def test_every_wait_has_its_spread() -> None:
    policies = (
        Retry.after(10, 20, jitter=0.5),
        Retry.constant(5, 10, jitter=0.5),
        Retry.exponential(9, 10, 2, 100, 0.5),
        Retry.custom(lambda failures: 30.0 * failures, 5, 50),
    )
    spread = [[(policy.delay(spent, 0.0), policy.delay(spent, 1.0)) for spent in (1, 2, 3, 5)] for policy in policies]

    assert spread == [
        [(10, 15), (20, 30), (20, 30), (20, 30)],
        [(10, 15), (10, 15), (10, 15), (10, 15)],
        [(10, 15), (10, 30), (20, 60), (50, 100)],
        [(30, 30), (50, 50), (50, 50), (50, 50)],
    ]
    assert policies[0].delay(1, 0.5) == 12.5


def test_the_horizon_of_a_policy_counts_the_waits_between_its_attempts() -> None:
    assert Retry.exponential(4, 1, 2, 100, 0).horizon == 1 + 2 + 4
    assert Retry.constant(3, 10, jitter=0.5).horizon == 30


@pytest.mark.parametrize("factor", [1e300, 50])
def test_a_wait_that_grows_beyond_all_numbers_is_the_cap(factor: float) -> None:
    assert Retry.exponential(10_000, 1, factor, 60, 0).delay(9_999, 0.0) == 60


def test_a_failure_asks_for_nothing_more_unless_it_says_so() -> None:
    assert Retry.constant(3, 0).delay(1, 0) == 0


def test_the_bounds_of_a_policy_belong_to_it() -> None:
    assert Retry.constant(1, 0).attempts == 1
    assert Retry.constant(10_000, 0).attempts == 10_000
    assert Retry.exponential(factor=1, base=5, cap=5, jitter=0).delay(3, 1.0) == 5
    assert Retry.constant(3, 5, jitter=1).delay(1, 1.0) == 10
    assert Retry.custom(lambda failures: 0, 3, 5).delay(1, 0) == 0


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Retry.constant(0, 1), "Retry: attempts is 0; it must be a whole number from 1 to 10000"),
        (lambda: Retry.constant(10_001, 1), "Retry: attempts is 10001; it must be a whole number from 1 to 10000"),
        (lambda: Retry.constant(2.5, 1), "Retry: attempts is 2.5; it must be a whole number from 1 to 10000"),  # type: ignore[arg-type]
        (lambda: Retry.constant(3, 1, 1.5), "Retry: jitter is 1.5; it must be from 0 (none) to 1 (100 %)"),
        (lambda: Retry.constant(3, 1, -0.5), "Retry: jitter is -0.5; it must be from 0 (none) to 1 (100 %)"),
        (lambda: Retry.constant(3, 1, math.nan), "Retry: jitter is nan; it must be from 0 (none) to 1 (100 %)"),
        (lambda: Retry.exponential(factor=0.5), "Retry.exponential factor: 0.5 must be 1 or more"),
        (lambda: Retry.exponential(factor=math.inf), "Retry.exponential factor: inf must be 1 or more"),
        (lambda: Retry.exponential(base=5, cap=4), "Retry.exponential: the cap 4 is below the base 5"),
        (lambda: Retry.custom(5, 3, 1), "Retry.custom: 5 is not callable"),  # type: ignore[arg-type]
        (lambda: Retry.constant(3, 1, permanent=(5,)), "permanent: 5 is not an exception class"),  # type: ignore[arg-type]
        (lambda: Retry.constant(3, 1, permanent=(int,)), f"permanent: {int!r} is not an exception class"),  # type: ignore[arg-type]
        (
            lambda: Retry.custom(lambda n: math.inf, 3, 1).delay(2, 0),
            "Retry.custom: the function answered inf for failure 2",
        ),
        (lambda: Retry.after("x"), "Retry.after: 'x' is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        (lambda: Retry.exponential(base=-1), "Retry.exponential base: -1 must be zero or more, and finite"),
        (lambda: Retry.exponential(cap=-1), "Retry.exponential cap: -1 must be zero or more, and finite"),
        (lambda: Retry.constant(3, -1), "Retry.constant: -1 must be zero or more, and finite"),
        (lambda: Retry.custom(float, 3, -1), "Retry.custom cap: -1 must be zero or more, and finite"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_in_these_words(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(BadOption) as refused:
        make()
    assert str(refused.value) == complaint
