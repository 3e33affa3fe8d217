"""One soak from beginning to end: work, break things, stop breaking them, drain, compare."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.checker import violations
from tests.soak.crew import LEASE, Crew
from tests.soak.faults import Faults
from tests.soak.report import Report, drawn_up
from tests.soak.stage import Stage
from tests.soak.world import WORLDS

WORKERS, PRODUCERS = 3, 2
STALLED = 120.0
"""Seconds without any news after which what is left is not waited for, but reported as not ended."""

Show = Callable[[Stage, Faults], None]


def soak(
    store: str,
    folder: Path,
    seed: int,
    *,
    ahead: int = 1,
    enough: Callable[[Stage, int], bool],
    show: Show = lambda stage, faults: None,
) -> Report:
    """Run rounds of faults until `enough` says so, given how many rounds there were; then everything must drain."""
    (folder / "ledger").mkdir()
    began = time.monotonic()
    with WORLDS[store](folder) as world:
        crew = Crew(world.url, folder, seed, workers=WORKERS, producers=PRODUCERS, ahead=ahead)
        stage = Stage(world, crew, folder, seed, lambda stage: show(stage, faults))
        faults = Faults(stage)
        try:
            stage.until(lambda: len(stage.running) >= WORKERS)
            stage.wait(LEASE)
            rounds = 0
            while not enough(stage, rounds):
                for fault in faults.round():
                    fault()
                    stage.wait(stage.chance.uniform(0.1, 1.0))
                rounds += 1
            crew.dismiss("producer")
            stage.until(lambda: _drained(stage))
            crew.dismiss("worker")
            stage.read()
        finally:
            crew.end()
        snapshot = world.snapshot()
    return drawn_up(
        store=store,
        seed=seed,
        seconds=time.monotonic() - began,
        lines=stage.lines,
        faults=faults.done,
        snapshot=snapshot,
        processes=dict(crew.started),
        poisoned=crew.poisoned,
        violations=violations(stage.lines, snapshot, ahead=ahead) + crew.surprises,
    )


def _drained(stage: Stage) -> bool:
    """Whether nothing is left to do, or nothing is being done about it."""
    return stage.world.waiting() == 0 or stage.quiet_for > STALLED
