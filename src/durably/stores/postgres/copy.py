"""Rows as the text that COPY reads, written column by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
ESCAPED = tuple(map(chr, ESCAPES))
TOGETHER = 500
"""So many lines are written before the first of them are sent."""


def lines(columns: Sequence[Any]) -> Iterator[str]:
    """One line per row, some at a time. A column is a list of values of one kind, none of them None, or one for all.

    What is the same in every row, as most is, is written once. The first column never is.
    """
    template, varying = ["%s"], [_texts(columns[0])]
    for column in columns[1:]:
        values = column if type(column) is list else [column]
        if values.count(values[0]) == len(values):
            [text] = _texts(values[:1])
            template.append(text.replace("%", "%%"))
        else:
            template.append("%s")
            varying.append(_texts(values))
    row = "\t".join(template) + "\n"
    written = map(row.__mod__, zip(*varying, strict=True))
    while part := "".join(islice(written, TOGETHER)):
        yield part


def _texts(values: list[Any]) -> Iterable[str]:
    kind = type(values[0])
    if isinstance(values[0], str):
        everything = "".join(values)
        if any([escaped in everything for escaped in ESCAPED]):
            return [value.translate(ESCAPES) for value in values]
        return values
    if kind is bytes:
        return (f"\\\\x{value.hex()}" for value in values)
    if kind is bool:
        return ("t" if value else "f" for value in values)
    return map(repr, values)
