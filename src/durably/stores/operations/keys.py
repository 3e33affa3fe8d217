"""Ordering keys: locking their rows, leasing their heads, and giving them back when a head is settled.

A key row that is leased names its head: that is the committed evidence of the attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from durably.core.change import Change
from durably.core.task import Scope, State, Task, restore
from durably.stores.statement import Queries, Steps

Key = tuple[str, str]
Held = dict[Key, tuple[str, int, str | None]]
"""What the locked rows said: state, token and head."""


class Onward(msgspec.Struct, frozen=True, gc=False):
    """Who has room for the next task of a key whose head it has just done."""

    session: str
    queues: Sequence[str]
    names: Collection[str]
    """The tasks that it knows."""
    room: int
    spare: int = 0
    """How many others may wait, since there is room for them too."""


class Went(msgspec.Struct, gc=False):
    """The heads that a commit leased to whoever had done the ones before, and the store's time."""

    tasks: list[Task]
    now: int


def through_key(task: Task) -> bool:
    """Whether its key row must be locked: it waits in its key, or is the head that its key row names."""
    return task.key is not None and task.state in (State.BLOCKED, State.LEASED)


def lock_keys(q: Queries, changes: Sequence[Change]) -> Steps[Held]:
    """Lock the key rows; those of waiting tasks are made if they are not there, so that no claim can come between."""
    if not changes:
        return {}
    waiting = {(c.task.queue, c.task.key or ""): c.task for c in changes if c.task.state == State.BLOCKED}
    if waiting:
        tasks = [task for _, task in sorted(waiting.items())]
        yield q.each(
            "ensure_keys",
            [task.queue for task in tasks],
            [task.key for task in tasks],
            [task.priority for task in tasks],
            # A row that a stale change leaves behind must be one that every claim looks at, and then corrects.
            [False] * len(tasks),
            [task.gate for task in tasks],
        )
    keys = sorted({(change.task.queue, change.task.key or "") for change in changes})
    rows = yield q("lock_keys", [queue for queue, _ in keys], [key for _, key in keys])
    return {(queue, key): (state, token, head) for queue, key, state, token, head in rows}


def holds(task: Task, held: Held) -> bool:
    """Whether the key row agrees with how the change saw the task: its leased head, or one that waits."""
    state, token, head = held.get((task.queue, task.key or ""), ("", 0, None))
    if task.state == State.LEASED:
        return state == "leased" and token == task.token and head == task.id
    return not (state == "leased" and head == task.id)


def as_head(task: Task, session: str, token: int, now: int) -> Task:
    """The task as its leased key row describes it: the attempt counts from now."""
    return msgspec.structs.replace(
        task,
        state=State.LEASED.value,
        session=session,
        token=token,
        attempt=task.attempt + 1,
        spent=task.spent + 1,
        started_at=now,
    )


def lease_keys(q: Queries, heads: Sequence[Task]) -> Steps[None]:
    """Write what `as_head` says into the key rows, which are locked."""
    if heads:
        yield q.each(
            "lease_keys",
            [task.queue for task in heads],
            [task.key for task in heads],
            [task.id for task in heads],
            [task.token for task in heads],
            [task.started_at for task in heads],
            [task.session for task in heads],
        )


def drop_keys(q: Queries, keys: Sequence[Key]) -> Steps[None]:
    """Nothing waits in these keys any more."""
    if keys:
        yield q.each("drop_keys", [queue for queue, _ in keys], [key for _, key in keys])


class Returned(msgspec.Struct, frozen=True, gc=False):
    """How a key row waits for its next head."""

    queue: str
    key: str
    ready_at: int
    priority: int
    alone: bool
    gate: str | None
    state: str = "ready"
    due_in: int = 0
    held: bool = False
    """Whether a limit is what it waits for."""
    reason: str | None = None
    head: str | None = None
    """The task that it is paused for."""


