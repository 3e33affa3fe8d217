"""`durably bench`: how fast this store is, on this machine."""

from __future__ import annotations

import argparse
import sys

from durably.app import Durably
from durably.bench.own import Figure, Own
from durably.bench.place import place
from durably.cli.connect import on_store
from durably.cli.grammar import Commands, Parser, command
from durably.cli.output import answer
from durably.cli.table import table


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "bench",
        "measure how fast this store is, beside the tasks that are in it",
        ["durably bench", "durably bench --seconds 1 --tasks 10000 --store postgresql://app@db/shop"],
    )
    parser.add_argument("--seconds", type=_positive, metavar="N", default=3.0, help="how long to enqueue each time (3)")
    parser.add_argument("--tasks", type=_many, metavar="N", default=50_000, help="how many tasks to drain (50000)")
    on_store(parser, bench)


def bench(app: Durably, options: argparse.Namespace) -> int:
    """`durably bench`."""
    with place(app.store) as found:
        figures = list(Own(found, options.seconds, options.tasks).measure(_tell))
    data = {"store": app.store.address, "figures": [figure._asdict() for figure in figures]}
    rows = [(figure.name, _shown(figure), figure.unit) for figure in figures]
    answer(options, data, f"{app.store.address}\n\n{table(['MEASUREMENT', 'VALUE', 'UNIT'], rows)}")
    return 0


def _tell(what: str) -> None:
    """Progress, where someone watches."""
    if sys.stderr.isatty():
        print(f"durably: {what} ...", file=sys.stderr, flush=True)


def _shown(figure: Figure) -> str:
    return f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.1f}"


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds up to an hour")
    return value


def _many(text: str) -> int:
    value = int(text)
    if not 1000 <= value <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 1,000 and 10,000,000")
    return value
