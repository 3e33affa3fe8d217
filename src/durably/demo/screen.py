"""The terminal: text that stays, and one line of progress that is drawn again in place."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

WIDTH = 96
BAR = 24
INDENT = 4
"""Of commands, and of what they print."""


class Screen:
    """In a terminal the progress moves in place; elsewhere a line is printed now and then."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self._colour = self._live and "NO_COLOR" not in os.environ
        self._quarter = 0

    def heading(self, text: str) -> None:
        """The beginning of an act."""
        self._quarter = 0
        self._print(f"\n{self._paint(text, '1')}")

    def say(self, text: str, indent: int = 2) -> None:
        """A paragraph."""
        self._print(self._wrapped(text, " " * indent))

    def shell(self, command: str) -> None:
        """A command for the shell: dim, and in one piece, so that it can be copied."""
        self._print(f"{' ' * INDENT}{self._paint(command, '2')}")

    def output(self, text: str) -> None:
        """What a command printed: its lines as they are."""
        self._print(textwrap.indent(text.rstrip("\n"), " " * INDENT))

    def table(self, *rows: Sequence[object]) -> None:
        """Rows of which the first one has the headings. Numbers stand to the right; what has no room is cut."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            padded = [
                cell.rjust(width) if cell.isdecimal() else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            ]
            line = f"{' ' * INDENT}{'  '.join(padded).rstrip()}"
            self._print(line if len(line) <= self._width() else f"{line[: self._width() - 1]}…")

    def check(self, passed: bool, text: str) -> None:
        """One line of the verdict."""
        sign = self._paint("ok  ", "32") if passed else self._paint("FAIL", "31;1")
        self._print(f"  {sign}  {self._wrapped(text, ' ' * 8).lstrip()}")

    def verdict(self, passed: bool, text: str) -> None:
        """The last word."""
        self._print(f"\n{self._paint(text, '32;1' if passed else '31;1')}")

    def progress(self, done: int, total: int, rest: str) -> None:
        """How far it has come."""
        share = done / total if total else 1.0
        counted = f"{done:,} of {total:,}{rest}"
        if self._live:
            bar = "█" * round(share * BAR)
            line = f"  {bar:░<{BAR}}  {counted}"
            self._stream.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\033[K")
            self._stream.flush()
        elif int(share * 4) > self._quarter:
            self._quarter = int(share * 4)
            self._print(f"  {counted}")

    def _print(self, text: str) -> None:
        """Text takes the place of a progress line."""
        self._stream.write(f"\r\033[K{text}\n" if self._live else f"{text}\n")
        self._stream.flush()

    def _paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text

    def _width(self) -> int:
        return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns - 1)

    def _wrapped(self, text: str, indent: str) -> str:
        return textwrap.fill(
            text,
            self._width(),
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
