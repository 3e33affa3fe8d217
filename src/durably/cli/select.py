"""Choosing tasks: the filters that several commands share, and ids that people shorten."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from durably.app import Durably
from durably.client.info import TaskInfo

PAGE = 500


def listed(app: Durably, namespace: str | None, limit: int | None, **filters: Any) -> list[TaskInfo]:
    """The newest tasks that match, of one namespace or of all."""
    return list(itertools.islice(_pages(app, namespace, PAGE if limit is None else min(limit, PAGE), filters), limit))


def full_ids(app: Durably, starts: Sequence[str]) -> list[str]:
    """The ids that these beginnings stand for."""
    return [app.tasks.find(start).id for start in starts]


def _pages(app: Durably, namespace: str | None, size: int, filters: dict[str, Any]) -> Iterator[TaskInfo]:
    before = filters.pop("before", None)
    while True:
        page = app.tasks.list(limit=size, before=before, **filters)
        yield from (task for task in page if namespace in (None, task.namespace))
        if len(page) < size:
            return
        before = page[-1].id
