"""Accepting tasks: what `enqueue` does, on our connection or on the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durably.core.ids import partition_of
from durably.core.task import Draft, Scope, restore, split_queue
from durably.errors import Conflict, RetryTransaction
from durably.stores.operations.read import fetch
from durably.stores.statement import Operation, Queries, Statement, Steps, operation

ROUNDS = 10
MANY = 100
"""From so many drafts on, a database that can copy rows gains by it."""
TOGETHER = 16 * 1024 * 1024
"""Bytes of payload that may be sent as one."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The task that stands for a draft: itself, or one that already held its unique key."""

    id: str
    existing: bool = False


def insert(q: Queries, drafts: Sequence[Draft]) -> Steps[None]:
    """Insert the drafts in their order."""
    if len(drafts) == 1 and _is_plain(drafts[0]):
        yield _insert_plain(q, drafts[0])
        return
    yield q.each(
        "insert_tasks",
        [d.id for d in drafts],
        [d.name for d in drafts],
        [d.queue for d in drafts],
        [d.payload for d in drafts],
        [d.priority for d in drafts],
        [d.due_in for d in drafts],
        [d.at for d in drafts],
        [d.key for d in drafts],
        [d.policy for d in drafts],
        [d.gate for d in drafts],
        [d.options for d in drafts],
        [d.tags for d in drafts],
        [d.once for d in drafts],
        [d.expires_in for d in drafts],
        [d.unique_scope for d in drafts],
        [d.unique_key for d in drafts],
        [partition_of(d.id) for d in drafts],
    )


def _insert_plain(q: Queries, draft: Draft, query: str = "insert_plain") -> Statement:
    return q(
        query,
        draft.id,
        draft.name,
        draft.queue,
        draft.payload,
        draft.priority,
        partition_of(draft.id),
    )


def _is_plain(draft: Draft) -> bool:
    """Whether there is nothing special about it, as with most tasks."""
    return (
        draft.key is None
        and draft.gate is None
        and draft.due_in <= 0
        and draft.at is None
        and draft.options is None
        and draft.tags is None
        and draft.expires_in is None
        and not _needs_care(draft)
    )


def accept(
    drafts: Sequence[Draft], again: bool = False, *, fresh: bool = False
) -> Operation[list[Accepted | Conflict]]:
    """Accept every draft, or say for each why not. With `again`, a first try may have landed unseen.

    Drafts that are `fresh` are sent once only, as in a caller's transaction, which needs no rights but to insert.
    """
    if len(drafts) == 1 and not again and _is_plain(drafts[0]):
        return Operation("accept", lambda q: _accept_plain(q, drafts[0], fresh), single=True)
    if len(drafts) > 1 and not again and not fresh and all(map(_is_plain, drafts)):
        return Operation("accept", lambda q: _accept_many(q, drafts), single=len(drafts) < MANY)
    single = not again and not any(_needs_care(draft) for draft in drafts)
    return Operation("accept", lambda q: accepted(q, drafts, again, fresh), single=single)


def _accept_plain(q: Queries, draft: Draft, fresh: bool) -> Steps[list[Accepted | Conflict]]:
    """A plain draft that nobody has sent before; in a caller's transaction not even that may be an error."""
    yield _insert_plain(q, draft, "insert_new" if not fresh and "insert_new" in q else "insert_plain")
    return [Accepted(draft.id)]


def _accept_many(q: Queries, drafts: Sequence[Draft]) -> Steps[list[Accepted | Conflict]]:
    """Plain drafts that nobody has sent before."""
    if "copy_tasks" in q and len(drafts) >= MANY:
        [(now,)] = yield q("clock")
        yield q("copy_tasks", *_columns(drafts), now, now)
        yield q("notify", sorted({draft.queue for draft in drafts}))
    elif "insert_all_new" in q:
        yield q.each("insert_all_new", *_columns(drafts))
    elif "insert_many" in q and sum(len(draft.payload) for draft in drafts) <= TOGETHER:
        yield _insert_many(q, drafts)
    else:
        yield from insert(q, drafts)
    return [Accepted(draft.id) for draft in drafts]


def _columns(drafts: Sequence[Draft]) -> tuple[list[Any], ...]:
    """All that there is to tell of plain drafts."""
    return (
        [d.id for d in drafts],
        [d.name for d in drafts],
        [d.queue for d in drafts],
        [d.payload for d in drafts],
        [d.priority for d in drafts],
        [partition_of(d.id) for d in drafts],
    )


def _insert_many(q: Queries, drafts: Sequence[Draft]) -> Statement:
    """All of them as one list, and their payloads one after the other, which no list of JSON could hold."""
    rows = []
    place = 1
    for draft in drafts:
        size = len(draft.payload)
        rows.append([draft.id, partition_of(draft.id), draft.priority, draft.name, draft.queue, place, size])
        place += size
    return q("insert_many", rows, b"".join([draft.payload for draft in drafts]))


