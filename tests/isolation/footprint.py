"""Which tables a statement reads, shares and writes: where two cannot meet, their order makes no difference."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from durably.stores.statement import Query

SEQUENCES = frozenset({"order_seq", "token_seq"})
APPENDED = frozenset({"turns", "cancel_requests"})
"""Tables whose rows get numbers of their own: an insert there meets nobody before it is committed."""
NOTHING: frozenset[str] = frozenset()

_named = re.compile(r"durably\.(\w+)")
_changed = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM|LOCK TABLE)\s+durably\.(\w+)")
_locked = re.compile(r"FOR (?:NO KEY |KEY )?(UPDATE|SHARE)(?: OF (\w+))?")


class Footprint(NamedTuple):
    """What is read as it was committed, locked against writers, written, appended to, and drawn from."""

    reads: frozenset[str] = NOTHING
    shares: frozenset[str] = NOTHING
    writes: frozenset[str] = NOTHING
    appends: frozenset[str] = NOTHING
    draws: frozenset[str] = NOTHING

    def beside(self, other: Footprint) -> Footprint:
        """What both together touch."""
        return Footprint(*(mine | theirs for mine, theirs in zip(self, other, strict=True)))

    def collides(self, other: Footprint) -> bool:
        """Whether one may have to wait for the other, or draws from the same sequence."""
        meets = self.writes & (other.writes | other.shares) or self.shares & other.writes
        return bool(meets or self.draws & other.draws)

    def informs(self, other: Footprint) -> bool:
        """Whether the other sees something else, or waits no longer, once this one is committed."""
        seen = (self.writes | self.appends) & (other.reads | other.shares | other.writes)
        return bool(seen or self.shares & other.writes)

    def frees(self, other: Footprint) -> bool:
        """Whether the other waits no longer once this one is rolled back."""
        return bool(self.writes & (other.writes | other.shares) or self.shares & other.writes)


EMPTY = Footprint()


@cache
def footprint(query: Query) -> Footprint:
    """What a query touches, as its text says."""
    text = "\n".join(part.text for part in query.parts)
    named = frozenset(_named.findall(text)) - {"now"}
    changed = [(how, table) for how, table in _changed.findall(text)]
    appends = {table for how, table in changed if how == "INSERT INTO" and table in APPENDED}
    writes = {table for how, table in changed if not (how == "INSERT INTO" and table in APPENDED)}
    shares: set[str] = set()
    for lock in _locked.finditer(text):
        (writes if lock[1] == "UPDATE" else shares).add(_locked_table(text, lock))
    return Footprint(
        named - SEQUENCES - (appends - writes),
        frozenset(shares),
        frozenset(writes),
        frozenset(appends),
        named & SEQUENCES,
    )


def _locked_table(text: str, lock: re.Match[str]) -> str:
    alias = lock[2]
    if alias is not None:
        found = re.findall(rf"durably\.(\w+)\s+(?:AS\s+)?{alias}\b", text[: lock.start()])
    else:
        found = re.findall(r"FROM\s+durably\.(\w+)", text[: lock.start()])
    table: str = found[-1]
    return table
