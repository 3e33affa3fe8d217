"""Durations and moments: people write "5m", the engine counts microseconds since 1970."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from durably.core.brief import brief
from durably.errors import BadOption

Duration = str | float | int | timedelta

SECOND = 1_000_000
FOREVER = 2**62
LONGEST = 100
"""More characters than a duration needs."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def seconds(value: Duration, what: str = "duration") -> float:
    """The duration in seconds: 90, "90s", "1m30s" and timedelta(seconds=90) are the same."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, bool):
        raise BadOption(f"{what}: {value!r} is not a duration; write seconds, or text such as '30s', '5m', '1h30m'")
    elif isinstance(value, int | float):
        found = float(value) if abs(value) < FOREVER else math.inf
    else:
        found = _parse(value, what)
    if not 0 <= found * SECOND <= FOREVER:
        raise BadOption(f"{what}: {brief(value)} must be zero or more, and finite")
    return found


def _parse(text: str, what: str) -> float:
    compact = text.replace(" ", "") if isinstance(text, str) else ""
    parts = _PART.findall(compact) if len(compact) <= LONGEST else []
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise BadOption(f"{what}: {brief(text)} is not a duration; write it like '30s', '5m', '1h30m' or '7d'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def micros(value: float) -> int:
    """Seconds as whole microseconds, the unit of every column that holds a time."""
    return round(value * SECOND)


def moment(value: datetime, what: str = "at") -> int:
    """The moment in microseconds since 1970. A naive datetime is refused: it would mean another time elsewhere."""
    if value.tzinfo is None:
        raise BadOption(f"{what}: {value!r} has no time zone; use datetime.now(UTC) or attach tzinfo")
    return round(value.timestamp() * SECOND)


def as_datetime(when: int) -> datetime:
    """The moment as an aware datetime in UTC; what lies beyond the years 1 to 9999 becomes their first or last."""
    return _EPOCH + timedelta(microseconds=min(max(when, _FIRST), _LAST))


def spoken(duration: int) -> str:
    """A duration in microseconds as a person would say it: "850ms", "42s", "5m 10s", "3h 5m", "2d 4h"."""
    if duration < SECOND:
        return f"{max(duration, 0) // 1000}ms"
    whole = duration // SECOND
    if whole < 60:
        return f"{whole}s"
    parts = ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s"))
    big, small, size, unit = next(part for part in parts if whole >= part[0])
    rest = whole % big // small
    return f"{whole // big}{size} {rest}{unit}" if rest else f"{whole // big}{size}"


class Clock(Protocol):
    """Where the engine gets the time from; tests and simulations bring their own."""

    def now(self) -> int:
        """Microseconds since 1970, by this host."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring how long something took."""
        ...


class HostClock:
    """The host's clock, clamped so that it never runs backwards within this process."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._latest = 0

    def now(self) -> int:
        found = int(self._wall() * SECOND)
        if found < self._latest:
            return self._latest
        self._latest = found
        return found

    def monotonic(self) -> float:
        return self._steady()
