"""`python -m tests.mutation`: try every mutant, or a sample, and name those that no test notices."""

from __future__ import annotations

import argparse
import pkgutil
import random
import sys
from collections import Counter
from pathlib import Path

from .bench import Subject, survivors
from .equivalent import LISTED, equivalent, stale
from .mutants import Mutant

ROOT = Path(__file__).parents[2]


def core() -> tuple[str, ...]:
    """The modules of the rules."""
    folder = ROOT / "src" / "durably" / "core"
    return tuple(f"durably.core.{found.name}" for found in pkgutil.iter_modules([str(folder)]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, help="try so many, chosen by --seed; else all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="try those only whose name contains this")
    parser.add_argument("--module", action="append", help="another module than those of durably.core")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests" / "unit" / "core")
    parser.add_argument("--equivalent", type=Path, default=LISTED)
    given = parser.parse_args(arguments)
    subject = Subject(tuple(given.module or core()), given.tests)
    everything = subject.mutants()
    listed = equivalent(given.equivalent)
    mutants = [mutant for mutant in everything if given.only in mutant.name]
    if given.sample is not None:
        mutants = random.Random(given.seed).sample(mutants, min(given.sample, len(mutants)))

    def tell(mutant: Mutant, survived: bool) -> None:
        if survived and mutant.name not in listed:
            print(f"no test notices, line {mutant.line}: {mutant.name}", flush=True)

    return _report(everything, mutants, survivors(subject, mutants, tell), listed)


def _report(everything: list[Mutant], tried: list[Mutant], survived: list[Mutant], listed: dict[str, str]) -> int:
    tally = Counter(mutant.module for mutant in tried)
    for module in sorted(tally):
        lost = sum(mutant.module == module for mutant in survived)
        print(f"{module}: {tally[module]} mutants, {tally[module] - lost} noticed")
    unexplained = [mutant for mutant in survived if mutant.name not in listed]
    wrongly = {mutant.name for mutant in tried} & listed.keys() - {mutant.name for mutant in survived}
    old = stale(listed, (mutant.name for mutant in everything))
    explained = len(survived) - len(unexplained)
    print(f"{len(tried)} of {len(everything)} mutants tried, {explained} cannot be noticed, for a listed reason")
    for name in sorted(wrongly):
        print(f"a test does notice what is listed as equivalent: {name}")
    for name in old:
        print(f"listed, but there is no such mutant any more: {name}")
    return 1 if unexplained or wrongly or old else 0


if __name__ == "__main__":
    sys.exit(main())
