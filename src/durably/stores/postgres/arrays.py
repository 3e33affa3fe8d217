"""Array literals for PostgreSQL, written in bulk: a driver that looks at every element costs more than the query."""

from __future__ import annotations

from typing import Any


def literal(values: list[Any]) -> str:
    """The values, all of one kind or None, as the text of a one-dimensional array."""
    sample = next((value for value in values if value is not None), None)
    if sample is None:
        return "{" + ",".join(["NULL"] * len(values)) + "}"
    kind = type(sample)
    if kind is bool:
        parts = ["NULL" if value is None else "t" if value else "f" for value in values]
    elif kind is int or kind is float:
        parts = ["NULL" if value is None else repr(value) for value in values]
    elif kind is bytes:
        parts = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]
    else:
        parts = ["NULL" if value is None else _quoted(value) for value in values]
    return "{" + ",".join(parts) + "}"


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def arguments(args: tuple[Any, ...]) -> list[Any]:
    """The arguments of a statement with every list written as an array literal."""
    return [literal(value) if type(value) is list else value for value in args]
