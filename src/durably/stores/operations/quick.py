"""The common case of a claim in one statement: nothing waits but plain tasks, and nothing limits them.

Everything that it must not pass by is looked for in the snapshot in which it finds its tasks. It locks the table of
sessions before that snapshot is taken, so that a limit that is being set is waited for, and then seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from durably.core.task import State, Task, restore
from durably.stores.columns import BRIEF, LIVE, SELDOM
from durably.stores.operations.claim import FLOOR_MARGIN, Claim, Range
from durably.stores.operations.desk import PRIORITIES
from durably.stores.statement import Queries, Rows, Steps, operation

_age = attrgetter("ready_at", "seq")
_LEASED = State.LEASED.value


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
    tasks = sorted(_leased(rows, session), key=_age)
    moved = {(task.queue, task.priority): task.ready_at for task in tasks}
    if len(moved) > 1:
        tasks.sort(key=_importance)
    now = tasks[0].started_at or 0
    return Claim(True, tasks, now, floors={place: min(at, now - FLOOR_MARGIN) for place, at in moved.items()})


def _importance(task: Task) -> int:
    return -task.priority


def _leased(rows: Rows, session: str) -> list[Task]:
    """The tasks that a claim answered with, in whole rows or in brief ones."""
    if len(rows[0]) >= len(LIVE):
        return [restore(row) for row in rows]
    # By place: to name the fields takes longer than all the rest.
    tasks = [
        Task(
            task_id, seq, version, name, queue, _LEASED, priority, ready_at, None, None, None, payload, None, None,
            False, False, attempt, spent, 0, token, session, created_at, started_at, None, None, None, None, None, None,
            place,
        )
        for (
            task_id, seq, version, name, queue, priority, ready_at, payload, attempt, spent, token, created_at,
            started_at, _, place,
        ) in rows
    ]  # fmt: skip
    for index, row in enumerate(rows):
        if row[len(BRIEF)] is not None:
            tasks[index] = _with_more(tasks[index], row[len(BRIEF)])
    return tasks


def _with_more(task: Task, seldom: tuple[Any, ...]) -> Task:
    """The task with what most have nothing of."""
    return msgspec.structs.replace(task, **dict(zip(SELDOM, seldom, strict=True)))
