"""Claiming: lease what there is room for, by priority and age, within every limit.

Lock order: gates, then keys, then tasks. What is neither keyed nor limited costs one survey and one update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from durably.core.limits import Allowance, Gate, allowance, refilled
from durably.core.moment import FOREVER, SECOND
from durably.core.task import Scope, State, Task, restore
from durably.stores.operations.commit import settle_cancel_requests
from durably.stores.statement import Queries, Steps, operation

PRIORITIES = range(9, -1, -1)
FLOOR_MARGIN = 2 * SECOND
ADMIT_BATCH = 1000
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


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A queue that may be claimed from: what was created after the cutoff stays."""

    queue: str
    cutoff: int
    limited: bool


class Gatekeeper:
    """The gates that this claim has locked, and how much of them is left."""

    def __init__(self, locked: dict[str, tuple[Gate, Allowance]], absent: set[str], now: int) -> None:
        self._locked = locked
        self._absent = absent
        self._now = now
        self._used: dict[str, int] = {}
        self.permits: list[tuple[str, str, int]] = []

    def left(self, name: str, room: int) -> int:
        """How many more may pass this gate. One that another claim holds lets nobody pass this time."""
        if name in self._locked:
            return min(room, self._locked[name][1].count - self._used.get(name, 0))
        return room if name in self._absent else 0

    def wait(self, name: str) -> int:
        """How long until it is worth asking this gate again."""
        return max(self._locked[name][1].wait, 1000) if name in self._locked else SECOND // 20

    def soonest(self) -> int | None:
        """When the first of the shut gates may open."""
        waits = [self.wait(name) for name in self._locked if self.left(name, 1) < 1]
        return min(waits, default=None)

    def take(self, name: str, task: str, token: int) -> None:
        """Use one permit."""
        self._used[name] = self._used.get(name, 0) + 1
        self.permits.append((name, task, token))

    def buckets(self) -> list[tuple[str, float, int]]:
        """The gates whose tokens changed, what is in them now, and as of when; their clock never goes back."""
        return [
            (name, refilled(gate, self._now) - self._used[name], max(self._now, gate.refilled_at))
            for name, (gate, _) in self._locked.items()
            if name in self._used and gate.rate is not None
        ]


