"""Ordering keys: locking their rows, leasing their heads, and giving them back when a head is settled.

A key row that is leased names its head: that is the committed evidence of the attempt. A worker that runs ahead may
take followers with it, which it runs one after the other, each after the success of the one before; they count as
leased too. If it dies, the head is charged, and the followers wait as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec

from durably.core.change import Change
from durably.core.task import Scope, State, Task, restore
from durably.stores.statement import Queries, Steps

Key = tuple[str, str]
Waiting = tuple[Task, bool]
"""A task that waits in its key, and whether its time has not come yet."""


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


class Onward(msgspec.Struct, frozen=True, gc=False):
    """Who has room for the next task of a key whose head it has just done."""

    session: str
    queues: Sequence[str]
    names: Collection[str]
    """The tasks that it knows."""
    room: int
    spare: int = 0
    """How many others may wait, since there is room for them too."""
    ahead: int = 1
    """How many tasks of a key it takes at once."""
    going: Collection[str] = ()
    """The followers that it has begun, or will begin, and has not reported."""


Behind = dict[str, list[Task]]
"""The followers of each head that has any."""


class Went(msgspec.Struct, gc=False):
    """The heads that a commit leased to whoever had done the ones before, and the store's time."""

    tasks: list[Task]
    now: int
    behind: Behind


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
    keys = sorted({(change.task.queue, change.task.key or "") for change in changes})
    rows = yield q("lock_keys", [queue for queue, _ in keys], [key for _, key in keys])
    return {
        (queue, key): HeldKey(state, token, head, tuple(followers.split(",")) if followers else ())
        for queue, key, state, token, head, followers in rows
    }


def in_turn(q: Queries, changes: Sequence[Change], held: Held) -> Steps[list[Change]]:
    """Of changes through keys those of which the key rows allow that they be written now.

    A follower is settled only together with everyone before it, or after them. While a key row is locked nobody else
    changes its tasks, so that their versions tell beforehand which changes will land.
    """
    wanted: list[Change] = []
    chains: dict[Key, dict[str, Change]] = {}
    for change in changes:
        task = change.task
        key = (task.queue, task.key or "")
        row = held.get(key, NOBODY)
        if _holds(task, row):
            wanted.append(change)
            if row.followers and change.state is not State.LEASED and task.state == State.LEASED:
                chains.setdefault(key, {})[task.id] = change
    chains = {key: chain for key, chain in chains.items() if len(chain) > 1 or held[key].head not in chain}
    if not chains:
        return wanted
    versions: dict[str, int] = dict((yield q("versions", [task for chain in chains.values() for task in chain])))
    early = {task for key, chain in chains.items() for task in _too_early(held[key].leased, chain, versions)}
    return [change for change in wanted if change.task.id not in early or change.state is State.LEASED]


def _too_early(leased: Sequence[str], chain: dict[str, Change], versions: dict[str, int]) -> Sequence[str]:
    """Those in a chain before whom somebody is not settled."""
    for place, task in enumerate(leased):
        change = chain.get(task)
        if change is None or versions.get(task) != change.task.version:
            return leased[place:]
        if not change.ends:
            return leased[place + 1 :]
    return ()


def _holds(task: Task, row: HeldKey) -> bool:
    """Whether the key row agrees with how the change saw the task: leased, or waiting."""
    leased = row.state == "leased" and (task.id == row.head or task.id in row.followers)
    return leased and row.token == task.token if task.state == State.LEASED else not leased


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


def read_heads(q: Queries, keys: Sequence[Key], ahead: int) -> Steps[list[tuple[Key, int, list[Waiting]]]]:
    """What waits in each of these keys, up to so many; with the token for whoever takes it."""
    rows = yield q("heads", [queue for queue, _ in keys], [key for _, key in keys], ahead)
    found: dict[Key, tuple[int, list[Waiting]]] = {}
    for queue, key, token, early, *columns in rows:
        _, waiting = found.setdefault((queue, key), (token, []))
        if columns[0] is not None:
            waiting.append((restore(tuple(columns)), bool(early)))
    return [
        (key, token, sorted(waiting, key=lambda one: one[0].seq) if len(waiting) > 1 else waiting)
        for key, (token, waiting) in found.items()
    ]


def followers_of(head: Task, waiting: Sequence[Waiting], may_follow: Callable[[Task], bool]) -> list[Task]:
    """Those who may run behind this head without a claim of their own.

    There are none while a crash is on the account, since a crash is charged to the head alone; and after it, those that
    may run only once could not be told from those that have not begun.
    """
    if not waiting or head.crashes or head.gate is not None:
        return []

    def follows(one: Waiting) -> bool:
        task, early = one
        return not early and not task.crashes and not task.once and may_follow(task)

    return [
        as_head(task, head.session or "", head.token, head.started_at or 0) for task, _ in takewhile(follows, waiting)
    ]


def lease_keys(q: Queries, heads: Sequence[Task], behind: Behind) -> Steps[None]:
    """Write what `as_head` says into the key rows, which are locked."""
    if heads:
        yield q.each(
            "lease_keys",
            [task.queue for task in heads],
            [task.key for task in heads],
            [task.id for task in heads],
            [_listed(one.id for one in behind.get(task.id, ())) for task in heads],
            [task.token for task in heads],
            [task.started_at for task in heads],
            [task.session for task in heads],
        )


