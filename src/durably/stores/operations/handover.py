"""Handing over: the commit that ends tasks of a limit group leases the next ones of their line to the same worker.

It holds the gate already, and the permits of those that ended come back to it: what a claim would take next, it takes
at once, so that nobody has to wait for the gate again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from durably.core.change import Change
from durably.core.limits import Gate, allowance
from durably.core.moment import FOREVER
from durably.core.task import Scope, State, Task, restore
from durably.stores.operations.desk import Line
from durably.stores.operations.gatekeeper import Gatekeeper, settle_gates
from durably.stores.operations.settle import Onward, Went
from durably.stores.statement import Queries, Steps


def frees_a_place(change: Change) -> bool:
    """Whether somebody else of its line may begin for it: it was done, and only its group limits it."""
    task = change.task
    return (
        change.state is State.DONE
        and task.state == State.LEASED
        and task.gate is not None
        and task.key is None
        and not task.limited
    )


def places(changes: Sequence[Change]) -> Counter[Line]:
    """How many may begin in each line for those that ended."""
    limited = [change.task for change in changes if change.task.gate is not None and frees_a_place(change)]
    return Counter([(task.queue, task.gate or "") for task in limited])


def hand_over(q: Queries, changes: Sequence[Change], gates: Sequence[Gate], onward: Onward, room: int) -> Steps[Went]:
    """Lease the next tasks of the lines of those that are done, as far as the next claim would.

    Their gates are locked, and their permits were given back.
    """
    freed = places(changes)
    queues = list(onward.queues)
    lines = [line for line in freed if line[0] in queues]
    if not lines or room < 1:
        return Went([], 0, {})
    most = room + onward.spare
    rows = yield q(
        "open_lines",
        queues,
        [f"q:{queue}" for queue in queues],
        [queue for queue, _ in lines],
        [gate for _, gate in lines],
        most,
    )
    if not rows:
        return Went([], 0, {})
    now, others, *_ = rows[0]
    # A gate that was made since the tasks were claimed is not locked, and shut.
    in_use = {f"g:{gate}": used for *_, gate, _, used in rows}
    locked = {one.name: (one, allowance(one, in_use[one.name], now, room)) for one in gates if one.name in in_use}
    keeper = Gatekeeper(locked, {f"g:{gate}" for *_, gate, limited, _ in rows if not limited}, now)
    shares = _shares([(queue, gate) for _, _, queue, gate, *_ in rows], freed, keeper, min(room, most - others))
    tasks = (yield from _lease(q, shares, keeper, onward.session)) if shares else []
    return Went(tasks, now, {})


def _shares(lines: Sequence[Line], freed: Counter[Line], keeper: Gatekeeper, room: int) -> dict[Line, int]:
    """How many may begin in each of the lines."""
    shares: dict[Line, int] = {}
    for line in lines:
        share = keeper.left(f"g:{line[1]}", min(freed[line], room))
        if share > 0:
            shares[line] = share
            room -= share
    return shares


def _lease(q: Queries, shares: dict[Line, int], keeper: Gatekeeper, session: str) -> Steps[list[Task]]:
    count = len(shares)
    rows = yield q.each(
        "claim_lines",
        [queue for queue, _ in shares],
        [gate for _, gate in shares],
        list(shares.values()),
        [FOREVER] * count,
        [False] * count,
        [session] * count,
    )
    tasks = sorted(map(restore, rows), key=lambda task: (-task.priority, task.seq))
    for task in tasks:
        keeper.use(f"g:{task.gate}")
    yield from settle_gates(q, keeper)
    waiting = [task.id for task in tasks if task.unique_scope == Scope.WAITING]
    if waiting:
        yield q("free_unique", waiting, [Scope.WAITING.value])
    return tasks
