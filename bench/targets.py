"""What must be reached, as ratios within one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.contenders import OURS

Results = dict[str, Any]
GRAPHILE, ENGINE = "graphile-worker", "engine-shaped loop"
REACHED, MISSED, UNKNOWN = "reached", "not reached", "not measured"


Ratios = Callable[[Results], list[float]]
"""The ratio of every turn of a run; none if it was not measured."""


@dataclass(frozen=True)
class Target:
    """One ratio: `ours` against `theirs`, at least or at most so much.

    Both are measured in every turn, one right after the other, and the median of the turns' ratios is what counts: a
    machine that is slow for a minute is slow for both.
    """

    name: str
    bound: float
    ratios: Ratios
    at_most: bool = False

    def judge(self, results: Results) -> dict[str, Any]:
        """The ratio of this run, how far the turns lie apart, and whether it is enough."""
        turns = self.ratios(results)
        found = statistics.median(turns) if turns else None
        if found is None:
            verdict = UNKNOWN
        else:
            verdict = REACHED if (found <= self.bound if self.at_most else found >= self.bound) else MISSED
        word = "at most" if self.at_most else "at least"
        return {
            "target": self.name,
            "bound": f"{word} {self.bound:g}",
            "ratio": found,
            "turns": turns,
            "verdict": verdict,
        }


def values(results: Results, measurement: str, contender: str = OURS, name: str = "rate") -> list[float]:
    """One value of every turn, if it was measured."""
    found = results.get(measurement, {}).get(contender, {})
    return [] if "error" in found else [run[name] for run in found.get("runs", []) if name in run]


def _quotients(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=False)]


def against(contender: str, measurement: str, name: str = "rate") -> Ratios:
    """Ours against a contender in one measurement."""
    return lambda results: _quotients(
        values(results, measurement, name=name), values(results, measurement, contender, name)
    )


def beside(measurement: str, other: str) -> Ratios:
    """Ours in one measurement against ours in another."""
    return lambda results: _quotients(values(results, measurement), values(results, other))


def within(measurement: str, name: str) -> Ratios:
    """Ours against another value of ours in the same measurement."""
    return lambda results: _quotients(values(results, measurement), values(results, measurement, name=name))


def best_bare(results: Results) -> list[float]:
    """Ours against the better of the two bare loops on SQLite."""
    bare = [values(results, "sqlite.drain-1", f"bare loop of {batch}") for batch in (500, 1000)]
    return _quotients(values(results, "sqlite.drain-1"), [max(turn) for turn in zip(*bare, strict=False)])


def flatness(store: str) -> Ratios:
    """The rate in the largest table against that in the smallest; the full run goes to five million."""

    def ratios(results: Results) -> list[float]:
        runs = results.get(f"{store}.growth", {}).get(OURS, {}).get("runs", [])
        sizes = sorted({int(name.split()[1]) for run in runs for name in run if name.startswith("rate ")})
        return [run[f"rate {sizes[-1]}"] / run[f"rate {sizes[0]}"] for run in runs if len(sizes) > 1]

    return ratios


TARGETS = [
    Target("PostgreSQL, drain with one process / graphile-worker", 1.5, against(GRAPHILE, "postgres.drain-1")),
    Target("PostgreSQL, drain with one process / pgqueuer", 3.5, against("pgqueuer", "postgres.drain-1")),
    Target(
        "PostgreSQL, drain with one process / engine-shaped loop",
        0.7,
        against("engine-shaped loop", "postgres.drain-1"),
    ),
    Target("PostgreSQL, drain with two processes / graphile-worker", 1.5, against(GRAPHILE, "postgres.drain-2")),
    Target("PostgreSQL, enqueue one by one / bare insert", 0.9, against("bare insert", "postgres.enqueue")),
    Target("PostgreSQL, 64 concurrent callers / one by one", 10, within("postgres.callers-64", "alone")),
    Target("PostgreSQL, bulk / COPY", 0.5, against("COPY", "postgres.bulk")),
    Target("PostgreSQL, bulk / graphile-worker", 1.0, against(GRAPHILE, "postgres.bulk")),
    Target(
        "PostgreSQL, p50 at low load / notify, claim, call",
        1.7,
        against("notify, claim, call", "postgres.latency", "p50"),
        at_most=True,
    ),
    Target("PostgreSQL, 16 connections in transactions / silent", 0.8, within("postgres.transactions", "silent")),
    Target("SQLite, drain with one process / huey", 15, against("huey", "sqlite.drain-1")),
    Target("SQLite, drain with one process / bare loop", 0.35, best_bare),
    Target("SQLite, enqueue one by one / bare insert", 0.85, against("bare insert", "sqlite.enqueue")),
    Target("PostgreSQL, drain of the largest table / the smallest", 0.8, flatness("postgres")),
    Target("SQLite, drain of the largest table / the smallest", 0.8, flatness("sqlite")),
    Target("PostgreSQL, drain beside delayed tasks / alone", 0.9, within("postgres.delayed", "plain")),
    Target("PostgreSQL, drain under a held xmin / before it", 0.7, within("postgres.xmin", "free")),
    Target("PostgreSQL, drain with ordering keys / without", 0.4, within("postgres.keys", "plain")),
    Target("PostgreSQL, webhooks / bare HTTP client", 0.6, against("bare HTTP client", "postgres.hooks")),
    Target("PostgreSQL, webhooks in strict order / in any order", 0.5, beside("postgres.hooks-fifo", "postgres.hooks")),
    Target("PostgreSQL, webhooks beside dead peers / without", 0.9, beside("postgres.hooks-dead", "postgres.hooks")),
    Target("PostgreSQL, mails / bare SMTP client", 0.6, against("bare SMTP client", "postgres.mails")),
    Target("PostgreSQL, drain running ahead / without keys", 0.9, within("postgres.ahead", "plain")),
]


def judged(results: Results) -> list[dict[str, Any]]:
    """Every target against the results of one run."""
    return [target.judge(results) for target in TARGETS]


def spoken(judgements: list[dict[str, Any]]) -> str:
    """The table for a terminal."""
    lines = []
    for one in judgements:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        lines.append(f"{one['verdict']:<12} {ratio:>7}  {one['bound']:<13} {one['target']}{_told(one['turns'])}")
    return "\n".join(lines)


def _told(turns: list[float]) -> str:
    return f" (turns: {spread(turns)})" if len(turns) > 1 else ""


def spread(turns: list[float]) -> str:
    """From the lowest to the highest."""
    return f"{min(turns):.2f} to {max(turns):.2f}" if len(turns) > 1 else ""
