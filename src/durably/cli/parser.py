"""The whole command line."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version

from durably.cli import (
    bench,
    dead,
    demo,
    destinations,
    doctor,
    keys,
    mail,
    migrate,
    notifications,
    queues,
    sessions,
    tasks,
    worker,
)
from durably.cli.grammar import Parser, helping, shown

EXAMPLES = [
    "durably demo                      see it work, with one worker killed in the middle",
    "durably worker shop.tasks:app     run the tasks of an application",
    "durably why 0190a5d1              why a task is not running, or not done",
]


class _Version(argparse.Action):
    """Prints the version; looked up only when someone asks."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        try:
            print(f"durably {version('durably')}")
        except PackageNotFoundError:
            print("durably (not installed as a package)")
        parser.exit()


def parser() -> Parser:
    """The parser of `durably`."""
    whole = Parser(
        prog="durably", description="Everything that must eventually happen, happens.", epilog=shown(EXAMPLES)
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    whole.set_defaults(run=helping(whole))
    commands = whole.add_subparsers(metavar="COMMAND", title="commands")
    for module in (
        demo,
        worker,
        migrate,
        doctor,
        tasks,
        dead,
        queues,
        keys,
        destinations,
        mail,
        notifications,
        sessions,
        bench,
    ):
        module.add(commands)
    return whole
