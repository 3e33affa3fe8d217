"""One run: every measurement, turn by turn, contender by contender, so that a noisy minute is unfair to nobody."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from bench.contenders import Entry
from bench.measurements import Measurement, Sizes, Values
from bench.stage import Stage
from durably.errors import DurablyError

Results = dict[str, dict[str, dict[str, Any]]]
"""By measurement and contender: the runs, their medians, or the error."""


def measure(stage: Stage, chosen: Sequence[Measurement], entries: Sequence[Entry], sizes: Sizes) -> Results:
    """Measure all of it; what fails is written down and not tried again."""
    results: Results = {}
    for measurement in chosen:
        taking = [entry for entry in entries if entry.side == measurement.side and measurement.kind in entry.takes]
        found: dict[str, dict[str, Any]] = {entry.name: {"kind": entry.kind, "runs": []} for entry in taking}
        results[measurement.name] = found
        turns = (1 if measurement.long else sizes.rounds) * measurement.turns
        short = replace(sizes, seconds=sizes.seconds / measurement.turns)
        for turn in range(turns):
            for entry in taking:
                if entry.kind == "peer" and turn % measurement.turns:
                    continue
                if "error" not in found[entry.name]:
                    own = sizes if entry.kind == "peer" else short
                    _one(stage, measurement, entry, own, results, f"turn {turn + 1} of {turns}")
        for one in found.values():
            if "error" not in one:
                one["median"] = median(one["runs"])
        stage.forget()
    return results


def _one(stage: Stage, measurement: Measurement, entry: Entry, sizes: Sizes, results: Results, which: str) -> None:
    """One measurement of one contender, told on stderr while it happens."""
    found = results[measurement.name][entry.name]

    def earlier(name: str, contender: str) -> float | None:
        rate: float | None = results.get(name, {}).get(contender, {}).get("median", {}).get("rate")
        return rate

    told(f"{measurement.name:<22} {entry.name:<24} {which}", end="")
    try:
        values = measurement.measure(stage, entry, sizes, earlier)
    except (DurablyError, OSError, psycopg.Error) as error:
        found["error"] = str(error)
        told(f"  failed: {error}")
    else:
        found["runs"].append(values)
        told(f"  {values[measurement.value]:>12,.1f} {measurement.unit}")


def median(runs: Sequence[Values]) -> Values:
    """The median of every value."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def told(text: str, end: str = "\n") -> None:
    """Progress, for whoever watches."""
    print(text, end=end, file=sys.stderr, flush=True)
