"""Claiming: lease what there is room for, by priority and age, within every limit.

Lock order: gates, then keys, then tasks. What is neither keyed nor limited costs one survey and one update.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durably.core.moment import FOREVER, SECOND
from durably.core.task import Scope, Task, restore
from durably.stores.operations.commit import settle_cancel_requests
from durably.stores.operations.desk import Desk, Lane
from durably.stores.operations.gatekeeper import lock_gates, settle_gates
from durably.stores.operations.keys import (
    Behind,
    Key,
    Returned,
    admit,
    drop_keys,
    followers_of,
    lease_keys,
    read_heads,
    refused,
    return_keys,
)
from durably.stores.operations.lines import Head, claim_lines, line_heads
from durably.stores.statement import Queries, Steps, operation

FLOOR_MARGIN = 2 * SECOND
ADMIT_BATCH = 5000
GATE_BATCH = 100

Range = tuple[str, int]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a claim brought: the tasks, the store's time, and where the next one may begin to look."""

    live: bool
    tasks: list[Task] = []
    now: int = 0
    alone_waiting: bool = False
    again_in: int | None = None
    """When a shut gate may open again: a claim before that would find what this one found."""
    floors: dict[Range, int] = {}
    reached: dict[Range, int] = {}
    """When the last plain task that it took of each range became ready."""
    behind: Behind = {}
    """Who follows the heads of keys, for a worker that runs ahead."""
    plain: bool = False
    """Whether it met nothing but plain tasks in open queues."""


class Share(msgspec.Struct, frozen=True, gc=False):
    """How much of a claim's room limit groups and keys may take; plain tasks take the rest."""

    heads: list[Head]
    lines: int
    keys: int
    crowded: bool
    """More waits than there is room for."""


@operation()
def claim(
    q: Queries,
    session: str,
    queues: Sequence[str],
    room: int,
    *,
    floors: dict[Range, int] | None = None,
    alone: bool = False,
    ahead: int = 1,
) -> Steps[Claim]:
    """Lease up to `room` tasks for a live session; of each key up to `ahead`, which count as one.

    With `alone`, only tasks on their last crash life are taken, which must run with nothing beside them.
    """
    if not (yield q("lock_session", session)):
        return Claim(live=False)
    rows = yield q("survey", list(queues))
    now, marked, cancels, keys_ready, gates_ready, alone_waiting, settings = rows[0]
    if cancels:
        yield from settle_cancel_requests(q)
    if marked:
        yield from admit(q, ADMIT_BATCH)
        keys_ready = gates_ready = True
    lanes = _lanes(queues, settings)
    groups: list[tuple[str, str, bool]] = []
    if gates_ready and lanes:
        rows = yield q("ready_gates", list(lanes), GATE_BATCH)
        groups = [(queue, gate, bool(is_line)) for queue, gate, is_line in rows]
    names = {f"q:{lane.queue}" for lane in lanes.values() if lane.limited} | {f"g:{gate}" for _, gate, _ in groups}
    keeper = yield from lock_gates(q, sorted(names), now, room)
    crowded = len(groups) == GATE_BATCH
    desk = Desk(session, lanes, groups, keeper, alone, bool(alone_waiting), now, ahead, crowded)
    taken: list[Task] = []
    moved: dict[Range, int] = {}
    # What was counted may not be there for the taking; then the room that is left goes to whoever can use it.
    for fair in (True, False):
        left = room - len(taken)
        share = yield from _share(q, desk, keys_ready, left, fair and not alone)
        if groups:
            taken += yield from claim_lines(q, desk, share.heads, share.lines)
        if keys_ready and room > len(taken):
            taken += yield from _claim_keys(q, desk, min(share.keys, room - len(taken)))
        if room > len(taken):
            plain = yield from _claim_ready(q, desk, room - len(taken), floors or {})
            for task in plain:
                place = (task.queue, task.priority)
                moved[place] = max(moved.get(place, 0), task.ready_at)
            taken += plain
        if len(taken) == room or not share.crowded:
            break
    yield from settle_gates(q, keeper)
    waiting = [task.id for task in taken if task.unique_scope == Scope.WAITING]
    if waiting:
        yield q("free_unique", waiting, [Scope.WAITING.value])
    taken.sort(key=lambda task: (-task.priority, task.ready_at, task.seq))
    only_plain = not (marked or cancels or keys_ready or gates_ready or alone_waiting or settings)
    trailing = {place: min(ready_at, now - FLOOR_MARGIN) for place, ready_at in moved.items()}
    return Claim(True, taken, now, bool(alone_waiting), keeper.soonest(), trailing, moved, desk.behind, only_plain)


