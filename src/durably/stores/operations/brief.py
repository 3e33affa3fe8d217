"""Tasks that were just leased, from rows that tell only what is not known anyway; the rest is in one value, if at all.

The fields are given by place: to name them takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durably.core.task import State, Task
from durably.stores.columns import BRIEF, BYTES, SELDOM, SELDOM_IN_KEYS
from durably.stores.statement import Rows

_LEASED = State.LEASED.value
_decode = msgspec.json.Decoder(list[Any]).decode


def leased(rows: Rows, session: str) -> list[Task]:
    """Plain tasks; each row ends with where it is."""
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
            tasks[index] = _with_more(tasks[index], SELDOM, row[len(BRIEF)])
    return tasks


def leased_head(row: tuple[Any, ...], session: str) -> Task:
    """A task of a key; its row ends with where it is, and with something that is not the task's."""
    (
        task_id, seq, version, name, queue, priority, ready_at, payload, attempt, spent, token, created_at, started_at,
        key, policy, seldom, place, _,
    ) = row  # fmt: skip
    task = Task(
        task_id, seq, version, name, queue, _LEASED, priority, ready_at, key, policy, None, payload, None, None, False,
        False, attempt, spent, 0, token, session, created_at, started_at, None, None, None, None, None, None, place,
    )  # fmt: skip
    return task if seldom is None else _with_more(task, SELDOM_IN_KEYS, seldom)


def _with_more(task: Task, names: Sequence[str], seldom: str) -> Task:
    """The task with what most have nothing of."""
    told = dict(zip(names, _decode(seldom), strict=True))
    for name in BYTES:
        if told[name] is not None:
            told[name] = bytes.fromhex(told[name])
    return msgspec.structs.replace(task, **told)
