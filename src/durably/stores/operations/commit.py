"""Applying decided changes: each whole, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.lifecycle import cancel
from durably.core.limits import Gate
from durably.core.task import Draft, Scope, State, restore
from durably.stores.operations.accept import insert
from durably.stores.operations.alike import end_alike, fit_together
from durably.stores.operations.finish import are_plain_successes, finish, is_simple_success, verdicts_of
from durably.stores.operations.handover import frees_a_place, hand_over
from durably.stores.operations.keys import lock_keys, through_key
from durably.stores.operations.read import fetch
from durably.stores.operations.settle import (
    Ends,
    Onward,
    Went,
    ends_of_keys,
    finish_in_order,
    give_back_keys,
    in_turn,
    let_go,
    pass_on,
)
from durably.stores.statement import Operation, Queries, Steps, operation


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What became of each change, and the next tasks of the keys whose heads were done."""

    verdicts: list[Verdict]
    went: Went | None = None
    whole: bool = False
    """Whether it is known that all were applied."""


def commit_and_go_on(changes: Sequence[Change], onward: Onward, ends: Ends | None = None) -> Operation[Committed]:
    """Commit, and go on at once with the next tasks of the keys that this has freed, if nobody else waits.

    The changes may be known to be ends of keys.
    """
    return Operation("commit_and_go_on", lambda q: _commit_and_go_on(q, changes, onward, ends))


def _commit_and_go_on(q: Queries, changes: Sequence[Change], onward: Onward, ends: Ends | None) -> Steps[Committed]:
    live = yield q("lock_session", onward.session)
    ends = ends if _finishes_in_order(q) else None
    if not live or (ends is None and not _are_distinct(changes)):
        return Committed((yield from apply(q, changes)))
    return (yield from _apply(q, changes, onward, ends))


def commit(changes: Sequence[Change]) -> Operation[list[Verdict]]:
    """Apply each change whose task is still as it was decided on; answer Stale, with the current task, for the rest."""
    return commit_plain(changes) if are_plain_successes(changes) else Operation("commit", lambda q: apply(q, changes))


def commit_plain(changes: Sequence[Change]) -> Operation[list[Verdict]]:
    """The same of successes on which nothing hangs."""
    if not _are_distinct(changes):
        return Operation("commit", lambda q: apply(q, changes))
    return Operation("commit", lambda q: apply(q, changes) if "drop_revived" in q else finish(q, changes), single=True)


def _is_limited_success(change: Change) -> bool:
    """Whether nothing is to be written but that a task of a line is done, whose permit goes with it."""
    return frees_a_place(change) and is_simple_success(change)


def _finishes_limited(q: Queries, changes: Sequence[Change]) -> bool:
    """Whether one statement writes the ends among these, and clears their permits."""
    if "finish_limited_tasks" not in q or "drop_revived" in q:
        return False
    ends = [change for change in changes if change.ends]
    return bool(ends) and all(map(_is_limited_success, ends))


def _finishes_in_order(q: Queries) -> bool:
    """Whether one statement writes the ends of keys that are in order."""
    return "finish_keyed_tasks" in q and "drop_revived" not in q


def _are_distinct(changes: Sequence[Change]) -> bool:
    return len({change.task.id for change in changes}) == len(changes)


def apply(q: Queries, changes: Sequence[Change]) -> Steps[list[Verdict]]:
    """Apply what was decided about each task; of several decisions about one, each after the one before."""
    if _are_distinct(changes):
        ends = ends_of_keys(changes) if changes and _finishes_in_order(q) else None
        return (yield from _apply(q, changes, None, ends)).verdicts
    places: dict[str, int] = {}
    later = [place for place, change in enumerate(changes) if places.setdefault(change.task.id, place) != place]
    first = list(places.values())
    verdicts = dict(zip(first, (yield from apply(q, [changes[place] for place in first])), strict=True))
    verdicts |= dict(zip(later, (yield from apply(q, [changes[place] for place in later])), strict=True))
    return [verdicts[place] for place in range(len(changes))]


