"""Tasks that were just leased, from rows that tell only what is not known anyway; the rest is in one value, if at all.

The fields are given by place: to name them takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durably.core.task import State, Task
from durably.stores.columns import BRIEF, BYTES, OF_KEYS, SELDOM, SELDOM_IN_KEYS
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
    return _with_the_rest(tasks, rows, len(BRIEF), SELDOM)


def leased_heads(rows: Rows, session: str) -> list[Task]:
    """Tasks of keys; each row ends with where it is, and with something that is not the task's."""
    tasks = [
        Task(
            task_id, seq, version, name, queue, _LEASED, priority, ready_at, key, policy, None, payload, None, None,
            False, False, attempt, spent, 0, token, session, created_at, started_at, None, None, None, None, None, None,
            place,
        )
        for (
            task_id, seq, version, name, queue, priority, ready_at, payload, attempt, spent, token, created_at,
            started_at, key, policy, _, place, _,
        ) in rows
    ]  # fmt: skip
    return _with_the_rest(tasks, rows, len(BRIEF) + len(OF_KEYS), SELDOM_IN_KEYS)


def _with_the_rest(tasks: list[Task], rows: Rows, column: int, names: Sequence[str]) -> list[Task]:
    """The tasks, each with what its row tells in that column, if anything."""
    for index, row in enumerate(rows):
        if row[column] is not None:
            tasks[index] = _with_more(tasks[index], names, row[column])
    return tasks


def _with_more(task: Task, names: Sequence[str], seldom: str) -> Task:
    """The task with what most have nothing of."""
    told = dict(zip(names, _decode(seldom), strict=True))
    for name in BYTES:
        if told[name] is not None:
            told[name] = bytes.fromhex(told[name])
    return msgspec.structs.replace(task, **told)