def accepted(q: Queries, drafts: Sequence[Draft], again: bool, fresh: bool) -> Steps[list[Accepted | Conflict]]:
    """What `accept` does, as a part of something larger."""
    if again and "confirm" in q:
        yield q("confirm")
    unique = [draft for draft in drafts if draft.unique_scope is not None]
    answers: dict[str, Accepted | Conflict] = {}
    if unique:
        answers, taken = yield from _settle_unique(q, unique)
        if taken and not fresh:
            yield from _give_back(q, sorted(taken))
    wanted = [draft for draft in drafts if draft.id not in answers]
    if wanted:
        yield from insert(q, wanted)
    if not fresh:
        doubtful = [draft.id for draft in wanted if again or _needs_care(draft)]
        if doubtful:
            yield from _let_rest(q, doubtful)
    return [answers.get(draft.id) or Accepted(draft.id) for draft in drafts]


def _needs_care(draft: Draft) -> bool:
    """Whether it must not come back even if this request arrives after its task, sent again, has ended."""
    return draft.once or draft.unique_scope is not None


def _give_back(q: Queries, ids: list[str]) -> Steps[None]:
    """A task that an earlier try brought in has given its unique key up if it does not have it: it takes none again."""
    known = [task.id for task in (yield from fetch(q, ids))]
    if known:
        yield q("free_unique", known, [Scope.LIVE.value, Scope.WAITING.value, Scope.PERIOD.value])


def _let_rest(q: Queries, ids: list[str]) -> Steps[None]:
    """What has ended, or begun, since an earlier try stays so, and takes no unique key again."""
    rows = yield q("ended", ids)
    ended = [row[0] for row in rows]
    if ended:
        yield q("forget_revived", ended)
        yield q("free_unique", ended, [Scope.LIVE.value, Scope.WAITING.value])
    rows = yield q("live", [task_id for task_id in ids if task_id not in ended])
    begun = [task.id for task in map(restore, rows) if task.attempt > 0]
    if begun:
        yield q("free_unique", begun, [Scope.WAITING.value])


def _settle_unique(q: Queries, drafts: Sequence[Draft]) -> Steps[tuple[dict[str, Accepted | Conflict], set[str]]]:
    """Who already has the unique keys; and the drafts that have taken theirs just now. The others had it before."""
    answers: dict[str, Accepted | Conflict] = {}
    taken: set[str] = set()
    open_ones = list(drafts)
    for _ in range(ROUNDS):
        rows = yield q.each(
            "take_unique",
            [d.id for d in open_ones],
            [split_queue(d.queue)[0] for d in open_ones],
            [d.unique_scope for d in open_ones],
            [d.unique_key for d in open_ones],
            [d.fingerprint for d in open_ones],
            [d.unique_for for d in open_ones],
        )
        taken.update(task for (task,) in rows)
        open_ones = [draft for draft in open_ones if draft.id not in taken]
        if not open_ones:
            return answers, taken
        found = yield q.each(
            "find_unique",
            [d.id for d in open_ones],
            [split_queue(d.queue)[0] for d in open_ones],
            [d.unique_scope for d in open_ones],
            [d.unique_key for d in open_ones],
            [d.unique_for for d in open_ones],
        )
        holders = {draft_id: (task, print_) for draft_id, task, print_ in found}
        for draft in open_ones:
            if draft.id in holders:
                task, print_ = holders[draft.id]
                if task != draft.id:
                    answers[draft.id] = _judged(draft, task, print_)
        open_ones = [draft for draft in open_ones if draft.id not in holders]
        if not open_ones:
            return answers, taken
    raise RetryTransaction(
        f"the unique key {open_ones[0].unique_key!r} is taken by a transaction that this one cannot see: "
        "roll back and run your transaction again"
    )


def _judged(draft: Draft, task: str, print_: str) -> Accepted | Conflict:
    if print_ == draft.fingerprint:
        return Accepted(task, existing=True)
    until = {
        Scope.WAITING: "until it is claimed",
        Scope.LIVE: "until it ends",
        Scope.PERIOD: "until its period is over",
        Scope.FOREVER: "for good",
    }[Scope(draft.unique_scope or "")]
    return Conflict(
        f"the unique key {draft.unique_key!r} belongs to task {task} {until}, and that task has another name or "
        f"other arguments than this {draft.name!r}"
    )


@operation(single=True)
def request_cancel(q: Queries, ids: list[str], reason: str) -> Steps[None]:
    """Ask for a cancellation that takes effect if and when the caller's transaction commits."""
    yield q("request_cancel", ids, reason)


@operation(writes=False, single=True)
def identity(q: Queries) -> Steps[str]:
    """The id of the store that this connection reaches."""
    [(value,)] = yield q("identity")
    return str(value)
