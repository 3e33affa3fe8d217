"""The commands as the parser knows them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from durably.cli.parser import parser

COMMON = {"--store", "--schema", "--namespace", "--app", "--json"}


def known_commands() -> dict[str, set[str]]:
    """Every command, with the options that are its own."""
    found = {}
    for name, options in _walk(parser(), "durably"):
        found[name] = options - COMMON if options >= COMMON else options
    return found


def parses(arguments: list[str]) -> bool:
    """Whether a command line can be meant as it stands."""
    try:
        parser().parse_args(arguments)
    except SystemExit:
        return False
    return True


def _walk(one: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, set[str]]]:
    below: list[Any] = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        shown = [action for action in one._actions if action.help != argparse.SUPPRESS]
        yield name, {option for action in shown for option in action.option_strings} - {"-h", "--help"}
    for action in below:
        for word, parser_below in action.choices.items():
            yield from _walk(parser_below, f"{name} {word}")