def _listed(ids: Iterable[str]) -> str | None:
    return ",".join(ids) or None


def drop_keys(q: Queries, keys: Sequence[Key]) -> Steps[None]:
    """Nothing waits in these keys any more; those in which something was admitted meanwhile are ready."""
    if keys and "lock_empty_keys" in q:
        places = sorted(keys)
        yield q("lock_empty_keys", [queue for queue, _ in places], [key for _, key in places])
        rows = yield q("next_heads", [queue for queue, _ in places], [key for _, key in places])
        keys = [(queue, key) for queue, key, task, *_ in rows if task is None]
        yield from return_keys(q, [_ready(*row) for row in rows if row[2] is not None])
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


def _ready(queue: str, key: str, _: str, priority: int, alone: bool, gate: str | None, ready_at: int) -> Returned:
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


def give_back_keys(q: Queries, changes: Sequence[Change], held: Held, onward: Onward | None) -> Steps[Went | None]:
    """A key whose head is settled goes on, is ready for its next task, waits, pauses, or goes when none is left."""
    touched = _touched(changes, held)
    went: Went | None = None
    if onward is not None:
        if onward.going:
            settled = {change.task.id for change in changes if change.state != State.LEASED}
            yield from _advance(q, touched, held, settled, onward)
        went = yield from _go_on(q, touched, onward)
    if not touched:
        return went
    rows = yield q("next_heads", [queue for queue, _ in touched], [key for _, key in touched])
    yield from drop_keys(q, [(queue, key) for queue, key, task, *_ in rows if task is None])
    back = []
    for row in rows:
        key = (row[0], row[1])
        after = None if row[2] is None else _key_after(touched[key], held[key])
        if after is not None:
            state, reason, head = after
            back.append(msgspec.structs.replace(_ready(*row), state=state, reason=reason, head=head))
    yield from return_keys(q, back)
    return went


def _touched(changes: Sequence[Change], held: Held) -> dict[Key, Change]:
    """The keys that are given back, each with the change that decides how."""
    touched: dict[Key, Change] = {}
    for change in changes:
        task = change.task
        key = (task.queue, task.key or "")
        row = held.get(key)
        if row is None or change.state is State.LEASED:
            continue
        # Of several that wait in one key, the one that it is paused for decides; of those that ran, the last.
        if task.state == State.LEASED or (row.state != "leased" and (key not in touched or task.id == row.head)):
            touched[key] = change
    return touched


def _key_after(change: Change, held: HeldKey) -> tuple[str, str | None, str | None] | None:
    """The key's state, its reason, and whom it waits for if it pauses; None for a pause that has another cause."""
    if change.pause:
        return "paused", change.reason, change.task.id
    if held.state == "paused" and change.ends and change.task.id != held.head:
        return None
    return "ready", None, None


def let_go(changes: Sequence[Change], held: Held, onward: Onward | None) -> list[str]:
    """The followers that are leased no more, though nothing was reported about them."""
    if not any(row.followers for row in held.values()):
        return []
    touched = _touched(changes, held)
    settled = {change.task.id for change in changes if change.state != State.LEASED}
    found = []
    for key, change in touched.items():
        if held[key].followers:
            kept = _left(change, held[key], settled, onward)
            found += [task for task in held[key].leased if task not in settled and task not in kept]
    return found


def _left(change: Change, row: HeldKey, settled: Collection[str], onward: Onward | None) -> list[str]:
    """With whom a worker that runs ahead goes on, when this change is the last that it has reported of a key."""
    if onward is None or not change.ends:
        return []
    return [task for task in row.leased if task not in settled and task in onward.going]


def _advance(
    q: Queries, touched: dict[Key, Change], held: Held, settled: Collection[str], onward: Onward
) -> Steps[None]:
    """A worker that runs ahead keeps its keys, each with the first follower that is not settled yet for its head."""
    moved: list[tuple[Key, str, str | None, str | None]] = []
    for key, change in list(touched.items()):
        left = _left(change, held[key], settled, onward)
        if left:
            moved.append((key, left[0], _listed(left[1:]), held[key].head))
            del touched[key]
    if moved:
        yield q.each(
            "advance_keys",
            [queue for (queue, _), *_ in moved],
            [key for (_, key), *_ in moved],
            [head for _, head, _, _ in moved],
            [followers for _, _, followers, _ in moved],
            [was for *_, was in moved],
        )


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
    went = Went([], now, {})
    gone: list[Key] = []
    for key, token, waiting in (yield from read_heads(q, done[:room], onward.ahead)):
        if not waiting:
            gone.append(key)
            continue
        (task, early), *others = waiting
        if not early and _is_plain(task, onward):
            head = as_head(task, onward.session, token, now)
            went.tasks.append(head)
            if followers := followers_of(head, others, lambda one: _is_plain(one, onward)):
                went.behind[head.id] = followers
    yield from lease_keys(q, went.tasks, went.behind)
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
