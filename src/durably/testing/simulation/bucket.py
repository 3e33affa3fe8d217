"""The ideal of a rate limit, to compare the store's with."""

from __future__ import annotations

from durably.core.moment import SECOND
from durably.testing.simulation.snapshot import GateRow


class Bucket:
    """An ideal token bucket, filled from the limit's own numbers."""

    def __init__(self, gate: GateRow, now: int) -> None:
        self.gate = gate
        self._rate = gate.rate or 0.0
        self._burst = gate.burst
        self._tokens = gate.burst
        self._at = now

    def take(self, now: int) -> float:
        """Take one token; what is left."""
        passed = max(now - self._at, 0)
        self._tokens = min(self._burst, self._tokens + passed / SECOND * self._rate) - 1
        self._at += passed
        return self._tokens
