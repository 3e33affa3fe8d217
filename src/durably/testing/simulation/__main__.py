"""`python -m durably.testing.simulation`: play many seeds, and tell the story of the first that fails."""

from __future__ import annotations

import argparse
import sys

from durably.testing.simulation import Outcome, run_seed, shrink


def main(arguments: list[str] | None = None) -> int:
    """Play the seeds; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m durably.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--shrink", action="store_true", help="make the failing scenario small before telling it")
    parser.add_argument("--story", action="store_true", help="tell every story, not only that of a failure")
    chosen = parser.parse_args(arguments)
    operations, seconds = 0, 0.0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        outcome = run_seed(seed)
        operations += outcome.operations
        seconds += outcome.seconds
        if outcome.violations:
            tell(shrink(outcome) if chosen.shrink else outcome)
            print(f"\nseed {seed} fails; again: python -m durably.testing.simulation --first {seed} --seeds 1")
            return 1
        if chosen.story:
            tell(outcome)
    print(f"{chosen.seeds} seeds: {operations} operations in {seconds / 60:.0f} virtual minutes, and nothing is wrong")
    return 0


def tell(outcome: Outcome) -> None:
    """Print the story."""
    print(f"the story of seed {outcome.seed}")
    print("\n".join(outcome.trace))
    for violation in outcome.violations:
        print(f"\nVIOLATION: {violation}")


if __name__ == "__main__":
    sys.exit(main())