def _apply(q: Queries, changes: Sequence[Change], onward: Onward | None, ends: Ends | None) -> Steps[Committed]:
    """Lock gates, then keys, then tasks; write; give back what the tasks held."""
    if ends is not None:
        done = yield from finish_in_order(q, changes, ends, {} if onward is None else onward.going)
        went = yield from pass_on(q, done.last, done.held, onward)
        return Committed([Applied(change) for change in changes], went, whole=True)
    gates = yield from _lock_gates(q, changes)
    keyed = [change for change in changes if through_key(change.task)]
    held = yield from lock_keys(q, keyed)
    wanted = [change for change in changes if not through_key(change.task)] if len(keyed) < len(changes) else []
    if keyed:
        wanted += yield from in_turn(q, keyed, held)
    applied = yield from _write(q, wanted)
    landed = [change for change in wanted if change.task.id in applied]
    left_behind = let_go(landed, held, onward)
    if left_behind:
        landed += yield from _end_flagged(q, left_behind)
    went = None
    if keyed:
        went = yield from give_back_keys(q, [change for change in landed if through_key(change.task)], held, onward)
    yield from _follow(q, landed)
    if gates is not None and landed:
        cleared = list(filter(_is_limited_success, landed)) if _finishes_limited(q, wanted) else []
        followed = yield from _give_back_permits(q, landed, cleared, gates, onward, went)
        went = followed if went is None else Went(went.tasks + followed.tasks, went.now, went.behind)
    return Committed((yield from verdicts_of(q, changes, applied)), went)


def _end_flagged(q: Queries, ids: list[str]) -> Steps[list[Change]]:
    """Of tasks that counted as leased and wait again, those that were asked to stop do not run any more."""
    rows = yield q("flagged", ids)
    changes = [cancel(task, task.cancel or "") for task in map(restore, rows)]
    applied = (yield from _write(q, changes)) if changes else set()
    return [change for change in changes if change.task.id in applied]


def _write(q: Queries, changes: Sequence[Change]) -> Steps[set[str]]:
    ends = [change for change in changes if change.ends]
    flags = [change for change in changes if change.state == State.LEASED]
    waits = [change for change in changes if not change.ends and change.state != State.LEASED]
    applied: set[str] = set()
    if ends and "drop_revived" in q:
        rows = yield q.each("drop_revived", [c.task.id for c in ends], [c.task.version for c in ends])
        applied.update(task for (task,) in rows)
        ends = [change for change in ends if change.task.id not in applied]
    simple = list(filter(is_simple_success, ends)) if "end_alike_tasks" in q else []
    if simple and fit_together(simple):
        applied |= yield from end_alike(q, simple)
        ends = [change for change in ends if not is_simple_success(change)]
    if _finishes_limited(q, ends):
        rows = yield q.each(
            "finish_limited_tasks",
            [c.task.id for c in ends],
            [c.task.version for c in ends],
            [c.result for c in ends],
            [c.keep_for for c in ends],
            [c.started_ago or None for c in ends],
        )
        applied.update(task for (task,) in rows)
    elif ends:
        rows = yield q.each(
            "end_tasks",
            [c.task.id for c in ends],
            [c.task.version for c in ends],
            [str(c.state) for c in ends],
            [c.reason for c in ends],
            [c.result for c in ends],
            [c.task.attempt for c in ends],
            [c.spent for c in ends],
            [c.crashes for c in ends],
            [c.keep_for for c in ends],
            [c.started_ago or None for c in ends],
            [c.task.token for c in ends],
            [c.task.session for c in ends],
            [c.details for c in ends],
        )
        applied.update(task for (task,) in rows)
    if waits:
        rows = yield q.each(
            "release_tasks",
            [c.task.id for c in waits],
            [c.task.version for c in waits],
            [str(c.state) for c in waits],
            [c.due_in for c in waits],
            [c.task.attempt for c in waits],
            [c.spent for c in waits],
            [c.crashes for c in waits],
            [c.alone for c in waits],
            [c.rejoin for c in waits],
            [c.details for c in waits],
            [c.task.token for c in waits],
        )
        applied.update(task for (task,) in rows)
    if flags:
        rows = yield q.each(
            "flag_tasks", [c.task.id for c in flags], [c.task.version for c in flags], [c.cancel for c in flags]
        )
        applied.update(task for (task,) in rows)
    return applied


