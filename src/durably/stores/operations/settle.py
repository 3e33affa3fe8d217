"""What becomes of ordering keys when their tasks are settled: who may be, and who is next.

The commit that ends a head may lease the next one to the same worker. A worker that runs ahead keeps its key until the
last of those that it has taken is settled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

import msgspec

from durably.core.change import Change
from durably.core.task import State, Task
from durably.stores.operations.brief import leased_heads
from durably.stores.operations.keys import (
    LEASED,
    NOBODY,
    Behind,
    Heads,
    Held,
    HeldKey,
    Key,
    advance_keys,
    drop_keys,
    followers_of,
    in_keys,
    is_plain,
    lease_keys,
    listed,
    read_heads,
    ready,
    return_keys,
)
from durably.stores.statement import Otherwise, Queries, Steps

REACH = 4
"""Tasks of one key are likely to be as far apart as there are keys: so many times that, to be on the safe side."""


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
    going: Mapping[Key, Sequence[str]] = {}
    """The tasks of each key that it has begun, or will begin, and that are not settled, in their order."""


class Went(msgspec.Struct, gc=False):
    """The heads that a commit leased to whoever had done the ones before, and the store's time."""

    tasks: list[Task]
    now: int
    behind: Behind


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


class InOrder(msgspec.Struct, gc=False):
    """That all was done in order: the last of each key that nobody follows, and what the key rows had said."""

    last: dict[Key, Change]
    held: Held


def finish_in_order(
    q: Queries, changes: Sequence[Change], ends: Ends, going: Mapping[Key, Sequence[str]]
) -> Steps[InOrder]:
    """End tasks of keys that are done, each key's in the order of its row: all of them, or it must be done otherwise.

    They are looked for where they were when they were leased.
    """
    keep_for = changes[0].keep_for
    keys = sorted(ends)
    ids = {key: [change.task.id for change in chain] for key, chain in ends.items()}
    left = {key: _behind(ids[key], going[key]) for key in keys if key in going}
    heads = [ends[key][0].task for key in keys]
    # The way through the table that the server has to go is shorter in the order in which they came into it.
    changes = sorted(changes, key=_arrival)
    tasks = [change.task for change in changes]
    rows = yield q(
        "finish_keyed_tasks",
        [task.id for task in tasks],
        [task.version for task in tasks],
        [task.token for task in tasks],
        [change.result for change in changes],
        [change.started_ago or None for change in changes],
        keep_for,
        tasks[0].session,
        len(tasks),
        [task.place for task in tasks],
        [queue for queue, _ in keys],
        [key for _, key in keys],
        [task.token for task in heads],
        [task.id for task in heads],
        [listed([*ids[key][1:], *left.get(key, ())]) for key in keys],
        len(keys),
    )
    if rows[0][0] != len(tasks):
        raise Otherwise("finish_keyed_tasks")
    moved: dict[Key, tuple[str | None, list[str]]] = {
        key: (ids[key][0], list(behind)) for key, behind in left.items() if behind
    }
    yield from advance_keys(q, moved)
    return InOrder({key: ends[key][-1] for key in keys if key not in moved}, dict.fromkeys(keys, LEASED))


_arrival = attrgetter("task.seq")


Ends = dict[Key, list[Change]]
"""The ends of each key, in the order in which they came."""


def ends_of_keys(changes: Sequence[Change]) -> Ends | None:
    """The changes of each key, if they are successes of one worker on which nothing hangs, and can be written together.

    None if anything else is to be written, if somebody's place is not known, if not all are kept equally long, or if
    those of a key have not been leased together. Those of one key most often come one after the other.
    """
    session, keep_for = changes[0].task.session, changes[0].keep_for
    if session is None:
        return None
    ends: Ends = {}
    chain: list[Change] = []
    queue = key = token = None
    done, leased = State.DONE, State.LEASED.value
    for change in changes:
        task = change.task
        if (
            change.state is not done
            or task.key is None
            or task.state != leased
            or task.session != session
            or task.gate is not None
            or task.unique_scope is not None
            or task.limited
            or task.place is None
            or change.keep_for != keep_for
            or change.spawned
            or change.attempt is not None
        ):
            return None
        if task.key != key or task.queue != queue:
            queue, key = task.queue, task.key
            chain = ends.setdefault((queue, key), [])
            token = chain[0].task.token if chain else task.token
        if task.token != token:
            return None
        chain.append(change)
    return ends


def _behind(ended: Sequence[str], going: Sequence[str]) -> Sequence[str]:
    """Those with whom a worker goes on when these have ended, which must be the first of them."""
    if going[: len(ended)] != ended:
        raise Otherwise("finish_keyed_tasks")
    return going[len(ended) :]


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


