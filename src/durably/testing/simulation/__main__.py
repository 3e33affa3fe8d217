"""`python -m durably.testing.simulation`: play many seeds, and tell the story of the first that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from durably.testing.simulation import Outcome, run_seed, shrink
from durably.testing.simulation.many import play

EVERY = 10.0
"""Seconds between two reports of progress."""


def main(arguments: list[str] | None = None) -> int:
    """Play the seeds; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m durably.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=None, help="in how many processes (one per processor)")
    parser.add_argument("--shrink", action="store_true", help="make the failing scenario small before telling it")
    parser.add_argument("--story", action="store_true", help="tell every story, not only that of a failure")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    if chosen.story:
        for seed in seeds:
            print(told(run_seed(seed)))
    operations, seconds, happened = 0, 0.0, Counter[str]()
    began = reported = time.monotonic()
    for count, brief in enumerate(play(seeds, chosen.jobs), 1):
        if brief.violations:
            outcome = run_seed(brief.seed)
            print(told(shrink(outcome) if chosen.shrink else outcome))
            again = f"python -m durably.testing.simulation --first {brief.seed} --seeds 1"
            print(f"\nseed {brief.seed} fails after {count - 1} that passed; again: {again}")
            return 1
        operations += brief.operations
        seconds += brief.seconds
        happened += brief.happened
        if time.monotonic() - reported > EVERY:
            reported = time.monotonic()
            pace = count / (reported - began)
            print(f"{count} of {len(seeds)} seeds, {pace:.0f} a second", file=sys.stderr, flush=True)
    print("\n".join(f"{often:>9}  {what}" for what, often in happened.most_common()))
    print(f"{chosen.seeds} seeds: {operations} operations in {seconds / 60:.0f} virtual minutes, and nothing is wrong")
    return 0


def told(outcome: Outcome) -> str:
    """The story of a simulation, and what is wrong with it."""
    complaints = [f"\nVIOLATION: {violation}" for violation in outcome.violations]
    return "\n".join([f"the story of seed {outcome.seed}", *outcome.trace, *complaints])


if __name__ == "__main__":
    sys.exit(main())