def return_keys(q: Queries, back: Sequence[Returned]) -> Steps[None]:
    """Let others have these keys."""
    if back:
        yield q.each(
            "return_keys",
            [one.queue for one in back],
            [one.key for one in back],
            [one.state for one in back],
            [one.due_in for one in back],
            [one.ready_at for one in back],
            [one.priority for one in back],
            [one.alone for one in back],
            [one.gate for one in back],
            [one.held for one in back],
            [one.reason for one in back],
            [one.head for one in back],
        )


def give_back_keys(q: Queries, changes: Sequence[Change], held: Held, onward: Onward | None) -> Steps[Went | None]:
    """A key whose head is settled goes on, is ready for its next task, waits, pauses, or goes when none is left."""
    touched = _touched(changes, held)
    went: Went | None = None
    if onward is not None:
        went = yield from _go_on(q, touched, onward)
    if not touched:
        return went
    rows = yield q("next_heads", [queue for queue, _ in touched], [key for _, key in touched])
    yield from drop_keys(q, [(queue, key) for queue, key, task, *_ in rows if task is None])
    back = []
    for queue, key, task, priority, alone, gate, ready_at in rows:
        after = None if task is None else _key_after(touched[queue, key], held[queue, key])
        if after is not None:
            state, reason, head = after
            back.append(Returned(queue, key, ready_at, priority, bool(alone), gate, state, reason=reason, head=head))
    yield from return_keys(q, back)
    return went


def _touched(changes: Sequence[Change], held: Held) -> dict[Key, Change]:
    """The keys that are given back, each with the change that decides how."""
    touched: dict[Key, Change] = {}
    for change in changes:
        key = (change.task.queue, change.task.key or "")
        was_head = change.task.state == State.LEASED
        if change.state == State.LEASED or key not in held or (held[key][0] == "leased" and not was_head):
            continue
        # Of several that wait in one key, the one that it is paused for decides.
        if was_head or key not in touched or change.task.id == held[key][2]:
            touched[key] = change
    return touched


def _key_after(change: Change, held: tuple[str, int, str | None]) -> tuple[str, str | None, str | None] | None:
    """The key's state, its reason, and whom it waits for if it pauses; None for a pause that has another cause."""
    if change.pause:
        return "paused", change.reason, change.task.id
    state, _, head = held
    if state == "paused" and change.ends and change.task.id != head:
        return None
    return "ready", None, None


def _go_on(q: Queries, touched: dict[Key, Change], onward: Onward) -> Steps[Went | None]:
    """Lease the next heads to whoever did the last ones, as far as the next claim would; those are touched no more."""
    done = [key for key, change in touched.items() if change.state is State.DONE and change.task.state == State.LEASED]
    if not done or onward.room < 1:
        return None
    queues, most = list(onward.queues), onward.room + onward.spare
    [(now, plain, waiting)] = yield q("others", queues, [f"q:{queue}" for queue in queues], most)
    room = min(onward.room, most - waiting)
    if not plain or room < 1:
        return None
    asked = done[:room]
    rows = yield q("heads", [queue for queue, _ in asked], [key for _, key in asked])
    went = Went([], now)
    gone: list[Key] = []
    for queue, key, token, early, *columns in rows:
        if columns[0] is None:
            gone.append((queue, key))
        elif not early and _is_plain(task := restore(tuple(columns)), onward):
            went.tasks.append(as_head(task, onward.session, token, now))
    yield from lease_keys(q, went.tasks)
    yield from drop_keys(q, gone)
    for key in (*gone, *((task.queue, task.key or "") for task in went.tasks)):
        del touched[key]
    return went


def _is_plain(task: Task, onward: Onward) -> bool:
    """Whether a claim would have no questions about this head."""
    return (
        task.gate is None
        and not task.alone
        and task.unique_scope != Scope.WAITING
        and task.queue in onward.queues
        and task.name in onward.names
    )


def refused(queue: str, key: str, task: Task, wait: int, *, held: bool) -> Returned:
    """The row of a key whose head may not run now."""
    return Returned(queue, key, task.ready_at, task.priority, bool(task.alone), task.gate, due_in=wait, held=held)
