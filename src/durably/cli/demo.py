"""`durably demo`: the story of a few thousand tasks and one killed worker, or of messages to peers."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from durably.cli.connect import DEMO
from durably.cli.grammar import Commands, Parser, command
from durably.deliveries.vault import VARIABLE, new_key
from durably.demo.files import begin
from durably.errors import MissingPackage


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "demo",
        "watch thousands of tasks survive a killed worker, in under a minute",
        ["durably demo", "durably demo --keep /tmp/demo.db", "durably demo deliveries"],
        demo,
    )
    parser.add_argument(
        "about",
        nargs="?",
        choices=["deliveries"],
        help="watch messages to peers instead: one is dead, one refuses, and a worker is killed while it sends",
    )
    parser.add_argument("--keep", metavar="PATH", default=DEMO, help=f"where to keep the database (./{DEMO})")
    parser.add_argument("--fast", action="store_true", help="a tenth of the tasks, or a quarter of the messages")


def demo(options: argparse.Namespace) -> int:
    """`durably demo`."""
    if options.about == "deliveries":
        return _deliveries(options)
    place = begin(Path(options.keep))
    from durably.demo.story import tell  # it opens the files that were just made

    return tell(place, fast=options.fast)


def _deliveries(options: argparse.Namespace) -> int:
    """`durably demo deliveries`. Its secrets are sealed with a key that nobody keeps."""
    for package in ("aiohttp", "cryptography"):
        if find_spec(package) is None:
            raise MissingPackage(f"deliveries over HTTP need {package}: install it with `pip install 'durably[http]'`")
    place = begin(Path(options.keep))
    os.environ[VARIABLE] = new_key()
    from durably.demo.deliveries.story import tell  # it opens the files that were just made

    return tell(place, fast=options.fast)
