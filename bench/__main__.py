"""`python -m bench`: measure, compare, report."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.contenders import ROOT, ceilings, ours
from bench.measurements import FULL, QUICK, Measurement, measurements
from bench.peers.roster import PEERS, enlisted
from bench.report import write
from bench.run import measure, told
from bench.stage import Stage
from bench.targets import judged, spoken
from bench.versions import machine, versions


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Durably, its peers and the bare databases side by side."
    )
    whole.add_argument("--quick", action="store_true", help="small sizes, one round: about two minutes")
    whole.add_argument("--only", nargs="+", metavar="NAME", help="only measurements whose name begins so")
    whole.add_argument("--peers", metavar="NAMES", help=f"none, or some of {','.join(PEERS)} (all)")
    whole.add_argument(
        "--out", type=Path, metavar="FOLDER", default=ROOT / "docs" / "benchmarks", help="where the report goes"
    )
    whole.add_argument("--list", action="store_true", help="show the measurements and leave")
    return whole


def chosen(only: Sequence[str] | None) -> list[Measurement]:
    """The measurements whose names, with or without the store, begin so."""
    if only is None:
        return measurements()
    return [one for one in measurements() if one.name.startswith(tuple(only)) or one.kind.startswith(tuple(only))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 130 when it is interrupted."""
    options = parser().parse_args(arguments)
    picked = chosen(options.only)
    if not picked:
        parser().error(f"no measurement begins with {' or '.join(options.only)}: see --list")
    if options.list:
        print("\n".join(f"{one.name:<24} {one.title}" for one in picked))
        return 0
    wanted = [] if options.peers == "none" else options.peers.split(",") if options.peers else list(PEERS)
    if unknown := set(wanted) - set(PEERS):
        parser().error(f"there is no peer {', '.join(sorted(unknown))}: none, or some of {', '.join(PEERS)}")
    sizes = QUICK if options.quick else FULL
    try:
        entries, refused = enlisted(wanted, quick=options.quick)
        with Stage() as stage:
            results = measure(stage, picked, [*ours(), *ceilings(), *entries], sizes)
    except KeyboardInterrupt:
        told("\ninterrupted: nothing is written")
        return 130
    targets = judged(results)
    write(
        options.out,
        {
            "quick": options.quick,
            "machine": machine(),
            "versions": versions(wanted),
            "refused": refused,
            "measurements": results,
            "targets": targets,
        },
    )
    print(spoken(targets))
    told(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
