"""Lines: the unkeyed tasks of limit groups, each group of a queue in a line of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from durably.core.moment import FOREVER, SECOND
from durably.core.task import Task, restore
from durably.stores.operations.desk import Desk, Line
from durably.stores.statement import Queries, Steps


class Head(NamedTuple):
    """One of the next tasks of a line."""

    line: Line
    priority: int
    ready_at: int


def line_heads(q: Queries, desk: Desk, lines: Sequence[Line], room: int) -> Steps[list[Head]]:
    """The tasks that are next in these lines, by priority and age: an equal part of the room from each."""
    part = max(-(-room // max(len(lines), 1)), 1)
    parts = {line: min(part, _left(desk, line, room)) for line in lines}
    parts = {line: count for line, count in parts.items() if count > 0}
    if not parts:
        return []
    rows = yield q.each("line_heads", *_columns(desk, parts))
    heads = [Head((queue, gate), priority, ready_at) for queue, gate, priority, ready_at in rows]
    return sorted(heads, key=lambda head: (-head.priority, head.ready_at))


def claim_lines(q: Queries, desk: Desk, heads: Sequence[Head], room: int) -> Steps[list[Task]]:
    """Tasks of limit groups, as many as their gates allow, those first whose heads were found first."""
    lines = desk.lines()
    late: set[Line] = set()
    if not desk.lonely:
        # Else a line in which this claim finds nobody may have someone for the claim that follows.
        late = {line for line in lines if desk.lanes[line[0]].cutoff < FOREVER and _left(desk, line, 1) > 0}
        late -= {head.line for head in heads}
    taken: list[Task] = []
    hungry = lines
    while shares := _dealt(desk, heads, room - len(taken)):
        rows = yield q.each("claim_lines", *_columns(desk, shares), [desk.session] * len(shares))
        found = [desk.admitted(restore(row)) for row in rows]
        served = Counter((task.queue, task.gate or "") for task in found)
        taken += found
        hungry = [line for line in hungry if line not in shares or served[line] == shares[line]]
        heads = (yield from line_heads(q, desk, hungry, room - len(taken))) if room > len(taken) else []
    if lines:
        yield from _settle(q, desk, lines, late)
    return taken


def _left(desk: Desk, line: Line, room: int) -> int:
    """How many of a line could be taken, with nobody else."""
    queue, gate = line
    return min(desk.keeper.left(f"g:{gate}", room), desk.queue_left(desk.lanes[queue], room))


def _dealt(desk: Desk, heads: Sequence[Head], room: int) -> dict[Line, int]:
    """How many of each line come first, within what its gate and its queue allow."""
    shares: dict[Line, int] = {}
    gates = {gate: desk.keeper.left(f"g:{gate}", room) for gate in {head.line[1] for head in heads}}
    queues = {queue: desk.queue_left(desk.lanes[queue], room) for queue in {head.line[0] for head in heads}}
    for line in [head.line for head in heads]:
        queue, gate = line
        if room > 0 and gates[gate] > 0 and queues[queue] > 0:
            shares[line] = shares.get(line, 0) + 1
            gates[gate] -= 1
            queues[queue] -= 1
            room -= 1
    return shares


def _columns(desk: Desk, shares: dict[Line, int]) -> tuple[list[Any], ...]:
    """What a statement must know that looks into lines: queue, gate, room, cutoff, alone."""
    return (
        [queue for queue, _ in shares],
        [gate for _, gate in shares],
        list(shares.values()),
        [desk.lanes[queue].cutoff for queue, _ in shares],
        [desk.alone] * len(shares),
    )


def _settle(q: Queries, desk: Desk, lines: list[Line], late: set[Line]) -> Steps[None]:
    """A line with nobody left goes; one whose gate is shut, or that came too late for a draining queue, can wait.

    If there may be more lines than a claim looks at, those that it has looked at stand behind the others.
    """
    keeper = desk.keeper
    rows = yield q("lock_lines", [queue for queue, _ in lines], [gate for _, gate in lines])
    held = {(queue, gate) for queue, gate in rows}
    lines = [line for line in lines if line in held]
    if not lines:
        return
    queues, gates = [queue for queue, _ in lines], [gate for _, gate in lines]
    left = {(queue, gate) for queue, gate in (yield q("lines_left", queues, gates))}
    gone = [line for line in lines if line not in left]
    if gone:
        yield q.each("drop_lines", [queue for queue, _ in gone], [gate for _, gate in gone])
    waits = [
        (queue, gate, SECOND if (queue, gate) in late else keeper.wait(f"g:{gate}"))
        for queue, gate in lines
        if (queue, gate) in left and ((queue, gate) in late or keeper.left(f"g:{gate}", 1) < 1)
    ]
    if desk.crowded:
        waiting = {(queue, gate) for queue, gate, _ in waits}
        waits += [(queue, gate, 0) for queue, gate in lines if (queue, gate) in left - waiting]
    if waits:
        yield q.each("wait_lines", *(list(column) for column in zip(*waits, strict=True)))
