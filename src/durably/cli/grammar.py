"""How commands are declared: groups, commands, and help with examples on every level."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from durably.core.brief import brief

Commands = argparse._SubParsersAction  # argparse has no public name for it
Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its examples, and wants every option spelled out."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **given})


def group(commands: Commands[Parser], name: str, summary: str, examples: Sequence[str]) -> Commands[Parser]:
    """A command that has commands of its own; without one it shows its help."""
    parser = commands.add_parser(name, help=summary, description=_sentence(summary), epilog=shown(examples))
    parser.set_defaults(run=helping(parser))
    return parser.add_subparsers(metavar="COMMAND", title="commands")


def command(
    commands: Commands[Parser], name: str, summary: str, examples: Sequence[str], run: Run | None = None
) -> Parser:
    """A command; `run` gets the parsed options and answers the exit code."""
    parser = commands.add_parser(name, help=summary, description=_sentence(summary), epilog=shown(examples))
    parser.set_defaults(run=run)
    return parser


def limited(parser: Parser, what: str = "how many at most (50)") -> None:
    """Give a command that lists something the option of how much of it."""
    parser.add_argument("--limit", metavar="N", type=_count, default=50, help=what)


def _count(given: str) -> int:
    """One thing or more."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", given):
        raise argparse.ArgumentTypeError(f"{brief(given)} must be a number from 1 to 999999999")
    return int(given)


def helping(parser: Parser) -> Run:
    """What a command without its subcommand does: show what there is, and call it a misuse."""

    def run(options: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    return run


def shown(examples: Sequence[str]) -> str:
    """Examples as they stand at the end of a help text."""
    return "\n".join(["example:" if len(examples) == 1 else "examples:", *(f"  {line}" for line in examples)])


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
