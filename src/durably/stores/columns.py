"""The columns of a task in the order of its fields, as each place spells them."""

from __future__ import annotations

from collections.abc import Sequence

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


def brief_columns(cast: str) -> str:
    """A leased row as the table `t` has it: all but its state and its session, and what is seldom there as one."""
    often = ", ".join(f"t.id{cast}" if name == "id" else f"t.{name}" for name in BRIEF)
    return f"{often}, {_as_one(SELDOM)}"


def _as_one(seldom: Sequence[str]) -> str:
    """These columns of `t` as a list in JSON, or nothing if there is nothing in them."""
    usual = {"crashes": "t.crashes = 0", "once": "NOT t.once", "alone": "NOT t.alone"}
    nothing = " AND ".join(usual.get(name, f"t.{name} IS NULL") for name in seldom)
    told = ", ".join(f"encode(t.{name}, 'hex')" if name in BYTES else f"t.{name}" for name in seldom)
    return f"CASE WHEN {nothing} THEN NULL ELSE json_build_array({told})::text END"


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


def head_columns(cast: str, token: str, session: str, now: str) -> str:
    """A waiting row of `t` as it is once its key row is leased."""
    changed = {"id": f"t.id{cast}", "state": "'leased'", "token": token, "session": session, "started_at": now}
    changed |= {name: f"t.{name} + 1" for name in _COUNTED}
    return ", ".join(changed.get(name, f"t.{name}") for name in LIVE)


def brief_head_columns(cast: str, token: str, now: str) -> str:
    """The same without its state and its session, and with what is seldom there as one."""
    changed = {"id": f"t.id{cast}", "token": token, "started_at": now, **{name: f"t.{name} + 1" for name in _COUNTED}}
    often = ", ".join(changed.get(name, f"t.{name}") for name in (*BRIEF, *OF_KEYS))
    return f"{often}, {_as_one(SELDOM_IN_KEYS)}"


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
