"""The rows of ordering keys: admitting, locking and leasing them, and letting others have them.

A key row that is leased names its head: that is the committed evidence of the attempt. A worker that runs ahead may
take followers with it, which it runs one after the other, each after the success of the one before; they count as
leased too. If it dies, the head is charged, and the followers wait as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from durably.core.change import Change
from durably.core.moment import FOREVER
from durably.core.task import Scope, State, Task
from durably.stores.operations.brief import leased_heads
from durably.stores.statement import Queries, Rows, Steps

Key = tuple[str, str]

_encode = msgspec.json.Encoder().encode


class Heads(msgspec.Struct, frozen=True, gc=False):
    """Who waits in some keys."""

    waiting: dict[Key, list[Task]]
    """The first ones of each, in their order."""
    early: set[str]
    """Those whose time has not come yet."""


class HeldKey(NamedTuple):
    """What a locked row says."""

    state: str
    token: int
    head: str | None
    followers: tuple[str, ...]

    @property
    def leased(self) -> tuple[str, ...]:
        """The tasks that whoever has leased the key runs, in that order."""
        return (self.head, *self.followers) if self.state == "leased" and self.head is not None else ()


Held = dict[Key, HeldKey]
NOBODY = HeldKey("", 0, None, ())
LEASED = HeldKey("leased", 0, None, ())
"""What there is to know of a key whose only task that was leased is settled."""


Behind = dict[str, list[Task]]
"""The followers of each head that has any."""


OWN = "durably."
"""How the names of tasks begin that belong to this library."""


def admit(q: Queries, limit: int) -> Steps[None]:
    """Turn markers into key rows and lines."""
    rows = yield q("admit", limit)
    if not rows or "share_keys" not in q:
        return
    known = yield q("share_keys", [row[0] for row in rows], [row[1] for row in rows])
    there = set(known)
    new = [row for row in rows if (row[0], row[1]) not in there]
    if new:
        yield q.each("make_keys", *(list(column) for column in zip(*new, strict=True)))


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
    return (yield from lock_rows(q, {(change.task.queue, change.task.key or "") for change in changes}))


def lock_rows(q: Queries, keys: Iterable[Key]) -> Steps[Held]:
    """Lock the rows of these keys, as far as they have any."""
    places = sorted(keys)
    rows = yield q("lock_keys", [queue for queue, _ in places], [key for _, key in places])
    return {
        (queue, key): HeldKey(state, token, head, tuple(followers.split(",")) if followers else ())
        for queue, key, state, token, head, followers in rows
    }


def read_heads(q: Queries, keys: Sequence[Key], ahead: int, session: str, now: int) -> Steps[Heads]:
    """What waits in each of these keys, up to so many, as its key row will describe it if it is leased."""
    rows = yield q("heads", [queue for queue, _ in keys], [key for _, key in keys], ahead, now)
    return in_keys(rows, leased_heads(rows, session), {key: [] for key in keys})


def in_keys(rows: Rows, tasks: Sequence[Task], waiting: dict[Key, list[Task]]) -> Heads:
    """The tasks of these rows beside those who wait in their keys; each row ends with whether it is early."""
    queue = key = None
    for task in tasks:
        if task.key != key or task.queue != queue:
            queue, key = task.queue, task.key
            chain = waiting.setdefault((task.queue, task.key or ""), [])
        chain.append(task)
    for chain in waiting.values():
        chain.sort(key=_place)
    return Heads(waiting, {row[0] for row in rows if row[-1]})


_place = attrgetter("seq")


def is_plain(task: Task) -> bool:
    """Whether a claim has nothing to do for it but to lease it."""
    scope = task.unique_scope
    return task.gate is None and not task.alone and (scope is None or scope != Scope.WAITING)


def followers_of(
    head: Task, waiting: Sequence[Task], early: set[str], cutoff: int = FOREVER, names: Collection[str] | None = None
) -> list[Task]:
    """Those who may run behind this head without a claim of their own: created so early, and of these names if any.

    There are none while a crash is on the account, since a crash is charged to the head alone; and after it, those that
    may run only once could not be told from those that have not begun. Nor could deliveries, which must know whether
    one may have arrived.
    """
    found: list[Task] = []
    if head.crashes or head.gate is not None:
        return found
    fitting = None
    for task in waiting:
        if task.crashes or task.once or task.created_at > cutoff or not is_plain(task) or task.id in early:
            break
        if task.name != fitting:
            fitting = task.name
            if fitting.startswith(OWN) or (names is not None and fitting not in names):
                break
        found.append(task)
    return found


def lease_keys(q: Queries, heads: Sequence[Task], behind: Behind) -> Steps[None]:
    """Write what `read_heads` says into the key rows, which are locked: all of these have one lease in common."""
    if heads and "lease_keys_of" in q:
        followers = {head.seq: listed([one.id for one in behind.get(head.id, ())]) for head in heads}
        lease = heads[0].token, heads[0].started_at, heads[0].session
        yield q("lease_keys_of", _encode(followers).decode(), *lease)
    elif heads:
        yield q.each(
            "lease_keys",
            [task.queue for task in heads],
            [task.key for task in heads],
            [task.id for task in heads],
            [listed([one.id for one in behind.get(task.id, ())]) for task in heads],
            heads[0].token,
            heads[0].started_at,
            heads[0].session,
        )


def listed(ids: Iterable[str]) -> str | None:
    """How a key row names its followers."""
    return ",".join(ids) or None


def advance_keys(q: Queries, moved: dict[Key, tuple[str | None, list[str]]]) -> Steps[None]:
    """Name another head in leased key rows, and its followers: who was the head, and who is left."""
    if moved:
        yield q.each(
            "advance_keys",
            [queue for queue, _ in moved],
            [key for _, key in moved],
            [left[0] for _, left in moved.values()],
            [listed(left[1:]) for _, left in moved.values()],
            [was for was, _ in moved.values()],
        )


def drop_keys(q: Queries, keys: Sequence[Key]) -> Steps[None]:
    """Nothing waits in these keys any more; those in which something was admitted meanwhile are ready."""
    if keys and "lock_empty_keys" in q:
        places = sorted(keys)
        yield q("lock_empty_keys", [queue for queue, _ in places], [key for _, key in places])
        rows = yield q("next_heads", [queue for queue, _ in places], [key for _, key in places])
        keys = [(queue, key) for queue, key, task, *_ in rows if task is None]
        yield from return_keys(q, [ready(*row) for row in rows if row[2] is not None])
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


def ready(queue: str, key: str, _: str, priority: int, alone: bool, gate: str | None, ready_at: int) -> Returned:
    """The row of a key whose next head these columns describe."""
    return Returned(queue, key, ready_at, priority, bool(alone), gate)


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


def refused(queue: str, key: str, task: Task, wait: int, *, held: bool) -> Returned:
    """The row of a key whose head may not run now."""
    return Returned(queue, key, task.ready_at, task.priority, bool(task.alone), task.gate, due_in=wait, held=held)
