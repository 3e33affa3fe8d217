"""Destinations and messages: finding, adding and changing them, and accepting one delivery for each destination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from durably.core import lifecycle
from durably.core.change import Verdict
from durably.core.delivery import Condition, Destination, Message, Rules, Standing
from durably.core.task import Draft, State, Task
from durably.errors import BadOption
from durably.stores.operations.accept import accepted
from durably.stores.operations.commit import apply
from durably.stores.operations.control import limit
from durably.stores.operations.read import fetch
from durably.stores.statement import Operation, Queries, Steps, operation

BATCH = 1000
_encode = msgspec.json.Encoder().encode
_rules = msgspec.json.Decoder(Rules).decode
_condition = msgspec.json.Decoder(Condition).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode


def is_id(text: str) -> bool:
    """Whether it could be the id of a message."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def restored(row: tuple[Any, ...]) -> Destination:
    """A destination from its row; one that cannot be read is disabled, until somebody has written it anew."""
    namespace, name, channel, address, rules, condition, secrets, version, updated_at = row
    try:
        return Destination(
            namespace, name, channel, address, _rules(rules), _condition(condition), secrets, version, updated_at
        )
    except msgspec.MsgspecError as error:
        unreadable = Condition(Standing.DISABLED, f"its row cannot be read: {error}")
        return Destination(namespace, name, channel, address, Rules(), unreadable, secrets, version, updated_at)


def find(q: Queries, namespace: str, names: Sequence[str]) -> Steps[dict[str, Destination]]:
    """The destinations that are known, by name."""
    found: dict[str, Destination] = {}
    for first in range(0, len(names), BATCH):
        rows = yield q("destinations", namespace, list(names[first : first + BATCH]))
        found.update({row[1]: restored(row) for row in rows})
    return found


@operation(writes=False)
def destinations(q: Queries, namespace: str, names: Sequence[str]) -> Steps[dict[str, Destination]]:
    """The destinations that are known, by name."""
    return (yield from find(q, namespace, names))


@operation(writes=False, single=True)
def list_destinations(
    q: Queries, namespace: str, after: str, standing: str | None, limit: int
) -> Steps[list[Destination]]:
    """Destinations in the order of their names."""
    rows = yield q("list_destinations", namespace, after, standing, limit)
    return [restored(row) for row in rows]


@operation()
def add_destinations(q: Queries, given: Sequence[Destination]) -> Steps[set[str]]:
    """Add those that are not there yet; their names."""
    return (yield from _add(q, given))


def _add(q: Queries, given: Sequence[Destination]) -> Steps[set[str]]:
    added: set[str] = set()
    for first in range(0, len(given), BATCH):
        batch = given[first : first + BATCH]
        rows = yield q.each(
            "add_destinations",
            [d.namespace for d in batch],
            [d.name for d in batch],
            [d.channel for d in batch],
            [d.address for d in batch],
            [_encode(d.rules).decode() for d in batch],
            [_encode(d.condition).decode() for d in batch],
            [str(d.condition.standing) for d in batch],
            [d.secrets for d in batch],
        )
        added.update(name for (name,) in rows)
        yield from _limit(q, [one for one in batch if one.name in added and one.rules.order == "unordered"])
    return added


def _limit(q: Queries, new: Sequence[Destination]) -> Steps[None]:
    """Nothing waits for these yet, so that nobody has to be told."""
    if new:
        limits = [one.limit for one in new]
        yield q.each(
            "add_gates",
            [f"g:{one.line}" for one in new],
            [concurrency for concurrency, _, _ in limits],
            [rate for _, rate, _ in limits],
            [burst for _, _, burst in limits],
        )


@operation(single=True)
def change_destinations(q: Queries, changed: Sequence[Destination]) -> Steps[set[tuple[str, str]]]:
    """Write destinations, none of them twice; answers with those that nobody else has changed since they were read."""
    return (yield from _change(q, changed))


def change_destination(changed: Destination) -> Operation[set[tuple[str, str]]]:
    """Write a destination as it is now, unless somebody else has changed it since it was read."""
    return change_destinations([changed])


