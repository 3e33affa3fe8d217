"""Plain successes: tasks that are done and on which nothing hangs move to history by the shortest way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.task import State
from durably.stores.operations.read import fetch
from durably.stores.statement import Queries, Rows, Steps

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode


def are_plain_successes(changes: Sequence[Change]) -> bool:
    """Whether all of these tasks are done and nothing hangs on any: no key, no limit, no unique key, no successor."""
    done = State.DONE
    for change in changes:
        task = change.task
        if (
            task.key is not None
            or change.state is not done
            or task.gate is not None
            or task.unique_scope is not None
            or task.limited
            or change.spawned
            or change.attempt is not None
        ):
            return False
    return True


def is_simple_success(change: Change) -> bool:
    """Whether nothing else follows from it: no failed attempt, no unique key, no successor."""
    return (
        change.state is State.DONE
        and change.task.unique_scope is None
        and change.attempt is None
        and not change.spawned
    )


def finish(q: Queries, changes: Sequence[Change]) -> Steps[list[Verdict]]:
    """Most of what a busy worker reports, in one statement that needs no transaction around it.

    A second one follows for those that it did not find; each of them stands by itself.
    """
    if "finish_silent_tasks" in q and all(change.result is None for change in changes):
        return (yield from _finish_silently(q, changes))
    finished = (yield from _finish_placed(q, changes)) if "finish_placed_tasks" in q else set()
    if finished is None:
        return [Applied(change) for change in changes]
    left = [change for change in changes if change.task.id not in finished] if finished else changes
    rows = yield q.each(
        "finish_tasks",
        [c.task.id for c in left],
        [c.task.version for c in left],
        [c.result for c in left],
        [c.keep_for for c in left],
        [c.started_ago or None for c in left],
    )
    return (yield from verdicts_of(q, changes, finished | {task for (task,) in rows}))


def _finish_placed(q: Queries, changes: Sequence[Change]) -> Steps[set[str] | None]:
    """Finish those that are where their claim put them: None if that was all, else which ones."""
    places = [change.task.place for change in changes]
    if None in places or len({change.keep_for for change in changes}) != 1:
        return set()
    rows = yield q(
        "finish_placed_tasks",
        places,
        [c.task.id for c in changes],
        [c.task.version for c in changes],
        [c.result for c in changes],
        [c.started_ago or None for c in changes],
        changes[0].keep_for,
        len(changes),
    )
    finished = {task for (task,) in rows}
    return None if None in finished else finished


def _finish_silently(q: Queries, changes: Sequence[Change]) -> Steps[list[Verdict]]:
    """The same if there is no result to keep, claim by claim."""
    claims: dict[tuple[int, int, int | None], list[Change]] = {}
    for change in changes:
        claims.setdefault((change.task.token, change.task.version, change.keep_for), []).append(change)
    rows = yield q.each(
        "finish_silent_tasks",
        *zip(*claims, strict=True),
        [_encode({c.task.seq: c.started_ago or None for c in alike}).decode() for alike in claims.values()],
        [len(alike) for alike in claims.values()],
    )
    return (yield from verdicts_of(q, changes, _landed(claims.values(), rows)))


def is_silent_success(change: Change) -> bool:
    """Whether nothing is to be written but that it is done, without a result."""
    return change.result is None and is_simple_success(change)


def end_silently(q: Queries, changes: Sequence[Change]) -> Steps[set[str]]:
    """Write such successes of tasks whose leases are elsewhere, and answer whose were written."""
    alike: dict[tuple[int | str | None, ...], list[Change]] = {}
    for change in changes:
        task = change.task
        shared = (task.token, task.version, task.attempt, change.spent, change.crashes, task.session, change.keep_for)
        alike.setdefault(shared, []).append(change)
    groups = alike.values()
    rows = yield q.each(
        "end_silent_tasks",
        *zip(*alike, strict=True),
        [_encode({c.task.seq: f"{c.task.id}{c.started_ago or ''}" for c in group}).decode() for group in groups],
        [len(group) for group in groups],
    )
    return _landed(groups, rows)


def _landed(groups: Iterable[Sequence[Change]], rows: Rows) -> set[str]:
    """Whose ends were written; of each group a row tells that, if not of all."""
    landed: set[str] = set()
    for alike, (told,) in zip(groups, rows, strict=True):
        landed.update([change.task.id for change in alike] if told is None else _decode(told))
    return landed


def verdicts_of(q: Queries, changes: Sequence[Change], applied: set[str]) -> Steps[list[Verdict]]:
    """What became of each change: applied, or come too late, with the task as it is now."""
    if len(applied) == len(changes):
        return [Applied(change) for change in changes]
    lost = [change.task.id for change in changes if change.task.id not in applied]
    current = {task.id: task for task in (yield from fetch(q, lost))} if lost else {}
    return [
        Applied(change) if change.task.id in applied else Stale(change, current.get(change.task.id))
        for change in changes
    ]
