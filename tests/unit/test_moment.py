"""Durations, moments and the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from durably import BadOption
from durably.core.moment import HostClock, as_datetime, moment, seconds, spoken


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