@operation()
def change_rules(q: Queries, changed: Destination) -> Steps[set[tuple[str, str]]]:
    """The same, and what it is limited to."""
    written = yield from _change(q, [changed])
    if written:
        yield from limit(q, f"g:{changed.line}", *changed.limit)
    return written


@operation()
def change_and_tell(q: Queries, changed: Destination, told: Draft) -> Steps[set[tuple[str, str]]]:
    """The same, and accept a task that tells of it, if it was written."""
    written = yield from _change(q, [changed])
    if written:
        yield from accepted(q, [told], False, False)
    return written


def _change(q: Queries, changed: Sequence[Destination]) -> Steps[set[tuple[str, str]]]:
    rows = yield q.each(
        "change_destinations",
        [d.namespace for d in changed],
        [d.name for d in changed],
        [d.version for d in changed],
        [d.channel for d in changed],
        [d.address for d in changed],
        [_encode(d.rules).decode() for d in changed],
        [_encode(d.condition).decode() for d in changed],
        [str(d.condition.standing) for d in changed],
        [d.secrets for d in changed],
    )
    return {(namespace, name) for namespace, name in rows}


@operation()
def forget_destination(q: Queries, forgotten: Destination) -> Steps[bool]:
    """Forget a destination; what is on its way to it is not touched."""
    rows = yield q("forget_destination", forgotten.namespace, forgotten.name)
    yield from limit(q, f"g:{forgotten.line}", None, None, 1.0)
    return bool(rows)


@operation(single=True)
def hold_line(q: Queries, queue: str, gate: str, due_in: int) -> Steps[None]:
    """Let nobody of a limit group begin for so long."""
    yield q("hold_line", queue, gate, due_in)


@operation()
def release_line(q: Queries, queue: str, gate: str) -> Steps[None]:
    """Let those of a limit group begin again."""
    rows = yield q("release_line", queue, gate)
    if rows and "notify" in q:
        yield q("notify", [queue])


@operation()
def hurry(q: Queries, ids: Sequence[str]) -> Steps[list[Verdict]]:
    """Let those of these tasks that wait for their time be due now."""
    tasks = [task for task in (yield from fetch(q, list(ids))) if task.state in (State.DELAYED, State.BLOCKED)]
    return (yield from apply(q, [lifecycle.hurry(task) for task in tasks]))


class Load(msgspec.Struct, frozen=True):
    """What deliveries need to know, and the store's time."""

    now: int
    destinations: dict[tuple[str, str], Destination]
    messages: dict[str, Message]


@operation(writes=False, single=True)
def load(q: Queries, wanted: Sequence[tuple[str, str]], messages: Sequence[str]) -> Steps[Load]:
    """The destinations with these namespaces and names, and the messages with these ids."""
    [(now,)] = yield q("clock")
    found: dict[tuple[str, str], Destination] = {}
    for namespace in sorted({namespace for namespace, _ in wanted}):
        known = yield from find(q, namespace, [name for space, name in wanted if space == namespace])
        found.update({(namespace, name): destination for name, destination in known.items()})
    rows = (yield q("messages", list(messages))) if messages else []
    return Load(now, found, {row[0]: _message(row) for row in rows})


def _message(row: tuple[Any, ...]) -> Message:
    task_id, created_at, kind, sender, content_type, headers, body = row
    return Message(task_id, kind, body, content_type, _headers(headers), sender, created_at)


def publish(
    message: Message,
    targets: Sequence[Destination],
    draft: Callable[[Destination], Draft],
    *,
    complete: Callable[[Destination], Destination] = lambda destination: destination,
    again: bool = False,
    fresh: bool = False,
) -> Operation[list[tuple[Destination, str]]]:
    """Accept a message and one delivery of it for each target, of which those that are new are completed and added."""
    return Operation("publish", lambda q: _publish(q, message, targets, draft, complete, again, fresh))


