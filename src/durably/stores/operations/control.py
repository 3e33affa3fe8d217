"""What operators change: queues, limits, keys, dead letters."""

from __future__ import annotations

from typing import Literal

from durably.core.change import Applied
from durably.core.lifecycle import resume, skip
from durably.core.task import DEFAULT_PRIORITY, State, Task, restore
from durably.errors import NotAllowed, UnknownTask
from durably.stores.operations.commit import apply
from durably.stores.operations.keys import drop_keys
from durably.stores.operations.read import fetch
from durably.stores.statement import Queries, Steps, operation


@operation()
def set_queue(q: Queries, name: str, state: Literal["active", "paused", "draining"]) -> Steps[None]:
    """Pause, drain or reopen a queue. Draining runs what was accepted until now, and leaves what comes later."""
    if state == "active":
        yield q("forget_queue", name)
    else:
        yield q("set_queue", name, state)
    if "notify" in q:
        yield q("notify", [name])


@operation()
def set_limit(q: Queries, gate: str, concurrency: int | None, rate: float | None, burst: float) -> Steps[None]:
    """Set or change a limit; with neither concurrency nor rate, remove it. What already runs counts at once."""
    yield from limit(q, gate, concurrency, rate, burst)


def limit(q: Queries, gate: str, concurrency: int | None, rate: float | None, burst: float) -> Steps[None]:
    """Set, change or remove a limit as part of something larger."""
    yield q("lock_sessions")
    if concurrency is None and rate is None:
        yield q("drop_gate", gate)
    else:
        yield q("set_gate", gate, concurrency, rate, burst)
        if gate.startswith("q:"):
            yield q("seed_permits", gate[2:])
    group = [gate[2:]] if gate.startswith("g:") else []
    queue = [gate[2:]] if gate.startswith("q:") else []
    rows = yield q("wake_gates", group, queue)
    if "notify" in q:
        yield q("notify", sorted({*queue, *(name for (name,) in rows)}))


@operation(writes=False)
def dead_ids(
    q: Queries,
    queue: str | None,
    name: str | None,
    key: str | None,
    before: int | None,
    limit: int,
    namespace: str,
    destination: str | None = None,
) -> Steps[list[str]]:
    """Dead letters of a namespace, in the order in which they were accepted."""
    rows = yield q("dead_ids", queue, name, key, before, limit, namespace, destination)
    return [row[0] for row in rows]


@operation()
def replay(q: Queries, ids: list[str]) -> Steps[list[str]]:
    """Give dead letters a new cycle: budget and crashes from zero, the lifetime attempt number kept."""
    return (yield from _revived(q, ids, [State.DEAD.value], None))


@operation()
def revive(q: Queries, task: str, details: bytes | None) -> Steps[bool]:
    """Give an ended task a new cycle, whatever its end was, since something of it is still to be done."""
    ends = [state.value for state in (State.DEAD, State.CANCELLED, State.DONE)]
    return bool((yield from _revived(q, [task], ends, details)))


def _revived(q: Queries, ids: list[str], ends: list[str], details: bytes | None) -> Steps[list[str]]:
    rows = yield q("replay", ids, ends, details)
    if rows and "notify" in q:
        yield q("notify", sorted({queue for _, queue in rows}))
    return [task for task, _ in rows]


@operation()
def purge(q: Queries, ids: list[str]) -> Steps[list[str]]:
    """Forget dead letters for good."""
    rows = yield q("purge", ids)
    return [row[0] for row in rows]


@operation()
def resume_key(q: Queries, queue: str, key: str) -> Steps[Task]:
    """Let the head of a paused key try again, with a new budget."""
    head = yield from _paused_head(q, queue, key)
    [verdict] = yield from apply(q, [resume(head)])
    return verdict.change.task if isinstance(verdict, Applied) else head


@operation()
def skip_key(q: Queries, queue: str, key: str, reason: str) -> Steps[Task]:
    """Take the head out of a paused key, and let the others go on."""
    head = yield from _paused_head(q, queue, key)
    yield from apply(q, [skip(head, reason)])
    yield q("resume_key", queue, key)
    return head


@operation()
def pause_key(q: Queries, queue: str, key: str, reason: str) -> Steps[bool]:
    """Stop a key before its next task; False when it has none waiting, or one is running."""
    # What was accepted but not yet admitted has no row; under its lock, what waits cannot go before it is paused.
    yield q.each("ensure_keys", [queue], [key], [DEFAULT_PRIORITY], [False], [None])
    [(_, _, state, *_)] = yield q("lock_keys", [queue], [key])
    [(_, _, first, *_)] = yield q("next_heads", [queue], [key])
    if first is None and state != "leased":
        yield from drop_keys(q, [(queue, key)])
        return False
    rows = yield q("pause_key", queue, key, reason)
    return bool(rows)


def _paused_head(q: Queries, queue: str, key: str) -> Steps[Task]:
    rows = yield q("lock_keys", [queue], [key])
    if not rows:
        raise UnknownTask(f"no key {key!r} with waiting tasks in queue {queue!r}; see `durably keys list`")
    if rows[0][2] != "paused":
        raise NotAllowed(f"the key {key!r} in queue {queue!r} is {rows[0][2]}, not paused: there is nothing to resume")
    named = [] if rows[0][4] is None else (yield from fetch(q, [rows[0][4]]))
    if named and not named[0].ended:
        return named[0]
    rows = yield q("key_tasks", queue, key, 1)
    if not rows:
        raise UnknownTask(f"the key {key!r} in queue {queue!r} has no task waiting")
    return restore(rows[0])
