"""Array literals for PostgreSQL, written in bulk: a driver that looks at every element costs more than the query."""

from __future__ import annotations

from typing import Any

BETWEEN = '","'


def literal(values: list[Any]) -> str:
    """The values, all of one kind or None, as the text of a one-dimensional array.

    It stands in an `unnest` beside the ids of what it tells about, which fills up with nulls what is too short.
    """
    sample = next((value for value in values if value is not None), None)
    if sample is None:
        return "{}"
    kind = type(sample)
    whole = None not in values
    if kind is bool:
        parts = ["NULL" if value is None else "t" if value else "f" for value in values]
    elif kind is int and whole:
        return "{" + repr(values)[1:-1] + "}"
    elif kind is int or kind is float:
        parts = ["NULL" if value is None else repr(value) for value in values]
    elif kind is bytes:
        parts = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]
    else:
        if whole and _is_plain(text := BETWEEN.join(values), len(values)):
            return '{"' + text + '"}'
        parts = ["NULL" if value is None else _quoted(value) for value in values]
    return "{" + ",".join(parts) + "}"


def _is_plain(text: str, count: int) -> bool:
    """Whether none of so many values has a character that must be escaped."""
    return "\\" not in text and text.count('"') == 2 * (count - 1)


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'