@operation()
def claim_of(
    q: Queries, session: str, queue: str, keys: Sequence[str], gates: Sequence[str], room: int
) -> Steps[Claim]:
    """Lease the heads of these keys, and up to `room` tasks of these limit groups: only if a claim would."""
    if not (yield q("lock_session", session)):
        return Claim(live=False)
    [(now, marked, cancels, _, _, lonely, settings)] = yield q("survey", [queue])
    if cancels:
        yield from settle_cancel_requests(q)
    if marked:
        yield from admit(q, ADMIT_BATCH)
    lanes = _lanes([queue], settings)
    if queue not in lanes:
        return Claim(True, [], now)
    groups = [(queue, gate, True) for gate in gates]
    names = {f"q:{lane.queue}" for lane in lanes.values() if lane.limited} | {f"g:{gate}" for _, gate, _ in groups}
    keeper = yield from lock_gates(q, sorted(names), now, room)
    desk = Desk(session, lanes, groups, keeper, False, bool(lonely), now)
    taken: list[Task] = []
    if keys:
        taken += yield from _lease_heads(q, desk, (yield q("pick_these", queue, list(keys), room)))
    if gates:
        taken += yield from claim_lines(q, desk, (yield from line_heads(q, desk, desk.lines(), room)), room)
    yield from settle_gates(q, keeper)
    return Claim(True, taken, now)


def _lanes(queues: Sequence[str], settings: str | None) -> dict[str, Lane]:
    """The queues that are open, in the order given."""
    lanes = {queue: Lane(queue, FOREVER, False) for queue in queues}
    for name, state, cutoff, limited in msgspec.json.decode(settings) if settings else []:
        if state == "paused":
            del lanes[name]
        else:
            lanes[name] = Lane(name, FOREVER if cutoff is None else cutoff, bool(limited))
    return lanes


def _share(q: Queries, desk: Desk, keys_ready: bool, room: int, fair: bool) -> Steps[Share]:
    """Divide the room by priority and age between what waits, when there is more than one kind of it."""
    heads = yield from line_heads(q, desk, desk.lines(), room)
    if not (fair and (heads or keys_ready)):
        return Share(heads, room, room, False)
    ranges = desk.ranges([lane for lane in desk.lanes.values() if desk.queue_left(lane, room) > 0])
    [(keys, plain)] = yield q(
        "share",
        [lane.queue for lane, _ in ranges],
        [priority for _, priority in ranges],
        [lane.cutoff for lane, _ in ranges],
        [head.priority for head in heads],
        [head.ready_at for head in heads],
        room,
    )
    return Share(heads, room - keys - plain, keys, len(heads) + keys + plain >= room)


def _claim_keys(q: Queries, desk: Desk, room: int) -> Steps[list[Task]]:
    """Lock ready keys, read their heads in a statement that sees what was committed before the lock, and lease them."""
    ranges = desk.ranges([lane for lane in desk.lanes.values() if desk.queue_left(lane, room) > 0])
    if not ranges or room < 1:
        return []
    picked = yield q(
        "pick_keys",
        [lane.queue for lane, _ in ranges],
        [priority for _, priority in ranges],
        room,
        desk.alone,
        sorted({gate for _, gate, _ in desk.groups}),
    )
    return (yield from _lease_heads(q, desk, picked))


