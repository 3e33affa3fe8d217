"""Reading tasks and what surrounds them; nothing here changes anything."""

from __future__ import annotations

from typing import Any

import msgspec

from durably.core.explain import Evidence, KeyFacts, SessionFacts
from durably.core.limits import Gate
from durably.core.task import AttemptRow, State, Task, restore
from durably.stores.statement import Queries, Steps, operation


def fetch(q: Queries, ids: list[str]) -> Steps[list[Task]]:
    """The tasks as they are now, live or ended; those that are not known are left out."""
    rows = yield q("live", ids)
    found = [restore(row) for row in rows]
    seen = {task.id for task in found}
    rest = [task_id for task_id in ids if task_id not in seen]
    if rest:
        rows = yield q("ended", rest)
        found += [restore(row) for row in rows]
    return found


@operation(writes=False)
def get(q: Queries, ids: list[str]) -> Steps[list[Task]]:
    """The tasks with these ids."""
    return (yield from fetch(q, ids))


class Memory(msgspec.Struct, frozen=True):
    """What a unique key remembers of a task whose history is gone."""

    id: str
    state: str
    result: bytes | None


@operation(writes=False)
def watch(q: Queries, ids: list[str]) -> Steps[tuple[dict[str, Task | Memory], set[str]]]:
    """How those of the tasks ended that have, and which are still live: what waiters ask, many of them at once."""
    found = yield from fetch(q, ids)
    endings: dict[str, Task | Memory] = {task.id: task for task in found if task.ended}
    live = {task.id for task in found if not task.ended}
    lost = [task_id for task_id in ids if task_id not in endings and task_id not in live]
    if lost:
        endings |= {row[0]: Memory(*row) for row in (yield q("remembered", lost))}
    return endings, live


@operation(writes=False)
def attempts(q: Queries, task: str) -> Steps[list[AttemptRow]]:
    """The attempts that did not end the task well, oldest first."""
    rows = yield q("attempts", task)
    return [AttemptRow(*row) for row in rows]


class Filter(msgspec.Struct, frozen=True):
    """Which tasks to list; None means any."""

    state: str | None = None
    queue: str | None = None
    name: str | None = None
    key: str | None = None
    tag: str | None = None
    before: str | None = None
    namespace: str | None = None
    destination: str | None = None
    """Of the namespace: only what is delivered there."""


@operation(writes=False)
def list_tasks(q: Queries, wanted: Filter, limit: int) -> Steps[list[Task]]:
    """Tasks, newest first; the last id is the `before` of the next page."""
    tag = None if wanted.tag is None else msgspec.json.encode(wanted.tag).decode()
    args = (
        wanted.state,
        wanted.queue,
        wanted.name,
        wanted.key,
        tag,
        wanted.before,
        limit,
        wanted.namespace,
        wanted.destination,
    )
    rows: list[tuple[Any, ...]] = []
    if wanted.state is None or State(wanted.state) not in (State.DONE, State.DEAD, State.CANCELLED):
        rows += yield q("list_live", *args)
    if wanted.state is None or State(wanted.state) in (State.DONE, State.DEAD, State.CANCELLED):
        rows += yield q("list_ended", *args)
    found = sorted((restore(row) for row in rows), key=lambda task: task.id, reverse=True)
    return found[:limit]


@operation(writes=False)
def by_prefix(q: Queries, prefix: str, limit: int) -> Steps[list[str]]:
    """The ids that begin with these characters."""
    rows = yield q("by_prefix", prefix, limit)
    return [row[0] for row in rows]


class QueueFacts(msgspec.Struct, frozen=True):
    """A queue: its counts by state, whether it is active, and its limit."""

    name: str
    state: str
    counts: dict[str, int]
    limit: Gate | None


@operation(writes=False)
def queues(q: Queries) -> Steps[list[QueueFacts]]:
    """Every queue that has tasks, a setting or a limit."""
    counts: dict[str, dict[str, int]] = {}
    for queue, state, count in (yield q("counts")):
        counts.setdefault(queue, {})[state] = count
    settings = {name: state for name, state, _ in (yield q("queue_settings"))}
    limits = {row[0][2:]: Gate(*row) for row in (yield q("gates")) if row[0].startswith("q:")}
    names = sorted({*counts, *settings, *limits})
    return [QueueFacts(name, settings.get(name, "active"), counts.get(name, {}), limits.get(name)) for name in names]


@operation(writes=False)
def gates(q: Queries) -> Steps[list[Gate]]:
    """Every limit, of queues (q:NAME) and of groups (g:NAME)."""
    rows = yield q("gates")
    return [Gate(*row) for row in rows]


@operation(writes=False)
def list_keys(q: Queries, queue: str | None, key: str | None, state: str | None, limit: int) -> Steps[list[KeyFacts]]:
    """The ordering keys that have tasks waiting."""
    rows = yield q("list_keys", queue, key, state, limit)
    return [KeyFacts(*row) for row in rows]


@operation(writes=False)
def key_tasks(q: Queries, queue: str, key: str, limit: int) -> Steps[list[Task]]:
    """The tasks that wait in a key, in their order; the head first."""
    rows = yield q("key_tasks", queue, key, limit)
    return [restore(row) for row in rows]


@operation(writes=False)
def sessions(q: Queries) -> Steps[list[SessionFacts]]:
    """Every session that the store knows, live or dead."""
    rows = yield q("sessions")
    return [SessionFacts.of(row) for row in rows]


@operation(writes=False, single=True)
def clock(q: Queries) -> Steps[int]:
    """The store's clock."""
    [(now,)] = yield q("clock")
    return int(now)


@operation(writes=False)
def evidence(q: Queries, task_id: str) -> Steps[Evidence | None]:
    """Everything that decides why a task is where it is, read in one transaction."""
    found = yield from fetch(q, [task_id])
    if not found:
        return None
    [task] = found
    [(now,)] = yield q("clock")
    settings = {name: (state, cutoff) for name, state, cutoff in (yield q("queue_settings"))}
    known = [SessionFacts.of(row) for row in (yield q("sessions"))]
    limits = {row[0]: Gate(*row) for row in (yield q("gates"))}
    wanted = [name for name in (f"q:{task.queue}", f"g:{task.gate}") if name in limits]
    permits: dict[str, int] = dict((yield q("count_permits", wanted)) if wanted else [])
    key: KeyFacts | None = None
    head: Task | None = None
    if task.key is not None and not task.ended:
        rows = yield q("list_keys", task.queue, task.key, None, 1)
        key = KeyFacts(*rows[0]) if rows else None
        rows = yield q("key_tasks", task.queue, task.key, 1)
        first = [restore(row) for row in rows]
        if key is not None and key.head is not None:
            first = yield from fetch(q, [key.head])
        head = first[0] if first else None
    line: int | None = None
    if task.state == State.BLOCKED and task.key is None and task.gate is not None:
        rows = yield q("lines", task.gate, task.queue)
        line = rows[0][2] if rows else None
    ahead = 0
    if task.state == State.READY:
        [(ahead,)] = yield q("ahead", task.queue, task.priority, task.ready_at)
    rows = yield q("attempts", task_id)
    return Evidence(
        task=task,
        now=now,
        queue_state=settings.get(task.queue, ("active", None))[0],
        queue_cutoff=settings.get(task.queue, ("active", None))[1],
        sessions=known,
        limits=[limits[name] for name in wanted],
        in_use={name: permits.get(name, 0) for name in wanted},
        key=key,
        head=head,
        line_ready_at=line,
        ahead=ahead,
        attempts=[AttemptRow(*row) for row in rows],
    )
