"""Background work: sessions, promotion of what fell due, expiry, and pruning."""

from __future__ import annotations

from durably.core.task import Task, restore
from durably.stores.statement import Queries, Steps, operation


@operation(single=True)
def open_session(q: Queries, session: str, lease: int, host: str, pid: int, info: str) -> Steps[bool]:
    """Begin a session: the one lease that a worker process holds. Sent again it is the same one, unless it is dead."""
    rows = yield q("open_session", session, lease, host, pid, info)
    return bool(rows)


@operation(single=True)
def describe_session(q: Queries, session: str, info: str) -> Steps[None]:
    """Change what the session says about itself."""
    yield q("describe_session", session, info)


@operation(single=True)
def beat(q: Queries, session: str, lease: int) -> Steps[bool]:
    """Renew the session; False when it is no longer live, which is the only way to lose it."""
    rows = yield q("beat", session, lease)
    return bool(rows)


@operation(single=True)
def close_session(q: Queries, session: str) -> Steps[None]:
    """End the session of one's own will."""
    yield q("bury_session", session)


@operation(single=True)
def mark_dead(q: Queries) -> Steps[list[str]]:
    """Declare dead every session whose lease has run out."""
    rows = yield q("mark_dead")
    return [row[0] for row in rows]


@operation(writes=False)
def lapsed(q: Queries, limit: int, skip: list[str]) -> Steps[list[Task]]:
    """Tasks that are leased to a session that is not live. Rows to skip never fill the batch."""
    rows = yield q("lapsed", limit, skip)
    tasks = [restore(row) for row in rows]
    if len(tasks) < limit:
        rows = yield q("lapsed_heads", limit - len(tasks), skip)
        tasks += [restore(row) for row in rows]
    return tasks


@operation(writes=False)
def held(q: Queries, session: str) -> Steps[list[Task]]:
    """Everything that is leased to a session, for one that lost the answer to a claim."""
    rows = yield q("held", session)
    tasks = [restore(row) for row in rows]
    rows = yield q("held_heads", session)
    return tasks + [restore(row) for row in rows]


def notes_claims(queries: Queries) -> bool:
    """Whether this kind of database keeps a note of every claim, to be forgotten when its tasks are settled."""
    return "forget_claims" in queries


@operation(single=True)
def forget_claims(q: Queries, session: str, tokens: list[int]) -> Steps[None]:
    """Of what the session leased under these tokens nothing is left."""
    yield q("forget_claims", session, tokens)


@operation(single=True)
def bury(q: Queries) -> Steps[int]:
    """Remove dead sessions that hold nothing any more."""
    rows = yield q("bury")
    return len(rows)


@operation(writes=False, single=True)
def due(q: Queries, limit: int, skip: list[str]) -> Steps[list[str]]:
    """The delayed tasks whose time has come."""
    rows = yield q("due", limit, skip)
    return [row[0] for row in rows]


@operation(single=True)
def promote(q: Queries, ids: list[str]) -> Steps[list[str]]:
    """Move due tasks to where they can be claimed; those that are no longer delayed are left alone."""
    rows = yield q.each("promote", ids)
    return [row[0] for row in rows]


@operation(writes=False, single=True)
def expired(q: Queries, limit: int, skip: list[str]) -> Steps[list[Task]]:
    """Tasks that wait, and whose time ran out."""
    rows = yield q("expired", limit, skip)
    return [restore(row) for row in rows]


@operation(writes=False, single=True)
def cancelled(q: Queries) -> Steps[dict[str, str]]:
    """The tasks that run and were asked to stop, with the reasons."""
    rows = yield q("cancelled")
    return {task: reason for task, reason in rows}


@operation(single=True)
def prune(q: Queries, limit: int) -> Steps[int]:
    """Remove what has outlived its retention; how many rows that were."""
    rows = yield q("prune", limit)
    return len(rows)
