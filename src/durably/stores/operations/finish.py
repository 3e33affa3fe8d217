"""Plain successes: tasks that are done and on which nothing hangs move to history by the shortest way."""

from __future__ import annotations

from collections.abc import Sequence

from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.task import State
from durably.stores.operations.alike import finish_alike, fit_together
from durably.stores.operations.read import fetch
from durably.stores.statement import Queries, Steps


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
    if "finish_alike_tasks" in q and fit_together(changes):
        return (yield from verdicts_of(q, changes, (yield from finish_alike(q, changes))))
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
