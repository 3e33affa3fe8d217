"""Playing many seeds, in several processes at once."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from durably.testing.simulation.database import IN_MEMORY, Database
from durably.testing.simulation.director import Director
from durably.testing.simulation.drawing import draw

BATCH = 20
"""Seeds that are handed to a process at a time."""


class Brief(msgspec.Struct, frozen=True):
    """How one seed went, without its story."""

    seed: int
    violations: list[str]
    operations: int
    seconds: float
    """In virtual time."""
    happened: Counter[str]
    """How often which fault struck, and what workers said."""


def play(seeds: Sequence[int], jobs: int | None = None) -> Iterator[Brief]:
    """Play the seeds in order; without `jobs`, in as many processes as there are processors."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1 or len(seeds) <= BATCH:
        yield from map(brief, seeds)
        return
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            for briefs in pool.map(_batch, batches):
                yield from briefs
        finally:
            pool.shutdown(cancel_futures=True)


def brief(seed: int, database: Database = IN_MEMORY) -> Brief:
    """Play one seed."""
    outcome = Director(draw(seed), database=database).run()
    return Brief(seed, outcome.violations, outcome.operations, outcome.seconds, outcome.happened)


def _batch(seeds: Sequence[int]) -> list[Brief]:
    return [brief(seed) for seed in seeds]
