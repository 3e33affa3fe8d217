"""A clock that stands still until a test moves it."""

from __future__ import annotations

from durably.core.moment import SECOND

START = 1_800_000_000 * SECOND


class ManualClock:
    """Time that passes only by `advance`; wall clock and monotonic clock move together."""

    def __init__(self, start: int = START) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._now / SECOND

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += round(seconds * SECOND)