@operation()
def claim(
    q: Queries,
    session: str,
    queues: Sequence[str],
    room: int,
    *,
    floors: dict[Range, int] | None = None,
    alone: bool = False,
) -> Steps[Claim]:
    """Lease up to `room` tasks for a live session.

    With `alone`, only tasks on their last crash life are taken, which must run with nothing beside them.
    """
    if not (yield q("lock_session", session)):
        return Claim(live=False)
    rows = yield q("survey", list(queues))
    now, marked, cancels, keys_ready, gates_ready, alone_waiting, settings = rows[0]
    if cancels:
        yield from settle_cancel_requests(q)
    if marked:
        yield q("admit", ADMIT_BATCH)
        keys_ready = gates_ready = True
    lanes = _lanes(queues, settings)
    groups: list[tuple[str, str, bool]] = []
    if gates_ready:
        groups = [
            (queue, gate, bool(is_line)) for queue, gate, is_line in (yield q("ready_gates", list(queues), GATE_BATCH))
        ]
        groups = [(queue, gate, is_line) for queue, gate, is_line in groups if queue in lanes]
    names = {f"q:{lane.queue}" for lane in lanes.values() if lane.limited} | {f"g:{gate}" for _, gate, _ in groups}
    keeper = yield from _lock_gates(q, sorted(names), now, room)
    taken: list[Task] = []
    if groups:
        taken += yield from _claim_lines(q, session, lanes, groups, keeper, max(room // 2, 1), alone)
    if keys_ready and room > len(taken):
        taken += yield from _claim_keys(q, session, lanes, groups, keeper, room - len(taken), alone, now)
    moved: dict[Range, int] = {}
    if room > len(taken):
        plain = yield from _claim_ready(q, session, lanes, keeper, room - len(taken), floors or {}, alone)
        for task in plain:
            place = (task.queue, task.priority)
            moved[place] = max(moved.get(place, 0), task.ready_at)
        taken += plain
    yield from _settle_gates(q, keeper)
    waiting = [task.id for task in taken if task.unique_scope == Scope.WAITING]
    if waiting:
        yield q("free_unique", waiting, [Scope.WAITING.value])
    taken.sort(key=lambda task: (-task.priority, task.ready_at, task.seq))
    trailing = {place: min(ready_at, now - FLOOR_MARGIN) for place, ready_at in moved.items()}
    return Claim(True, taken, now, bool(alone_waiting), keeper.soonest(), trailing)


def _lanes(queues: Sequence[str], settings: str | None) -> dict[str, Lane]:
    """The queues that are open, in the order given."""
    lanes = {queue: Lane(queue, FOREVER, False) for queue in queues}
    for name, state, cutoff, limited in msgspec.json.decode(settings) if settings else []:
        if state == "paused":
            del lanes[name]
        else:
            lanes[name] = Lane(name, FOREVER if cutoff is None else cutoff, bool(limited))
    return lanes


def _lock_gates(q: Queries, names: list[str], now: int, room: int) -> Steps[Gatekeeper]:
    if not names:
        return Gatekeeper({}, set(), now)
    known = {name for (name,) in (yield q("known_gates", names))}
    locked: dict[str, tuple[Gate, Allowance]] = {}
    if known:
        gates = [Gate(*row) for row in (yield q("lock_gates", sorted(known)))]
        # The locks are held before the permits are counted, so no other claim's permit is missed.
        in_use: dict[str, int] = dict((yield q("count_permits", [gate.name for gate in gates])) if gates else [])
        locked = {gate.name: (gate, allowance(gate, in_use.get(gate.name, 0), now, room)) for gate in gates}
    return Gatekeeper(locked, set(names) - known, now)


def _queue_left(keeper: Gatekeeper, lane: Lane, room: int) -> int:
    return keeper.left(f"q:{lane.queue}", room) if lane.limited else room


def _admitted(keeper: Gatekeeper, lane: Lane, task: Task) -> Task:
    """Take the permits that the task needs."""
    if task.gate is not None:
        keeper.take(f"g:{task.gate}", task.id, task.token)
    if lane.limited:
        keeper.take(f"q:{lane.queue}", task.id, task.token)
        return msgspec.structs.replace(task, limited=True)
    return task


def _claim_lines(
    q: Queries,
    session: str,
    lanes: dict[str, Lane],
    groups: list[tuple[str, str, bool]],
    keeper: Gatekeeper,
    room: int,
    alone: bool,
) -> Steps[list[Task]]:
    """Tasks of limit groups, as many as their gates allow."""
    lines = [(queue, gate) for queue, gate, is_line in groups if is_line]
    taken: list[Task] = []
    idle: set[tuple[str, str]] = set()
    hungry = lines
    while hungry and len(taken) < room:
        shares = _shares(hungry, lanes, keeper, room - len(taken))
        if not shares:
            break
        rows = yield q.each(
            "claim_lines",
            [session] * len(shares),
            [queue for queue, _ in shares],
            [gate for _, gate in shares],
            list(shares.values()),
            [lanes[queue].cutoff for queue, _ in shares],
            [alone] * len(shares),
        )
        found = [_admitted(keeper, lanes[row[4]], restore(row)) for row in rows]
        served = Counter((task.queue, task.gate or "") for task in found)
        taken += found
        idle |= {line for line in shares if not served[line] and lanes[line[0]].cutoff < FOREVER}
        hungry = [line for line in hungry if line not in shares or served[line] == shares[line]]
    if lines:
        yield from _settle_lines(q, lines, keeper, idle)
    return taken


def _shares(
    lines: list[tuple[str, str]], lanes: dict[str, Lane], keeper: Gatekeeper, room: int
) -> dict[tuple[str, str], int]:
    """Room for each line: equal parts, within what its gate and its queue allow."""
    part = max(room // len(lines), 1)
    shares: dict[tuple[str, str], int] = {}
    planned: Counter[str] = Counter()
    for queue, gate in lines:
        gate_left = keeper.left(f"g:{gate}", room) - planned[f"g:{gate}"]
        queue_left = _queue_left(keeper, lanes[queue], room) - planned[f"q:{queue}"]
        share = min(part, room - planned["all"], gate_left, queue_left)
        if share > 0:
            shares[queue, gate] = share
            planned.update({"all": share, f"g:{gate}": share, f"q:{queue}": share})
    return shares


def _settle_lines(
    q: Queries, lines: list[tuple[str, str]], keeper: Gatekeeper, idle: set[tuple[str, str]]
) -> Steps[None]:
    """A line with nobody left goes; one whose gate is shut, or that came too late for a draining queue, can wait."""
    queues, gates = [queue for queue, _ in lines], [gate for _, gate in lines]
    yield q("lock_lines", queues, gates)
    left = {(queue, gate) for queue, gate in (yield q("lines_left", queues, gates))}
    gone = [line for line in lines if line not in left]
    if gone:
        yield q.each("drop_lines", [queue for queue, _ in gone], [gate for _, gate in gone])
    waits = [
        (queue, gate, SECOND if (queue, gate) in idle else keeper.wait(f"g:{gate}"))
        for queue, gate in lines
        if (queue, gate) in left and ((queue, gate) in idle or keeper.left(f"g:{gate}", 1) < 1)
    ]
    if waits:
        yield q.each("wait_lines", *(list(column) for column in zip(*waits, strict=True)))


def _claim_keys(
    q: Queries,
    session: str,
    lanes: dict[str, Lane],
    groups: list[tuple[str, str, bool]],
    keeper: Gatekeeper,
    room: int,
    alone: bool,
    now: int,
) -> Steps[list[Task]]:
    """Lease ready keys, then read and name their heads in statements that see what was committed before the lock."""
    open_lanes = [lane for lane in lanes.values() if _queue_left(keeper, lane, room) > 0]
    if not open_lanes:
        return []
    ranges = [(lane.queue, priority) for priority in PRIORITIES for lane in open_lanes]
    queues, priorities = [queue for queue, _ in ranges], [priority for _, priority in ranges]
    if not alone:
        [(share,)] = yield q("share", queues, priorities, room)
        room = share or 0
    if room < 1:
        return []
    opened = sorted({gate for _, gate, _ in groups})
    leased = yield q("lease_keys", session, queues, priorities, room, alone, opened)
    if not leased:
        return []
    rows = yield q("heads", [queue for queue, _ in leased], [key for _, key in leased])
    taken: list[Task] = []
    back: list[tuple[Any, ...]] = []
    gone: list[tuple[str, str]] = []
    for queue, key, token, *columns in rows:
        if columns[0] is None:
            gone.append((queue, key))
            continue
        task = restore(tuple(columns))
        lane = lanes[queue]
        wait = _refused(task, lane, keeper, alone, now)
        if wait is None:
            taken.append(_admitted(keeper, lane, _as_head(task, session, token, now)))
        else:
            held = wait > 0 and (task.gate is not None or lane.limited)
            fate = (wait, task.ready_at, task.priority, bool(task.alone), task.gate, held, None, None)
            back.append((queue, key, "ready", *fate))
    if gone:
        yield q.each("drop_keys", [queue for queue, _ in gone], [key for _, key in gone])
    if back:
        yield q.each("return_keys", *(list(column) for column in zip(*back, strict=True)))
    if taken:
        yield q.each(
            "set_heads",
            [task.queue for task in taken],
            [task.key for task in taken],
            [task.id for task in taken],
            [task.token for task in taken],
            [now] * len(taken),
        )
    return taken


def _refused(task: Task, lane: Lane, keeper: Gatekeeper, alone: bool, now: int) -> int | None:
    """None when the head may run now; else how long its key should wait before it is looked at again."""
    if task.ready_at > now:
        return 0
    if task.created_at > lane.cutoff:
        return SECOND
    if bool(task.alone) != alone:
        return 0
    if lane.limited and keeper.left(f"q:{lane.queue}", 1) < 1:
        return keeper.wait(f"q:{lane.queue}")
    if task.gate is not None and keeper.left(f"g:{task.gate}", 1) < 1:
        return keeper.wait(f"g:{task.gate}")
    return None


def _as_head(task: Task, session: str, token: int, now: int) -> Task:
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


def _claim_ready(
    q: Queries,
    session: str,
    lanes: dict[str, Lane],
    keeper: Gatekeeper,
    room: int,
    floors: dict[Range, int],
    alone: bool,
) -> Steps[list[Task]]:
    """Plain tasks: all unlimited queues in one statement, each limited queue in one of its own."""
    free = [lane for lane in lanes.values() if not lane.limited]
    taken: list[Task] = []
    for group in [free, *([lane] for lane in lanes.values() if lane.limited)]:
        left = room - len(taken)
        if group and group[0].limited:
            left = _queue_left(keeper, group[0], left)
        if not group or left < 1:
            continue
        ranges = [(lane, priority) for priority in PRIORITIES for lane in group]
        rows = yield q(
            "claim_ready",
            session,
            [lane.queue for lane, _ in ranges],
            [priority for _, priority in ranges],
            [floors.get((lane.queue, priority), 0) for lane, priority in ranges],
            [lane.cutoff for lane, _ in ranges],
            left,
            alone,
        )
        taken += [_admitted(keeper, lanes[row[4]], restore(row)) for row in rows]
    return taken


def _settle_gates(q: Queries, keeper: Gatekeeper) -> Steps[None]:
    if keeper.permits:
        yield q.each(
            "take_permits",
            [gate for gate, _, _ in keeper.permits],
            [task for _, task, _ in keeper.permits],
            [token for _, _, token in keeper.permits],
        )
    buckets = keeper.buckets()
    if buckets:
        yield q.each("spend_gates", *(list(column) for column in zip(*buckets, strict=True)))


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
