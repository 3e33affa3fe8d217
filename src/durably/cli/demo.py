"""`durably demo`: the story of a few thousand tasks and one killed worker."""

from __future__ import annotations

import argparse
from pathlib import Path

from durably.cli.connect import DEMO
from durably.cli.grammar import Commands, Parser, command
from durably.demo.files import begin


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "demo",
        "watch thousands of tasks survive a killed worker, in under a minute",
        ["durably demo", "durably demo --keep /tmp/demo.db"],
        demo,
    )
    parser.add_argument("--keep", metavar="PATH", default=DEMO, help=f"where to keep the database (./{DEMO})")
    parser.add_argument("--fast", action="store_true", help="a tenth of the tasks")


def demo(options: argparse.Namespace) -> int:
    """`durably demo`."""
    place = begin(Path(options.keep))
    from durably.demo.story import tell  # it opens the files that were just made

    return tell(place, fast=options.fast)