def _follow(q: Queries, changes: Sequence[Change]) -> Steps[None]:
    """What a landed change brings with it: attempts, spawned tasks, freed unique keys."""
    changes = [change for change in changes if not is_simple_success(change)]
    noted = [change for change in changes if change.attempt is not None]
    if noted:
        rows = [(c.task.id, c.attempt) for c in noted if c.attempt is not None]
        yield q.each(
            "insert_attempts",
            [task for task, _ in rows],
            [a.attempt for _, a in rows],
            [a.outcome for _, a in rows],
            [a.failure.kind for _, a in rows],
            [a.failure.message for _, a in rows],
            [a.failure.trace for _, a in rows],
            [a.session for _, a in rows],
            [a.token for _, a in rows],
            [a.started_ago for _, a in rows],
        )
    spawned: list[Draft] = [draft for change in changes for draft in change.spawned]
    if spawned:
        yield from insert(q, spawned)
    freed = [c.task.id for c in changes if c.ends and c.task.unique_scope in (Scope.LIVE, Scope.WAITING)]
    if freed:
        yield q("free_unique", freed, [Scope.LIVE.value, Scope.WAITING.value])
    kept = [c for c in changes if c.ends and c.task.unique_scope in (Scope.PERIOD, Scope.FOREVER)]
    if kept:
        yield q.each("keep_unique", [c.task.id for c in kept], [str(c.state) for c in kept], [c.result for c in kept])
    woken = sorted({c.task.queue for c in changes if c.state in (State.READY, State.BLOCKED)})
    if woken and "notify" in q:
        yield q("notify", woken)


def _lock_gates(q: Queries, changes: Sequence[Change]) -> Steps[list[Gate] | None]:
    """Lock the gates whose permits may come back, so that no claim counts them in the same moment; None if none may.

    A limit that was lifted meanwhile has no gate any more, but its permits are still there.
    """
    limited = [
        c.task.id
        for c in changes
        if (c.task.limited or c.task.gate is not None) and c.task.state == State.LEASED and c.state != State.LEASED
    ]
    if not limited:
        return None
    rows = yield q("wait_gates", limited)
    return [Gate(*row) for row in rows]


def _give_back_permits(
    q: Queries,
    changes: Sequence[Change],
    cleared: Sequence[Change],
    gates: list[Gate],
    onward: Onward | None,
    went: Went | None,
) -> Steps[Went]:
    """Hand the permits over to whoever is next in line, or let those ask again who wait for them.

    The permits of those that are `cleared` went with them.
    """
    returned = Counter([f"g:{change.task.gate}" for change in cleared])
    if len(cleared) < len(changes):
        rest = {change.task.id for change in changes if change.state != State.LEASED}
        rows = yield q("clear_permits", sorted(rest.difference([change.task.id for change in cleared])))
        returned.update(gate for (gate,) in rows)
    followed = Went([], 0, {})
    if onward is not None:
        room = onward.room - (0 if went is None else len(went.tasks))
        followed = yield from hand_over(q, changes, gates, onward, room)
        returned.subtract([f"g:{task.gate}" for task in followed.tasks])
    left = [gate.name for gate in gates if returned[gate.name] > 0]
    if left:
        yield from _wake(q, left)
    return followed


def _wake(q: Queries, gates: Sequence[str]) -> Steps[None]:
    groups = [name[2:] for name in gates if name.startswith("g:")]
    queues = {name[2:] for name in gates if name.startswith("q:")}
    rows = yield q("wake_gates", groups, sorted(queues))
    queues.update(queue for (queue,) in rows)
    if queues and "notify" in q:
        yield q("notify", sorted(queues))


@operation()
def apply_cancel_requests(q: Queries, limit: int = 500) -> Steps[list[Verdict]]:
    """Carry out the cancellations that callers asked for within their own transactions."""
    return (yield from settle_cancel_requests(q, limit))


def settle_cancel_requests(q: Queries, limit: int = 500) -> Steps[list[Verdict]]:
    requests = yield q("cancel_requests", limit)
    if not requests:
        return []
    reasons = {task: reason for _, task, reason in requests}
    wanted = list(reasons)
    settled: list[Verdict] = []
    while wanted:
        tasks = yield from fetch(q, wanted)
        verdicts = yield from apply(q, [cancel(task, reasons[task.id]) for task in tasks if not task.ended])
        settled += [verdict for verdict in verdicts if isinstance(verdict, Applied)]
        # What changed between the look and the lock is looked at again.
        wanted = [verdict.change.task.id for verdict in verdicts if isinstance(verdict, Stale)]
    yield q("clear_cancel_requests", [seq for seq, _, _ in requests])
    return settled


@operation()
def cancel_now(q: Queries, ids: list[str], reason: str) -> Steps[list[Verdict]]:
    """Cancel directly: what waits ends at once, what runs is asked to stop."""
    tasks = yield from fetch(q, ids)
    return (yield from apply(q, [cancel(task, reason) for task in tasks if not task.ended]))


@operation(single=True)
def set_progress(q: Queries, task: str, token: int, progress: str | None, details: bytes | None) -> Steps[bool]:
    """Note how far a running task has come; False when the lease is no longer ours. The version stays."""
    rows = yield q("set_progress", task, token, progress, details)
    return bool(rows)
