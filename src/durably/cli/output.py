"""Where a command's answer goes: text for people, or one JSON document for programs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from durably.cli.words import printable


def answer(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print the answer in the form that was asked for."""
    print(msgspec.json.format(msgspec.json.encode(data)).decode() if options.json else text)


def note(text: str) -> None:
    """Something to know that is not the answer: on stderr, so that it never ends up in a pipe."""
    print(f"durably: {printable(text)}", file=sys.stderr)


def compact(value: Any) -> str:
    """A value as JSON in one line."""
    return printable(msgspec.json.encode(value).decode())
