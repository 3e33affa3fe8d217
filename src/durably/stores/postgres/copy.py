"""Rows as the text that COPY reads, written column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
ESCAPED = frozenset(map(chr, ESCAPES))


def lines(columns: Sequence[Any]) -> str:
    """One line per row. A column is a list of values of one kind, none of them None, or the value of every row.

    What is the same in every row, as most is, is written once. The first column never is.
    """
    template, varying = ["%s"], [_texts(columns[0])]
    for column in columns[1:]:
        values = column if type(column) is list else [column]
        if values.count(values[0]) == len(values):
            template.append(_texts(values[:1])[0].replace("%", "%%"))
        else:
            template.append("%s")
            varying.append(_texts(values))
    row = "\t".join(template) + "\n"
    return "".join(map(row.__mod__, zip(*varying, strict=True)))


def _texts(values: list[Any]) -> list[str]:
    kind = type(values[0])
    if isinstance(values[0], str):
        return values if ESCAPED.isdisjoint("".join(values)) else [value.translate(ESCAPES) for value in values]
    if kind is bytes:
        return [f"\\\\x{value.hex()}" for value in values]
    if kind is bool:
        return ["t" if value else "f" for value in values]
    return list(map(repr, values))
