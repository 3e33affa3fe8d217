"""Many tasks in one row: for every row that it fetches, a thread must ask for the interpreter, which others use."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from durably.stores.columns import LIVE, task_columns
from durably.stores.statement import Rows

BYTES = ("payload", "options", "details")
FIRST, *MAYBE = map(LIVE.index, BYTES)
BEGINNING = "SELECT json_group_array(json_array("
"""What a query begins with that answers so."""

_decode = msgspec.json.Decoder(list[list[Any]]).decode


def packed_columns() -> str:
    """The live rows of the table `t`."""
    columns = ", ".join(
        f"iif(t.{name} IS NULL, NULL, hex(t.{name}))" if name in BYTES else f"t.{name}" for name in LIVE
    )
    return f"json_group_array(json_array({columns}))"


def fetched(connection: sqlite3.Connection, text: str, args: Sequence[Any]) -> Rows:
    """The rows of a query that packs them; one by one if they are too large for one."""
    try:
        [(packed,)] = connection.execute(text, args).fetchall()
    except sqlite3.DataError:
        text = text.replace(packed_columns(), task_columns(""))
        return connection.execute(text, args).fetchall()
    return unpacked(packed)


def unpacked(text: str) -> Rows:
    """The rows as they would have come one by one."""
    rows = []
    for row in _decode(text):
        row[FIRST] = bytes.fromhex(row[FIRST])
        for place in MAYBE:
            if row[place] is not None:
                row[place] = bytes.fromhex(row[place])
        rows.append(tuple(row))
    return rows
