"""A small bench: what the engine reaches beside a bare loop on the same server, as a ratio within one run.

A ratio that falls below its bound has lost more than half of what it was. The best of a few tries counts, since
machines are noisy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.contenders import Entry, ceilings, ours
from bench.measurements import QUICK, Measurement, measurements
from bench.stage import Stage

SIZES = replace(QUICK, seconds=0.5, tasks=15_000)
TRIES = 5
BOUNDS = [
    ("postgres.drain-1", "engine-shaped loop", 0.4),
    ("postgres.enqueue", "bare insert", 0.35),
    ("postgres.bulk", "COPY", 0.12),
    ("sqlite.drain-1", "bare loop of 500", 0.12),
    ("sqlite.enqueue", "bare insert", 0.3),
    ("sqlite.bulk", "inserts of 1000", 0.1),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as found:
        yield found


@pytest.mark.parametrize(("name", "ceiling", "at_least"), BOUNDS, ids=[name for name, *_ in BOUNDS])
def test_the_engine_keeps_its_share_of_what_the_database_can_do(
    stage: Stage, name: str, ceiling: str, at_least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    [measurement] = [one for one in measurements() if one.name == name]
    [engine] = [entry for entry in ours() if entry.side == measurement.side and measurement.kind in entry.takes]
    [bare] = [entry for entry in ceilings() if entry.side == measurement.side and entry.name == ceiling]
    best = 0.0
    for _ in range(TRIES):
        own, theirs = rate(stage, measurement, engine), rate(stage, measurement, bare)
        best = max(best, own / theirs)
        with capsys.disabled():
            print(
                f"\n{name}: durably {own:,.0f}/s, {ceiling} {theirs:,.0f}/s: {own / theirs:.2f} (at least {at_least})"
            )
        if best >= at_least:
            break
    assert best >= at_least


def rate(stage: Stage, measurement: Measurement, entry: Entry) -> float:
    """One measurement of one contender, in which every task ran once."""
    return measurement.measure(stage, entry, SIZES, lambda *_: None)["rate"]
