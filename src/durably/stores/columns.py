"""The columns of a task in the order of its fields, as each place spells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from durably.core.task import Task

LIVE = Task.__struct_fields__[: Task.__struct_fields__.index("place")]
"""The fields of a task that has not ended."""
_COUNTED = ("attempt", "spent")
_FROM_KEY = ("token", "session", "started_at")


BRIEF = (
    "id",
    "seq",
    "version",
    "name",
    "queue",
    "priority",
    "ready_at",
    "payload",
    "attempt",
    "spent",
    "token",
    "created_at",
    "started_at",
)
"""What there is to tell of every task that was just leased, beside its state and its session."""
SELDOM = tuple(name for name in LIVE if name not in (*BRIEF, "state", "session"))
"""What most tasks have nothing of."""
BYTES = ("options", "details")
"""Those of them that are no text, which JSON could not hold."""
OF_KEYS = ("key", "policy")
SELDOM_IN_KEYS = tuple(name for name in SELDOM if name not in OF_KEYS)
"""What most tasks of keys have nothing of."""

DESTINATION = ("namespace", "name", "channel", "address", "rules", "condition", "secrets", "version", "updated_at")


def destination_columns() -> str:
    """A row of destinations `d`."""
    return ", ".join(f"d.{name}" for name in DESTINATION)


def task_columns(cast: str) -> str:
    """A live row as the table `t` has it."""
    return ", ".join(f"t.id{cast}" if name == "id" else f"t.{name}" for name in LIVE)


class Spelling(NamedTuple):
    """How one database writes what every one has."""

    as_text: str
    """What makes an id a text, behind it."""
    hexed: str
    """Bytes as text."""
    listed: str
    """Values as a list in JSON."""


def brief_columns(spelling: Spelling) -> str:
    """A leased row as the table `t` has it: all but its state and its session, and what is seldom there as one."""
    often = ", ".join(f"t.id{spelling.as_text}" if name == "id" else f"t.{name}" for name in BRIEF)
    return f"{often}, {_as_one(SELDOM, spelling)}"


def _as_one(seldom: Sequence[str], spelling: Spelling) -> str:
    """These columns of `t` as a list in JSON, or nothing if there is nothing in them."""
    usual = {"crashes": "t.crashes = 0", "once": "NOT t.once", "alone": "NOT t.alone"}
    nothing = " AND ".join(usual.get(name, f"t.{name} IS NULL") for name in seldom)
    told = ", ".join(spelling.hexed.format(f"t.{name}") if name in BYTES else f"t.{name}" for name in seldom)
    return f"CASE WHEN {nothing} THEN NULL ELSE {spelling.listed.format(told)} END"


def live_columns(cast: str, number: str) -> str:
    """A live row as it really is: a head that its leased key row `k` names counts as leased."""
    spelled = []
    for name in LIVE:
        if name == "id":
            spelled.append(f"t.id{cast}")
        elif name == "state":
            spelled.append("CASE WHEN k.head IS NULL THEN t.state ELSE 'leased' END")
        elif name in _COUNTED:
            spelled.append(f"t.{name} + (k.head IS NOT NULL){number}")
        elif name in _FROM_KEY:
            spelled.append(f"CASE WHEN k.head IS NULL THEN t.{name} ELSE k.{name} END")
        else:
            spelled.append(f"t.{name}")
    return ", ".join(spelled)


def head_columns(spelling: Spelling, token: str, now: str) -> str:
    """A waiting row of `t` as it is once its key row is leased: without its state and its session, as above."""
    changed = {"id": f"t.id{spelling.as_text}", "token": token, "started_at": now}
    changed |= {name: f"t.{name} + 1" for name in _COUNTED}
    often = ", ".join(changed.get(name, f"t.{name}") for name in (*BRIEF, *OF_KEYS))
    return f"{often}, {_as_one(SELDOM_IN_KEYS, spelling)}"


def ended_columns(cast: str, false: str) -> str:
    """A row of history `h`."""
    spelled = []
    for name in (*LIVE, "place", "finished_at", "reason", "result"):
        if name == "id":
            spelled.append(f"h.id{cast}")
        elif name == "alone":
            spelled.append(false)
        elif name in ("progress", "place"):
            spelled.append("NULL")
        else:
            spelled.append(f"h.{name}")
    return ", ".join(spelled)