def _lease_heads(q: Queries, desk: Desk, picked: Sequence[Key]) -> Steps[list[Task]]:
    """Lease the heads of locked keys, as far as they may run now."""
    if not picked:
        return []
    taken: list[Task] = []
    behind: Behind = {}
    back: list[Returned] = []
    gone: list[Key] = []
    heads = yield from read_heads(q, picked, desk.ahead, desk.session, desk.now)
    for (queue, key), waiting in heads.waiting.items():
        if not waiting:
            gone.append((queue, key))
            continue
        head, *others = waiting
        wait = 0 if head.id in heads.early else _refused(desk, head)
        if wait is None:
            taken.append(desk.admitted(head))
            lane = desk.lanes[queue]
            if others and not lane.limited and not desk.alone:
                followers = followers_of(head, others, heads.early, lane.cutoff)
                behind |= {head.id: followers} if followers else {}
        else:
            held = wait > 0 and (head.gate is not None or desk.lanes[queue].limited)
            back.append(refused(queue, key, head, wait, held=held))
    yield from drop_keys(q, gone)
    yield from return_keys(q, back)
    yield from lease_keys(q, taken, behind)
    desk.behind.update(behind)
    return taken


def _refused(desk: Desk, task: Task) -> int | None:
    """None when the head may run now; else how long its key should wait before it is looked at again."""
    lane, keeper = desk.lanes[task.queue], desk.keeper
    if task.created_at > lane.cutoff:
        return SECOND
    if bool(task.alone) != desk.alone:
        return 0
    if desk.queue_left(lane, 1) < 1:
        return keeper.wait(f"q:{lane.queue}")
    if task.gate is not None and keeper.left(f"g:{task.gate}", 1) < 1:
        return keeper.wait(f"g:{task.gate}")
    return None


def _claim_ready(q: Queries, desk: Desk, room: int, floors: dict[Range, int]) -> Steps[list[Task]]:
    """Plain tasks: all unlimited queues in one statement, each limited queue in one of its own."""
    limited = [lane for lane in desk.lanes.values() if lane.limited]
    free = [lane for lane in desk.lanes.values() if not lane.limited]
    taken: list[Task] = []
    for group in [free, *([lane] for lane in limited)]:
        left = room - len(taken)
        if group and group[0].limited:
            left = desk.queue_left(group[0], left)
        if not group or left < 1:
            continue
        ranges = desk.ranges(group)
        rows = yield q(
            "claim_ready",
            desk.session,
            [lane.queue for lane, _ in ranges],
            [priority for _, priority in ranges],
            [floors.get((lane.queue, priority), 0) for lane, priority in ranges],
            [lane.cutoff for lane, _ in ranges],
            left,
            desk.alone,
        )
        taken += [desk.admitted(restore(row)) for row in rows]
    return taken


@operation(writes=False, single=True)
def alone_waits(q: Queries, queues: Sequence[str]) -> Steps[bool]:
    """Whether a task on its last crash life is ready and waits for a process of its own."""
    [row] = yield q("survey", list(queues))
    return bool(row[5])


class Due(msgspec.Struct, frozen=True, gc=False):
    """When something will fall due, by the store's clock."""

    delayed: int | None
    turns: int | None
    """The first key in backoff, or limit group that was full."""
    now: int


@operation(writes=False, single=True)
def next_due(q: Queries, queues: Sequence[str]) -> Steps[Due]:
    """When it is worth looking again."""
    [row] = yield q("next_due", list(queues))
    return Due(*row)


@operation(single=True)
def sleep(q: Queries, session: str, queues: Sequence[str]) -> Steps[None]:
    """Say that this session waits for a notification, so that an enqueue sends one."""
    yield q("sleep", session, list(queues))


@operation(single=True)
def wake(q: Queries, session: str) -> Steps[None]:
    """Say that this session polls again, so that an enqueue need not notify."""
    yield q("wake", session)
