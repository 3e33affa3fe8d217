"""Small pieces of text: relative times, counts, rates, and data made safe for a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from durably.core.limits import Gate
from durably.core.moment import micros, spoken

ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
LINE_BREAKS = {ord("\n"): "\n", ord("\t"): "    "}
PERIODS = ((1.0, "s"), (60.0, "m"), (3600.0, "h"))


def printable(text: str, *, lines: bool = False) -> str:
    """The text with its control characters spelled out, so that data cannot drive the terminal."""
    return text.translate({**ESCAPES, **LINE_BREAKS} if lines else ESCAPES)


def counted(number: int, thing: str) -> str:
    """ "1 task", "3 tasks", "12,000 tasks"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def relative(when: datetime) -> str:
    """ "3m ago", "in 5s"; by this host's clock."""
    distance = micros((when - datetime.now(UTC)).total_seconds())
    if abs(distance) < micros(1):
        return "just now"
    size = spoken(abs(distance)).split()[0]
    return f"in {size}" if distance > 0 else f"{size} ago"


def exact(when: datetime) -> str:
    """The moment to the second, and how far away it is."""
    return f"{when:%Y-%m-%d %H:%M:%S} UTC ({relative(when)})"


def rate(per_second: float) -> str:
    """ "20/s", "5/m": per the shortest period in which at least one may start."""
    period, unit = next((one for one in PERIODS if per_second * one[0] >= 1), PERIODS[-1])
    return f"{per_second * period:g}/{unit}"


def limit(gate: Gate | None) -> str:
    """A limit as a person would say it; nothing when there is none."""
    if gate is None:
        return ""
    parts = [] if gate.concurrency is None else [f"{gate.concurrency} at once"]
    if gate.rate is not None:
        parts.append(f"{rate(gate.rate)} (burst {gate.burst:g})")
    return ", ".join(parts)
