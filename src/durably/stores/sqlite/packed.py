"""Many tasks in one row: for every row that it fetches, a thread must ask for the interpreter, which others use."""

from __future__ import annotations

from typing import Any

import msgspec

from durably.stores.columns import LIVE
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
