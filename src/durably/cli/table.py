"""Tables for people: aligned columns, no borders, no wider than the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from durably.cli.words import printable

GAP = "  "
NARROWEST = 6
SHORT_ID = 23


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, whole: Sequence[str] = ()) -> str:
    """The rows under their headings. Empty columns are left out; those named in `whole` are never cut.

    Where there is no room, an ID is cut first, to a beginning that every command still understands.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    shown = [at for at in range(len(headings)) if any(row[at] for row in cells)]
    numeric = {at for at in shown if all(isinstance(row[at], int) for row in rows)}
    widths = {at: max(wide(headings[at]), *(wide(row[at]) for row in cells)) for at in shown}
    ids = {at for at in shown if headings[at] == "ID"}
    _shrink(widths, ids, {at for at in shown if headings[at] not in whole} - ids, terminal_width())
    lines = []
    for row in [list(headings), *cells]:
        fitted = [_fit(row[at], widths[at], right=at in numeric, sign="" if at in ids else "…") for at in shown]
        lines.append(GAP.join(fitted).rstrip())
    return "\n".join(lines)


def terminal_width() -> int | None:
    """How wide a line may be; None where nobody looks at it, as in a pipe."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None


def wide(text: str) -> int:
    """The columns that the text takes on a terminal."""
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def cut(text: str, width: int, sign: str = "…") -> str:
    """The text, or as much of it as fits with a sign that there was more."""
    if wide(text) <= width:
        return text
    while wide(text) > width - len(sign):
        text = text[:-1]
    return text + sign


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _fit(text: str, width: int, *, right: bool, sign: str) -> str:
    shown = cut(text, width, sign)
    padding = " " * (width - wide(shown))
    return padding + shown if right else shown + padding


def _shrink(widths: dict[int, int], ids: set[int], willing: set[int], most: int | None) -> None:
    """Take from the ids, then from the widest willing column, until the line fits."""
    if most is None:
        return
    room = most - len(GAP) * (len(widths) - 1)
    if sum(widths.values()) > room:
        widths.update({at: min(widths[at], SHORT_ID) for at in ids})
    while sum(widths.values()) > room and (able := [at for at in willing if widths[at] > NARROWEST]):
        widths[max(able, key=lambda at: widths[at])] -= 1