def give_back_keys(q: Queries, changes: Sequence[Change], held: Held, onward: Onward | None) -> Steps[Went | None]:
    """A key whose head is settled goes on, is ready for its next task, waits, pauses, or goes when none is left."""
    touched = _touched(changes, held)
    if onward is not None and onward.going:
        settled = {change.task.id for change in changes if change.state != State.LEASED}
        yield from _advance(q, touched, held, settled, onward)
    return (yield from pass_on(q, touched, held, onward))


def pass_on(q: Queries, touched: dict[Key, Change], held: Held, onward: Onward | None) -> Steps[Went | None]:
    """Keys whose heads are settled go on, if they may; the others are ready, wait or pause, or go."""
    went = None if onward is None else (yield from _go_on(q, touched, onward))
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
            back.append(msgspec.structs.replace(ready(*row), state=state, reason=reason, head=head))
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
    going = onward.going.get((change.task.queue, change.task.key or ""), ())
    return [task for task in row.leased if task not in settled and task in going]


def _advance(
    q: Queries, touched: dict[Key, Change], held: Held, settled: Collection[str], onward: Onward
) -> Steps[None]:
    """A worker that runs ahead keeps its keys, each with the first follower that is not settled yet for its head."""
    moved: dict[Key, tuple[str | None, list[str]]] = {}
    for key, change in list(touched.items()):
        left = _left(change, held[key], settled, onward)
        if left:
            moved[key] = (held[key].head, left)
            del touched[key]
    yield from advance_keys(q, moved)


def _go_on(q: Queries, touched: dict[Key, Change], onward: Onward) -> Steps[Went | None]:
    """Lease the next heads to whoever did the last ones, as far as the next claim would; those are touched no more."""
    done = [key for key, change in touched.items() if change.state is State.DONE and change.task.state == State.LEASED]
    if not done or onward.room < 1:
        return None
    if onward.ahead == 1 and "go_on" in q:
        return (yield from _lease_next(q, touched, done, onward))
    found = yield from _look_ahead(q, done, onward)
    if found is None:
        return None
    now, heads = found
    went = Went([], now, {})
    names = onward.names
    gone: list[Key] = []
    for key, waiting in heads.waiting.items():
        if not waiting:
            gone.append(key)
            continue
        head, *behind = waiting
        if head.id not in heads.early and is_plain(head) and _is_known(head, onward):
            went.tasks.append(head)
            if followers := followers_of(head, behind, heads.early, names=names):
                went.behind[head.id] = followers
    yield from lease_keys(q, went.tasks, went.behind)
    yield from drop_keys(q, gone)
    for key in (*gone, *((task.queue, task.key or "") for task in went.tasks)):
        del touched[key]
    return went


def _look_ahead(q: Queries, done: Sequence[Key], onward: Onward) -> Steps[tuple[int, Heads] | None]:
    """The time, and who waits in as many of these keys as there is room for; None if nobody may go on."""
    queues, most = list(onward.queues), onward.room + onward.spare
    gates = [f"q:{queue}" for queue in queues]
    if "next_chains" in q:
        names = [queue for queue, _ in done], [key for _, key in done]
        rows = yield q("next_chains", queues, gates, most, *names, onward.ahead, onward.room)
        tasks = leased_heads(rows, onward.session)
        return (tasks[0].started_at or 0, in_keys(rows, tasks, {})) if tasks else None
    [(now, plain, others)] = yield q("others", queues, gates, most)
    room = min(onward.room, most - others)
    if not plain or room < 1:
        return None
    return now, (yield from read_heads(q, done[:room], onward.ahead, onward.session, now))


def _lease_next(q: Queries, touched: dict[Key, Change], done: Sequence[Key], onward: Onward) -> Steps[Went | None]:
    """The same for whoever takes one task of a key at a time, in one statement."""
    reach = REACH * len(done)
    rows = yield q(
        "go_on",
        list(onward.queues),
        [f"q:{queue}" for queue in onward.queues],
        onward.room + onward.spare,
        [queue for queue, _ in done],
        [key for _, key in done],
        [touched[key].task.seq + reach for key in done],
        list(onward.names),
        onward.room,
        onward.session,
    )
    if not rows:
        return None
    tasks = leased_heads(rows, onward.session)
    for task in tasks:
        del touched[task.queue, task.key or ""]
    return Went(tasks, tasks[0].started_at or 0, {})


def _is_known(task: Task, onward: Onward) -> bool:
    return task.queue in onward.queues and task.name in onward.names