def _publish(
    q: Queries,
    message: Message,
    targets: Sequence[Destination],
    draft: Callable[[Destination], Draft],
    complete: Callable[[Destination], Destination],
    again: bool,
    fresh: bool,
) -> Steps[list[tuple[Destination, str]]]:
    if not targets:
        return []
    by_name = {target.name: target for target in targets}
    known = yield from find(q, targets[0].namespace, list(by_name))
    missing = sorted((target for name, target in by_name.items() if name not in known), key=lambda one: one.name)
    if missing:
        yield from _add_missing(q, missing, complete)
    yield q(
        "add_message",
        message.id,
        message.kind,
        message.sender,
        message.content_type,
        _encode(message.headers).decode(),
        message.body,
    )
    sent: list[tuple[Destination, str]] = []
    chosen = [known.get(name, target) for name, target in by_name.items()]
    for first in range(0, len(chosen), BATCH):
        batch = chosen[first : first + BATCH]
        drafts = [draft(destination) for destination in batch]
        yield q.each(
            "add_deliveries",
            [message.id] * len(batch),
            [destination.namespace for destination in batch],
            [destination.name for destination in batch],
            [one.id for one in drafts],
        )
        yield from accepted(q, drafts, again, fresh)
        sent += [(destination, one.id) for destination, one in zip(batch, drafts, strict=True)]
    return sent


def _add_missing(
    q: Queries, missing: Sequence[Destination], complete: Callable[[Destination], Destination]
) -> Steps[None]:
    """Those whom nobody has written to yet."""
    for target in missing:
        if not target.address and target.channel == "smtp":
            raise BadOption(f"transport: there is no {target.name!r}; add it first, with app.mail.add_transport()")
        if not target.address:
            raise BadOption(f"to: there is no destination {target.name!r}; add it first, or give its address")
    yield from _add(q, [complete(target) for target in missing])


@operation(writes=False)
def message_of(q: Queries, message: str) -> Steps[Message | None]:
    """A message by its id."""
    if not is_id(message):
        return None
    rows = yield q("messages", [message])
    return _message(rows[0]) if rows else None


class Sent(msgspec.Struct, frozen=True):
    """A delivery of a message: the task, how that is now if it is still known, and what last went wrong."""

    destination: str
    id: str
    task: Task | None
    error: str | None


@operation(writes=False)
def deliveries_of(q: Queries, message: str, namespace: str) -> Steps[list[Sent]]:
    """To whom a message was to go, in the order of their names."""
    if not is_id(message):
        return []
    rows = yield q("deliveries_of", message, namespace)
    if not rows:
        return []
    tasks = {task.id: task for task in (yield from fetch(q, [task for _, task in rows]))}
    tried = [task.id for task in tasks.values() if task.attempt and task.state != State.DONE]
    errors: dict[str, str] = dict((yield q("last_errors", tried)) if tried else [])
    return [Sent(destination, task, tasks.get(task), errors.get(task)) for destination, task in rows]


@operation(writes=False)
def pending(q: Queries, namespace: str, name: str, limit: int) -> Steps[list[Task]]:
    """What waits for a destination, or is under way to it, in the order of acceptance."""
    rows = yield q("pending_deliveries", namespace, name, limit)
    order = {task: place for place, (task,) in enumerate(rows)}
    found = (yield from fetch(q, list(order))) if order else []
    return sorted((task for task in found if not task.ended), key=lambda task: order[task.id])


FIRST = "00000000-0000-0000-0000-000000000000"
SETTLING = 3_600_000_000
"""Microseconds for which a message is kept whatever becomes of it: its publication has surely been committed then."""


@operation()
def prune_messages(q: Queries, after: str, limit: int) -> Steps[tuple[int, str]]:
    """Remove messages that nobody will get any more and nobody remembers; how many, and where to go on."""
    rows = yield q("old_messages", after, SETTLING, limit)
    gone = [message for message, known in rows if not known]
    if gone:
        yield q("forget_messages", gone)
    return len(gone), rows[-1][0] if len(rows) == limit else FIRST
