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
    ("postgres.drain-1", "engine-shaped loop", 0.55),
    ("postgres.enqueue", "bare insert", 0.45),
    ("postgres.bulk", "COPY", 0.25),
    ("sqlite.drain-1", "bare loop of 500", 0.25),
    ("sqlite.enqueue", "bare insert", 0.45),
    ("sqlite.bulk", "inserts of 1000", 0.35),
]
KEYED = [("postgres.keys", 0.22), ("postgres.ahead", 0.5), ("sqlite.keys", 0.18), ("sqlite.ahead", 0.3)]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as found:
        yield found


@pytest.mark.parametrize(("name", "ceiling", "at_least"), BOUNDS, ids=[name for name, *_ in BOUNDS])
def test_the_engine_keeps_its_share_of_what_the_database_can_do(
    stage: Stage, name: str, ceiling: str, at_least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    measurement, engine = measured(name)
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


@pytest.mark.parametrize(("name", "at_least"), KEYED, ids=[name for name, _ in KEYED])
def test_ordering_keys_keep_their_share_of_a_plain_drain(
    stage: Stage, name: str, at_least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    measurement, engine = measured(name)
    best = 0.0
    for _ in range(TRIES):
        found = measurement.measure(stage, engine, SIZES, lambda *_: None)
        best = max(best, found["rate"] / found["plain"])
        with capsys.disabled():
            print(
                f"\n{name}: {found['rate']:,.0f}/s, without keys {found['plain']:,.0f}/s: "
                f"{found['rate'] / found['plain']:.2f} (at least {at_least})"
            )
        if best >= at_least:
            break
    assert best >= at_least


def measured(name: str) -> tuple[Measurement, Entry]:
    """A measurement, and our own entry in it."""
    [measurement] = [one for one in measurements() if one.name == name]
    [engine] = [entry for entry in ours() if entry.side == measurement.side and measurement.kind in entry.takes]
    return measurement, engine


def rate(stage: Stage, measurement: Measurement, entry: Entry) -> float:
    """One measurement of one contender, in which every task ran once."""
    return measurement.measure(stage, entry, SIZES, lambda *_: None)["rate"]
