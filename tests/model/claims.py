"""What a claim may take, and what it may not leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.model.entry import Entry
from tests.model.limits import Limit

if TYPE_CHECKING:
    from tests.model.model import Model

PATIENCE = 3_000_000
"""How long a task whose key or limit group was once refused may be left behind by claims that have room for it."""


def refusal(model: Model, entry: Entry, queues: Sequence[str], alone: bool) -> str | None:
    """Why a claim may not take this task, limits aside; None if it may."""
    state, cutoff = model.queues.get(entry.queue, ("active", None))
    if entry.state not in ("ready", "blocked"):
        return f"it is {entry.state}"
    if entry.queue not in queues:
        return "its queue was not asked for"
    if state == "paused":
        return "its queue is paused"
    if cutoff is not None and entry.created_at > cutoff:
        return "its queue is draining, and it came later"
    if entry.ready_at > model.now:
        return f"it is {entry.ready_at - model.now} microseconds early"
    if entry.alone != alone:
        return "it must run alone" if entry.alone else "it need not run alone"
    if entry.line is None:
        return None
    if entry.line in model.pauses:
        return "its key is paused"
    if any(other.line == entry.line and other.state == "leased" for other in model.entries.values()):
        return "another task of its key is running"
    return None if entry is model.first_of(entry.line) else "it is not the first of its key"


def check_order(taken: list[Entry], takeable: dict[str, Entry]) -> None:
    """Nobody was passed over: by priority and age in a queue, by priority and place in a limit group."""
    for left in takeable.values():
        if left in taken or left.key is not None:
            continue
        for entry in taken:
            if (entry.key, entry.queue, entry.gate) == (None, left.queue, left.gate):
                assert _rank(entry) <= _rank(left), f"{entry} was claimed before {left}"


def check_limits(model: Model, taken: list[Entry]) -> None:
    for name, limit in model.limits.items():
        new = sum(1 for entry in taken if limit in limits_of(model, entry))
        if new and limit.concurrency is not None:
            running = _running(model, name)
            assert running + new <= limit.concurrency, f"{name} allows {limit}: {running} ran, {new} were claimed"
        if new:
            assert limit.allows(new, model.now), f"{new} were claimed from {name}, more than {limit} allows"


def check_nothing_left_behind(model: Model, takeable: dict[str, Entry]) -> None:
    """There was room: a plain task must have been taken, and nobody else can be left behind for long."""
    for entry in model.entries.values():
        limits = limits_of(model, entry)
        if entry.id not in takeable or entry.state == "leased" or any(_shut(model, limit) for limit in limits):
            entry.missed_at = None
            continue
        plain = entry.key is None and entry.gate is None and not limits
        assert not plain, f"there was room for {entry}, and it was not claimed"
        entry.missed_at = model.now if entry.missed_at is None else entry.missed_at
        assert model.now - entry.missed_at <= PATIENCE, f"there was room for {entry}, and it was left behind again"


def _shut(model: Model, limit: Limit) -> bool:
    name = next(name for name, known in model.limits.items() if known is limit)
    full = limit.concurrency is not None and _running(model, name) >= limit.concurrency
    return full or limit.may_refuse(model.now, PATIENCE)


def limits_of(model: Model, entry: Entry) -> list[Limit]:
    names = (f"q:{entry.queue}", f"g:{entry.gate}")
    return [model.limits[name] for name in names if name in model.limits]


def _running(model: Model, name: str) -> int:
    running = [entry for entry in model.entries.values() if entry.state == "leased"]
    return sum(1 for entry in running if name in (f"q:{entry.queue}", f"g:{entry.gate}"))


def _rank(entry: Entry) -> tuple[int, int]:
    return -entry.priority, entry.ready_at if entry.gate is None else entry.place
