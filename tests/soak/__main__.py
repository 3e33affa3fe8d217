"""`python -m tests.soak --minutes 10 --store both --report soak.md`: break everything for so long, and report."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak.faults import Faults
from tests.soak.report import as_markdown
from tests.soak.run import soak
from tests.soak.stage import Stage


class Display:
    """One line that says how far it has come: rewritten in a terminal, now and then anew elsewhere."""

    def __init__(self, store: str, minutes: float) -> None:
        self._store = store
        self._seconds = minutes * 60
        self.began = time.monotonic()
        self._next = 0.0

    def __call__(self, stage: Stage, faults: Faults) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if sys.stderr.isatty() else 15.0)
        done = Counter(fault.kind for fault in faults.done)
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
        text = (
            f"{self._store} {now - self.began:4.0f} of {self._seconds:.0f} s: {len(stage.accepted):,} accepted, "
            f"{stage.behind:,} waiting; {told}"
        )
        print(f"\r\033[K{text[:200]}" if sys.stderr.isatty() else text, end="", file=sys.stderr)
        print("" if sys.stderr.isatty() else "\n", end="", flush=True, file=sys.stderr)


def run(store: str, minutes: float, seed: int, ahead: int) -> tuple[str, bool]:
    """One store; its part of the report, and whether all was well."""
    display = Display(store, minutes)
    with tempfile.TemporaryDirectory(prefix="durably-soak-") as folder:
        report = soak(
            store,
            Path(folder),
            seed,
            ahead=ahead,
            enough=lambda stage, rounds: rounds > 0 and time.monotonic() - display.began >= minutes * 60,
            show=display,
        )
    print(file=sys.stderr)
    return as_markdown(report), not report.violations and not report.idle


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, for each store (10)")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both", help="which store (both)")
    parser.add_argument("--seed", type=int, help="which faults in which order (some)")
    parser.add_argument("--ahead", type=int, default=1, help="tasks of a key that a worker takes with one lease (1)")
    parser.add_argument("--report", type=Path, help="where the report goes (to the standard output only)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    stores = ["sqlite", "postgres"] if options.store == "both" else [options.store]
    parts, well = [], True
    for store in stores:
        part, good = run(store, options.minutes, seed, options.ahead)
        print(part)
        parts.append(part)
        well = well and good
    if options.report is not None:
        options.report.write_text("# Soak\n\n" + "\n\n".join(part.rstrip() for part in parts) + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
