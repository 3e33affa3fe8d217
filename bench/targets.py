"""What must be reached, as ratios within one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.contenders import OURS

Results = dict[str, Any]
GRAPHILE, ENGINE = "graphile-worker", "engine-shaped loop"
REACHED, MISSED, UNKNOWN = "reached", "not reached", "not measured"


@dataclass(frozen=True)
class Target:
    """One ratio: `ours` against `theirs`, at least or at most so much."""

    name: str
    bound: float
    ratio: Callable[[Results], float | None]
    at_most: bool = False

    def judge(self, results: Results) -> dict[str, Any]:
        """The ratio of this run, and whether it is enough."""
        found = self.ratio(results)
        if found is None:
            verdict = UNKNOWN
        else:
            verdict = REACHED if (found <= self.bound if self.at_most else found >= self.bound) else MISSED
        word = "at most" if self.at_most else "at least"
        return {"target": self.name, "bound": f"{word} {self.bound:g}", "ratio": found, "verdict": verdict}


def value(results: Results, measurement: str, contender: str = OURS, name: str = "rate") -> float | None:
    """The median of one value, if it was measured."""
    found: float | None = results.get(measurement, {}).get(contender, {}).get("median", {}).get(name)
    return found


def _quotient(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def against(contender: str, measurement: str, name: str = "rate") -> Callable[[Results], float | None]:
    """Ours against a contender in one measurement."""
    return lambda results: _quotient(
        value(results, measurement, name=name), value(results, measurement, contender, name)
    )


def beside(measurement: str, other: str) -> Callable[[Results], float | None]:
    """Ours in one measurement against ours in another."""
    return lambda results: _quotient(value(results, measurement), value(results, other))


def within(measurement: str, name: str) -> Callable[[Results], float | None]:
    """Ours against another value of ours in the same measurement."""
    return lambda results: _quotient(value(results, measurement), value(results, measurement, name=name))


def best_bare(results: Results) -> float | None:
    """Ours against the better of the two bare loops on SQLite."""
    rates = [value(results, "sqlite.drain-1", f"bare loop of {batch}") for batch in (500, 1000)]
    known = [rate for rate in rates if rate is not None]
    return _quotient(value(results, "sqlite.drain-1"), max(known, default=None))


def flatness(store: str) -> Callable[[Results], float | None]:
    """The rate in the largest table against that in the smallest; the full run goes to five million."""

    def ratio(results: Results) -> float | None:
        medians = results.get(f"{store}.growth", {}).get(OURS, {}).get("median", {})
        sizes = sorted(int(name.split()[1]) for name in medians if name.startswith("rate "))
        return _quotient(medians[f"rate {sizes[-1]}"], medians[f"rate {sizes[0]}"]) if len(sizes) > 1 else None

    return ratio


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
    Target("PostgreSQL, 64 concurrent callers / one by one", 10, beside("postgres.callers-64", "postgres.enqueue")),
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
    Target("PostgreSQL, drain beside delayed tasks / alone", 0.9, beside("postgres.delayed", "postgres.drain-1")),
    Target("PostgreSQL, drain under a held xmin / before it", 0.7, within("postgres.xmin", "free")),
    Target("PostgreSQL, drain with ordering keys / without", 0.4, beside("postgres.keys", "postgres.drain-1")),
    Target("PostgreSQL, webhooks / bare HTTP client", 0.6, against("bare HTTP client", "postgres.hooks")),
    Target("PostgreSQL, webhooks in strict order / in any order", 0.5, beside("postgres.hooks-fifo", "postgres.hooks")),
    Target("PostgreSQL, webhooks beside dead peers / without", 0.9, beside("postgres.hooks-dead", "postgres.hooks")),
    Target("PostgreSQL, mails / bare SMTP client", 0.6, against("bare SMTP client", "postgres.mails")),
    Target("PostgreSQL, drain running ahead / without keys", 0.9, beside("postgres.ahead", "postgres.drain-1")),
]


def judged(results: Results) -> list[dict[str, Any]]:
    """Every target against the results of one run."""
    return [target.judge(results) for target in TARGETS]


def spoken(judgements: list[dict[str, Any]]) -> str:
    """The table for a terminal."""
    lines = []
    for one in judgements:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        lines.append(f"{one['verdict']:<12} {ratio:>7}  {one['bound']:<13} {one['target']}")
    return "\n".join(lines)
