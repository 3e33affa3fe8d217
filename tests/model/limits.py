"""A limit as the model knows it: how many may run at once, and how many may start in any stretch of time."""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 1_000_000
ROUNDING = 1e-3


@dataclass(eq=False)
class Limit:
    """What was set, and when tasks have started since."""

    concurrency: int | None
    rate: float | None
    burst: float
    set_at: int
    started: list[int] = field(default_factory=list)

    def allows(self, new: int, now: int) -> bool:
        """Whether so many may start: no stretch of time may see more than the burst and what its rate brings."""
        if self.rate is None:
            return True
        starts = [*self.started, *[now] * new]
        return all(
            len(starts) - index <= self.burst + self.rate * (now - since) / SECOND + ROUNDING
            for index, since in enumerate(starts)
        )

    def may_refuse(self, now: int, patience: int) -> bool:
        """Whether it may still be shut because of its rate: too little time has passed since the last start."""
        if self.rate is None:
            return False
        return now - max([self.set_at, *self.started]) < SECOND / self.rate + patience
