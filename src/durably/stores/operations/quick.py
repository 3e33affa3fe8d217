"""The common case of a claim in one statement: nothing waits but plain tasks, and nothing limits them.

Everything that it must not pass by is looked for in the snapshot in which it finds its tasks. It locks the table of
sessions before that snapshot is taken, so that a limit that is being set is waited for, and then seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from durably.core.task import Task, restore
from durably.stores.columns import LIVE
from durably.stores.operations.brief import leased
from durably.stores.operations.claim import FLOOR_MARGIN, Claim, Range
from durably.stores.operations.desk import PRIORITIES
from durably.stores.statement import Queries, Steps, operation

_age = attrgetter("ready_at", "seq")


def can_be_quick(queries: Queries) -> bool:
    """Whether this kind of database gains by it."""
    return "claim_plain" in queries


@operation(single=True)
def claim_plain(
    q: Queries, session: str, queues: Sequence[str], room: int, *, floors: dict[Range, int] | None = None
) -> Steps[Claim | None]:
    """Lease up to `room` plain tasks for a live session; None when there is none, or something else to consider."""
    ranges = [(queue, priority) for priority in PRIORITIES for queue in queues]
    known = floors or {}
    rows = yield q(
        "claim_plain",
        session,
        [queue for queue, _ in ranges],
        [priority for _, priority in ranges],
        [known.get(place, 0) for place in ranges],
        room,
        [f"q:{queue}" for queue in queues],
    )
    if not rows:
        return None
    brief = len(rows[0]) < len(LIVE)
    tasks = sorted(leased(rows, session) if brief else map(restore, rows), key=_age)
    moved = {(task.queue, task.priority): task.ready_at for task in tasks}
    if len(moved) > 1:
        tasks.sort(key=_importance)
    now = tasks[0].started_at or 0
    floors = {place: min(at, now - FLOOR_MARGIN) for place, at in moved.items()}
    return Claim(True, tasks, now, floors=floors, reached=moved)


def _importance(task: Task) -> int:
    return -task.priority
