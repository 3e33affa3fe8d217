"""What a story can ask for: the options of a task, the ways in which an attempt goes, the kinds of claims."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from hypothesis import strategies as st

from durably.core.task import Draft, Options, pack_options
from tests.model.model import SECOND, Wanted

QUEUES = ("default", "tenant/other")
KEYS = ("k1", "k1", "k2")
LINES = [(queue, key) for queue in QUEUES for key in ("k1", "k2")]
GATES = ("g:group", "g:group", "q:default")

WISHES: dict[str, tuple[Any, ...]] = {
    "key": (None, None, None, *KEYS),
    "policy": ("block", "overtake", "pause"),
    "gate": (None, None, "group"),
    "due_in": (0, 0, 0, -5 * SECOND, 5 * SECOND, 40 * SECOND),
    "scope": (None, None, None, "waiting", "live", "period", "forever"),
    "queue": (QUEUES[0], QUEUES[0], *QUEUES),
    "priority": (5, 5, 2, 9),
}
WHIMS: dict[str, tuple[Any, ...]] = {
    "once": (False, False, False, True),
    "expires_in": (None, None, None, 8 * SECOND, 60 * SECOND),
    "fingerprint": ("same", "same", "same", "other"),
    "hook": (False, False, True),
    "keep": (None, None, 20 * SECOND),
}


def _combination(options: dict[str, tuple[Any, ...]], number: int) -> dict[str, Any]:
    """The combination with this number: one draw instead of one for each option."""
    chosen = {}
    for name, values in options.items():
        number, index = divmod(number, len(values))
        chosen[name] = values[index]
    return chosen


def _wish(numbers: tuple[int, ...]) -> dict[str, Any]:
    """The options of a task: mostly plain, with anything else mixed in."""
    wish = _combination(WISHES, numbers[0]) | _combination(WHIMS, numbers[1])
    if wish["key"] is None:
        wish["policy"] = None
    if wish["scope"] is None:
        wish["fingerprint"] = None
    unique = None if wish["scope"] is None else "unique"
    return wish | {"unique": unique, "period": 60 * SECOND if wish["scope"] == "period" else None}


wishes = st.tuples(*(st.integers(0, prod(map(len, each.values())) - 1) for each in (WISHES, WHIMS))).map(_wish)
pick = st.integers(0, 999)
"""Chooses one of what there is at the time, so that a shorter story keeps its meaning."""


def child_of(born: str) -> Wanted:
    """What a completion brings with it."""
    return Wanted(
        born, "child", "default", b"{}", 5, 0, "k1", "block", None, False, None, None, None, None, None, False, None
    )


def draft_of(wanted: Wanted) -> Draft:
    """The same, as the engine is told."""
    retention = None if wanted.keep is None else wanted.keep / SECOND
    return Draft(
        id=wanted.id,
        name=wanted.name,
        queue=wanted.queue,
        payload=wanted.payload,
        priority=wanted.priority,
        due_in=wanted.due_in,
        key=wanted.key,
        policy=wanted.policy,
        gate=wanted.gate,
        options=pack_options(Options(retention=retention, on_dead="hook" if wanted.hook else None)),
        once=wanted.once,
        expires_in=wanted.expires_in,
        unique_scope=wanted.scope,
        unique_key=wanted.unique,
        fingerprint=wanted.fingerprint,
        unique_for=wanted.period,
    )


class Completes(NamedTuple):
    child: bool = False


class Fails(NamedTuple):
    delays: tuple[int, ...]
    """The seconds after each failure but the last."""
    permanent: bool = False


class Snoozes(NamedTuple):
    wait: int


class Leaves(NamedTuple):
    """The worker shuts down."""

    started: bool


class Discards(NamedTuple):
    pass


class Stops(NamedTuple):
    pass


Outcome = Completes | Fails | Snoozes | Leaves | Discards | Stops
OUTCOMES: tuple[Outcome, ...] = (
    Completes(),
    Completes(child=True),
    Fails(()),
    Fails((5, 10)),
    Fails((0, 0)),
    Fails((0, 7, 7)),
    Fails((5, 10), permanent=True),
    Snoozes(0),
    Snoozes(5),
    Leaves(started=False),
    Leaves(started=True),
    Discards(),
    Stops(),
)


class Claims(NamedTuple):
    room: int
    queues: tuple[str, ...] = QUEUES
    alone: bool = False


CLAIMS = (Claims(10), Claims(10), Claims(2), Claims(1, QUEUES[1:]), Claims(1, alone=True))
