"""Arrays for PostgreSQL, written in bulk: a driver that looks at every element costs more than the query."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any

BETWEEN = '","'
PACKED = re.compile(r"\$(\d+)::(uuid|tid)\[\]")
UUID, TID = 2950, 27
"""The numbers that the server has for the two kinds."""
HEAD, EMPTY = struct.Struct(">iiIii"), struct.Struct(">iiI")
SIXTEEN, SIX = "00000010", b"\0\0\0\6"
"""How long the next element is, as the server wants to be told before each of them."""


def literal(values: list[Any]) -> str:
    """The values, all of one kind or None, as the text of a one-dimensional array.

    It stands in an `unnest` beside the ids of what it tells about, which fills up with nulls what is too short.
    """
    sample = next((value for value in values if value is not None), None)
    if sample is None:
        return "{}"
    kind = type(sample)
    if kind is int or kind is float:
        return "{" + repr(values)[1:-1].replace("None", "NULL") + "}"
    if kind is bool:
        parts = ["NULL" if value is None else "t" if value else "f" for value in values]
    elif kind is bytes:
        parts = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]
    else:
        if None not in values and _is_plain(text := BETWEEN.join(values), len(values)):
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


Pack = Callable[[list[Any]], bytes]


@functools.cache
def packed(text: str) -> tuple[tuple[int, Pack], ...]:
    """Which arguments of a statement are arrays that travel as the server keeps them, and what makes them so.

    To read an id that is written out takes the server longer than to find its row.
    """
    kinds: dict[str, Pack] = {"uuid": uuids, "tid": places}
    return tuple({int(number) - 1: kinds[kind] for number, kind in PACKED.findall(text)}.items())


def uuids(ids: list[str]) -> bytes:
    """An array of ids; a ValueError if one of them is none."""
    body = bytes.fromhex(SIXTEEN.join(["", *ids]).replace("-", ""))
    if len(body) != 20 * len(ids):
        raise ValueError("an id does not have 32 digits")
    return _headed(UUID, len(ids)) + body


def places(found: list[bytes]) -> bytes:
    """An array of the places of rows, as the server told them."""
    return _headed(TID, len(found)) + SIX.join([b"", *found])


def _headed(kind: int, count: int) -> bytes:
    return HEAD.pack(1, 0, kind, count, 1) if count else EMPTY.pack(0, 0, kind)
