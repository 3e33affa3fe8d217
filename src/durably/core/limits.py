"""Limits: how many tasks of a group may start now. A token bucket and a count of permits, without a clock."""

from __future__ import annotations

import math

import msgspec

from durably.core.brief import brief
from durably.core.moment import SECOND, seconds
from durably.errors import BadOption

RECHECK = 2 * SECOND
SLOWEST, FASTEST = 1e-9, 1e9
"""Tokens per second."""


class Gate(msgspec.Struct, frozen=True, gc=False):
    """The limit of a queue or of a limit group, and the state of its bucket."""

    name: str
    concurrency: int | None
    rate: float | None
    burst: float
    tokens: float
    refilled_at: int


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """How many may start, and if none may, how long until it is worth asking again."""

    count: int
    wait: int


def refilled(gate: Gate, now: int) -> float:
    """The tokens in the bucket now."""
    if gate.rate is None:
        return gate.burst
    elapsed = max(now - gate.refilled_at, 0) / SECOND
    tokens = min(gate.burst, gate.tokens + elapsed * gate.rate)
    # A row that was tampered with must not stop the claims of everyone else.
    return tokens if math.isfinite(tokens) else 0.0


def allowance(gate: Gate, in_use: int, now: int, room: int) -> Allowance:
    """How many of at most `room` tasks may start now."""
    count = room
    wait = 0
    if gate.concurrency is not None:
        count = min(count, max(gate.concurrency - in_use, 0))
        wait = RECHECK if gate.concurrency <= in_use else 0
    if gate.rate is not None:
        tokens = refilled(gate, now)
        # A refill that is due to the microsecond must not be lost to rounding.
        whole = max(int(tokens + 1e-6), 0)
        count = min(count, whole)
        if whole < 1:
            needed = (1 - tokens) / gate.rate if gate.rate >= SLOWEST else 1.0
            wait = max(wait, math.ceil(min(needed, 1 / SLOWEST) * SECOND))
    return Allowance(count, wait)


def parse_rate(text: str) -> tuple[float, float]:
    """The tokens per second and the burst of a rate such as "20/s", "300/m" or "1000/1h"."""
    count, slash, period = text.replace(" ", "").partition("/") if isinstance(text, str) else ("", "", "")
    try:
        number = float(count)
    except ValueError:
        number = math.nan
    if not slash or not math.isfinite(number) or number <= 0:
        raise BadOption(f"rate: {brief(text)} is not a rate; write it like '20/s', '300/m' or '1000/1h'")
    span = seconds(period if period[:1].isdigit() else f"1{period}", "rate")
    if span <= 0:
        raise BadOption(f"rate: {brief(text)} has an empty period; write it like '20/s'")
    if not SLOWEST <= number / span <= FASTEST:
        raise BadOption(f"rate: {brief(text)} must be from one in 30 years to a billion per second")
    return number / span, max(number, 1.0)
