"""Ids that are in the order of acceptance, and may be given by their beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from uuid import UUID

from durably.errors import UnknownTask

LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def whole_id(given: str, newest_before: Callable[[str], Sequence[str]]) -> str | None:
    """The id that begins so; None if it is no beginning, or nobody's.

    Those that begin so are the newest of all up to the last possible one; two of them are enough to know.
    """
    start = given.lower()
    last = start + LAST[len(start) :]
    if re.sub("[0-9a-f]", "f", last) != LAST:
        return None
    if start == last:
        return start
    beyond = min(UUID(last).int + 1, UUID(LAST).int)
    ids = [one for one in newest_before(str(UUID(int=beyond))) if one.startswith(start)]
    if len(ids) > 1:
        raise UnknownTask(f"{start} is ambiguous: it could be {ids[0]} or {ids[1]}; give more characters")
    return ids[0] if ids else None
