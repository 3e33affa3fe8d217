"""Durations, moments and the clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durably import BadOption
from durably.core.moment import SECOND, HostClock, as_datetime, micros, moment, seconds, spoken


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("30s", 30), ("1h30m", 5400), ("500ms", 0.5), ("1.5d", 129600), ("2 w", 1209600), (7, 7), (0.25, 0.25)],
)
def test_durations_are_read_as_people_write_them(given: str | float, wanted: float) -> None:
    assert seconds(given) == wanted
    assert seconds(timedelta(seconds=wanted)) == wanted


@pytest.mark.parametrize("given", ["", "5", "m5", "5m!", "-5m", "5 minutes", "1e9999s", -1, float("nan")])
def test_what_is_no_duration_is_refused(given: str | float) -> None:
    with pytest.raises(BadOption):
        seconds(given)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(BadOption, match="no time zone"):
        moment(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    when = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    assert as_datetime(moment(when)) == when


@pytest.mark.parametrize(
    ("micros", "wanted"),
    [(0, "0ms"), (850_000, "850ms"), (42_900_000, "42s"), (310_000_000, "5m 10s"), (3_600_000_000, "1h"),
     (11_100_000_000, "3h 5m"), (187_200_000_000, "2d 4h")],
)  # fmt: skip
def test_durations_are_spoken_as_people_say_them(micros: int, wanted: str) -> None:
    assert spoken(micros) == wanted


def test_the_host_clock_never_runs_backwards() -> None:
    walls = iter([100.0, 90.0, 95.0, 101.0])
    clock = HostClock(wall=lambda: next(walls))

    assert [clock.now() for _ in range(4)] == [100_000_000, 100_000_000, 100_000_000, 101_000_000]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (True, "wait: True is not a duration; write seconds, or text such as '30s', '5m', '1h30m'"),
        ("soon", "wait: 'soon' is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        ([5], "wait: [5] is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        (-1, "wait: -1 must be zero or more, and finite"),
        (-1e-7, "wait: -1e-07 must be zero or more, and finite"),
        (10**400, f"wait: {'1' + '0' * 99}... must be zero or more, and finite"),
    ],
)
def test_what_is_no_duration_is_refused_in_these_words(given: Any, complaint: str) -> None:
    with pytest.raises(BadOption) as refused:
        seconds(given, "wait")
    assert str(refused.value) == complaint


def test_an_unnamed_duration_is_called_so() -> None:
    with pytest.raises(BadOption, match=r"^duration: 'soon'"):
        seconds("soon")


def test_every_unit_has_its_length() -> None:
    units = ("ms", "s", "m", "h", "d", "w")

    assert [seconds(f"2{unit}") for unit in units] == [0.002, 2, 120, 7200, 172_800, 1_209_600]
    assert seconds("1w1d1h1m1s1ms") == 694_861.001
    assert seconds("0.5 h 30 m") == 3600


def test_a_duration_ends_where_moments_do() -> None:
    assert seconds(2**62 / SECOND) == 2**62 / SECOND
    assert seconds(0) == 0
    for beyond in (2**62 // SECOND + 1, 2**62, -(2**62), 2**63):
        with pytest.raises(BadOption, match="zero or more, and finite"):
            seconds(beyond)


def test_text_that_is_much_too_long_for_a_duration_is_not_even_looked_at() -> None:
    assert seconds("1s" * 50) == 50
    with pytest.raises(BadOption, match="is not a duration"):
        seconds("1s" * 49 + "1ms")


def test_seconds_become_whole_microseconds() -> None:
    assert [micros(value) for value in (0, 1, 0.0000014, 0.0000016, 2.5)] == [0, 1_000_000, 1, 2, 2_500_000]


def test_a_moment_without_a_time_zone_is_refused_in_these_words() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    for what in ("at", "since"):
        with pytest.raises(BadOption) as refused:
            moment(naive, what) if what != "at" else moment(naive)
        assert str(refused.value) == (
            f"{what}: datetime.datetime(2026, 1, 1, 0, 0) has no time zone; use datetime.now(UTC) or attach tzinfo"
        )


def test_moments_beyond_the_calendar_become_its_first_or_last() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert (as_datetime(-(2**63)), as_datetime(2**63)) == (first, last)
    assert (as_datetime(-62_135_596_800 * SECOND), as_datetime(-62_135_596_800 * SECOND - 1)) == (first, first)
    assert as_datetime(-62_135_596_800 * SECOND + 1) == first + timedelta(microseconds=1)
    assert as_datetime(253_402_300_800 * SECOND - 2) == last - timedelta(microseconds=1)
    assert as_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("micros", "wanted"),
    [(-5, "0ms"), (1_999, "1ms"), (999_999, "999ms"), (SECOND, "1s"), (59_999_999, "59s"), (60 * SECOND, "1m"),
     (61 * SECOND, "1m 1s"), (3599 * SECOND, "59m 59s"), (3659 * SECOND, "1h"), (3660 * SECOND, "1h 1m"),
     (86399 * SECOND, "23h 59m"), (86400 * SECOND, "1d"), (89_999 * SECOND, "1d"), (90_000 * SECOND, "1d 1h")],
)  # fmt: skip
def test_durations_are_spoken_by_their_two_largest_parts(micros: int, wanted: str) -> None:
    assert spoken(micros) == wanted


def test_the_host_clock_tells_both_times() -> None:
    clock = HostClock(wall=lambda: 5.25, steady=lambda: 7.5)

    assert (clock.now(), clock.monotonic()) == (5_250_000, 7.5)
    assert abs(HostClock().now() - time.time() * SECOND) < 3600 * SECOND
    assert HostClock().monotonic() <= time.monotonic()
