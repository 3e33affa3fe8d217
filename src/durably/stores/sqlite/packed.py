"""Many tasks in one row: for every row that it fetches, a thread must ask for the interpreter, which others use.

What one claim leased shares its token, its session and its moment. Of most tasks little else is there to be told.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from durably.stores.columns import BYTES, LIVE, Spelling, task_columns
from durably.stores.statement import Rows

SPELLING = Spelling("", "iif({0} IS NULL, NULL, hex({0}))", "json_array({0})")
SHARED = ("state", "token", "session", "started_at")
OFTEN = ("id", "seq", "version", "name", "queue", "priority", "ready_at", "payload", "attempt", "spent", "created_at")
COUNTS = ("once", "alone", "crashes")
SELDOM = tuple(name for name in LIVE if name not in (*SHARED, *OFTEN, *COUNTS))
BEGINNING = "SELECT json_group_array(CASE WHEN coalesce(t."
"""What a query begins with that answers so."""
LISTS = "SELECT json_group_array(json_array("
"""What one begins with that answers rows of numbers and texts."""

_WHOLE = (*OFTEN, *SELDOM, *COUNTS)
_PAYLOAD = OFTEN.index("payload")
_MAYBE = [_WHOLE.index(name) for name in BYTES]
_NOTHING: list[Any] = [None] * len(SELDOM) + [0] * len(COUNTS)

_decode = msgspec.json.Decoder(list[list[Any]]).decode
_decode_lists = msgspec.json.Decoder(list[tuple[Any, ...]]).decode
_in_order = itemgetter(*((*_WHOLE, *SHARED).index(name) for name in LIVE))


def packed_columns() -> str:
    """Leased rows of the table `t`, all with one token: each whole, or without what is seldom there."""
    often = ", ".join("hex(t.payload)" if name == "payload" else f"t.{name}" for name in OFTEN)
    seldom = ", ".join(f"t.{name}" for name in SELDOM)
    counts = " + ".join(f"t.{name}" for name in COUNTS)
    others = ", ".join(
        SPELLING.hexed.format(f"t.{name}") if name in BYTES else f"t.{name}" for name in (*SELDOM, *COUNTS)
    )
    shared = ", ".join(f"t.{name}" for name in SHARED)
    return (
        f"json_group_array(CASE WHEN coalesce({seldom}) IS NULL AND {counts} = 0 THEN json_array({often}) "
        f"ELSE json_array({often}, {others}) END), {shared}"
    )


class Packed(NamedTuple):
    """The rows of a query that packs them."""

    text: str
    shared: list[Any]

    def unpacked(self) -> Rows:
        """The rows as they would have come one by one."""
        rows = []
        bare = _NOTHING + self.shared
        for row in _decode(self.text):
            row[_PAYLOAD] = bytes.fromhex(row[_PAYLOAD])
            if len(row) == len(OFTEN):
                row += bare
            else:
                for place in _MAYBE:
                    if row[place] is not None:
                        row[place] = bytes.fromhex(row[place])
                row += self.shared
            rows.append(_in_order(row))
        return rows


def fetched(connection: sqlite3.Connection, text: str, args: Sequence[Any]) -> Packed | Rows:
    """What a query answers that packs its rows; one by one if they are too large for one."""
    try:
        [(packed, *shared)] = connection.execute(text, args).fetchall()
    except sqlite3.DataError:
        text = text.replace(packed_columns(), task_columns(""))
        return connection.execute(text, args).fetchall()
    return Packed(packed, shared)


def listed(connection: sqlite3.Connection, text: str, args: Sequence[Any]) -> Rows:
    """What a query answers that has its rows in a list."""
    [(rows,)] = connection.execute(text, args).fetchall()
    return _decode_lists(rows)


def unpacked(found: Packed | Rows) -> Rows:
    """The rows, however they came."""
    return found.unpacked() if isinstance(found, Packed) else found
