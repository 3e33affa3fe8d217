"""Tasks as people and programs see them: moments are datetimes, payloads are decoded where they can be."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from durably.core.codec import Codec
from durably.core.moment import as_datetime
from durably.core.task import AttemptRow, Task, split_queue


class AttemptInfo(msgspec.Struct, frozen=True):
    """An attempt that did not end the task well."""

    attempt: int
    outcome: str
    error: str
    message: str
    trace: str
    session: str | None
    token: int
    started_at: datetime | None
    finished_at: datetime


class Progress(msgspec.Struct, frozen=True):
    """How far a running task says that it has come."""

    fraction: float | None = None
    message: str = ""


class TaskInfo(msgspec.Struct, frozen=True):
    """A task as it is now."""

    id: str
    name: str
    state: str
    queue: str
    namespace: str
    priority: int
    attempt: int
    spent: int
    crashes: int
    created_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    key: str | None
    limit: str | None
    order: str
    tags: list[str]
    unique: str | None
    session: str | None
    token: int
    reason: str | None
    cancel: str | None
    at_most_once: bool
    progress: Progress | None
    arguments: Any
    result: Any


def _moment(when: int | None) -> datetime | None:
    return None if when is None else as_datetime(when)


def readable(data: bytes | None, codec: Codec) -> Any:
    """Stored JSON as data; what cannot be read is described instead."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(codec.decode(data))
    except Exception as error:
        return f"({len(data)} bytes that cannot be read: {type(error).__name__})"


def task_info(task: Task, codec: Codec) -> TaskInfo:
    """The task for people."""
    namespace, queue = split_queue(task.queue)
    try:
        progress = None if task.progress is None else msgspec.json.decode(task.progress, type=Progress)
    except (msgspec.MsgspecError, RecursionError):
        progress = None
    return TaskInfo(
        id=task.id,
        name=task.name,
        state=str(task.state),
        queue=queue,
        namespace=namespace,
        priority=task.priority,
        attempt=task.attempt,
        spent=task.spent,
        crashes=task.crashes,
        created_at=as_datetime(task.created_at),
        due_at=None if task.ended else as_datetime(task.ready_at),
        started_at=_moment(task.started_at),
        finished_at=_moment(task.finished_at),
        expires_at=_moment(task.expires_at),
        key=task.key,
        limit=task.gate,
        order=task.policy or "block",
        tags=_tags(task.tags),
        unique=task.unique_key,
        session=task.session,
        token=task.token,
        reason=task.reason,
        cancel=task.cancel,
        at_most_once=bool(task.once),
        progress=progress,
        arguments=readable(task.payload, codec),
        result=readable(task.result, codec),
    )


def _tags(packed: str | None) -> list[str]:
    try:
        return [] if packed is None else msgspec.json.decode(packed, type=list[str])
    except (msgspec.MsgspecError, RecursionError):
        return []


def attempt_info(row: AttemptRow) -> AttemptInfo:
    """The attempt for people."""
    return AttemptInfo(
        row.attempt,
        row.outcome,
        row.kind,
        row.message,
        row.trace,
        row.session,
        row.token,
        _moment(row.started_at),
        as_datetime(row.finished_at),
    )
