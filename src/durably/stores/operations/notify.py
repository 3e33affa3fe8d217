"""Notifications, their routes, and what recipients want and see."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durably.core.lifecycle import cancel
from durably.core.task import Draft, State, Task
from durably.errors import SessionLost
from durably.stores.operations.accept import accepted
from durably.stores.operations.commit import apply
from durably.stores.operations.deliver import FIRST, SETTLING, is_id
from durably.stores.operations.read import fetch
from durably.stores.statement import Operation, Queries, Steps, operation

INBOX = "inbox"
"""The channel whose entries can be read."""
ROUTE_KEY = "durably.route:"
"""How the key of a mail begins that a route or a digest became; its id follows."""
MALFORMED_FOR = 30 * 24 * 3_600_000_000
"""Microseconds for which a notification is kept that nobody could get."""


class Row(msgspec.Struct, frozen=True):
    """A notification as it is stored."""

    id: str
    namespace: str
    kind: str
    data: bytes
    key: str | None = None
    problem: str | None = None
    created_at: int = 0


class Route(msgspec.Struct, frozen=True):
    """One way of a notification to one recipient; its id is that of the task that goes it."""

    id: str
    notification: str
    namespace: str
    recipient: str
    channel: str
    digest: str | None = None


class Found(msgspec.Struct, frozen=True):
    """A notification, its routes, and the tasks of these, of their digests and of their mails as far as they are known.

    A mail is known by the task of the route or the digest that became it.
    """

    row: Row
    routes: list[Route]
    tasks: dict[str, Task]
    errors: dict[str, str]
    mails: dict[str, str] = {}


class Item(msgspec.Struct, frozen=True):
    """One notification of a digest."""

    route: str
    notification: str
    data: bytes


class Preference(msgspec.Struct, frozen=True):
    """Whether a recipient wants a kind over a channel; empty means every one."""

    kind: str
    channel: str
    wanted: bool


class Entry(msgspec.Struct, frozen=True):
    """An entry of an inbox as it is stored."""

    id: str
    notification: str
    kind: str
    content: bytes
    created_at: int
    read_at: int | None
    archived_at: int | None


class Place(msgspec.Struct, frozen=True):
    """A recipient, a kind and a channel."""

    namespace: str
    recipient: str
    kind: str
    channel: str


class Stands(msgspec.Struct, frozen=True):
    """The notification that stands for one that was sent, which may be an older one with its kind and key."""

    id: str
    new: bool
    problem: str | None


def notify(row: Row, routes: Sequence[Route], drafts: Sequence[Draft], again: bool, fresh: bool) -> Operation[Stands]:
    """Accept a notification with its routes; unless one of its kind and key was."""
    return Operation("notify", lambda q: _notify(q, row, routes, drafts, again, fresh))


def _notify(
    q: Queries, row: Row, routes: Sequence[Route], drafts: Sequence[Draft], again: bool, fresh: bool
) -> Steps[Stands]:
    rows = yield q("add_notification", row.id, row.namespace, row.kind, row.key, row.data, row.problem)
    if not rows and row.key is not None:
        rows = yield q("notification_by_key", row.namespace, row.kind, row.key)
        if rows and rows[0][0] != row.id:
            return Stands(rows[0][0], False, rows[0][1])
    yield from _add_routes(q, routes, drafts, again, fresh)
    return Stands(row.id, True, row.problem)


def _add_routes(q: Queries, routes: Sequence[Route], drafts: Sequence[Draft], again: bool, fresh: bool) -> Steps[None]:
    if routes:
        yield q.each(
            "add_routes",
            [one.id for one in routes],
            [one.notification for one in routes],
            [one.namespace for one in routes],
            [one.recipient for one in routes],
            [one.channel for one in routes],
        )
        yield from accepted(q, drafts, again, fresh)


@operation()
def add_route(q: Queries, route: Route, draft: Draft) -> Steps[None]:
    """Accept another route of a notification, if it has none to that recipient over that channel."""
    rows = yield q.each(
        "add_routes", [route.id], [route.notification], [route.namespace], [route.recipient], [route.channel]
    )
    if rows:
        yield from accepted(q, [draft], True, False)


@operation(writes=False)
def route_of(q: Queries, route: str, namespace: str) -> Steps[tuple[Route, Row] | None]:
    """A route and its notification."""
    if not is_id(route):
        return None
    rows = yield q("route_by_id", route)
    if not rows:
        return None
    found = _route(rows[0], namespace)
    rows = yield q("notifications", namespace, [found.notification])
    return (found, _row(rows[0], namespace)) if rows else None


@operation(writes=False)
def find_notifications(q: Queries, namespace: str, ids: Sequence[str]) -> Steps[list[Found]]:
    """Notifications by their ids, with everything about their routes."""
    rows = yield q("notifications", namespace, [one for one in ids if is_id(one)])
    return (yield from _whole(q, namespace, rows))


@operation(writes=False)
def list_notifications(
    q: Queries, namespace: str, before: str | None, kind: str | None, recipient: str | None, limit: int
) -> Steps[list[Found]]:
    """Notifications, the newest first."""
    rows = yield q("list_notifications", namespace, before, kind, recipient, limit)
    return (yield from _whole(q, namespace, rows))


def _whole(q: Queries, namespace: str, rows: list[tuple[object, ...]]) -> Steps[list[Found]]:
    found = [_row(row, namespace) for row in rows]
    if not found:
        return []
    rows = yield q("routes_of", [one.id for one in found])
    routes = [_route(row, namespace) for row in rows]
    wanted = sorted({task for one in routes for task in (one.id, one.digest) if task is not None})
    tasks = {task.id: task for task in (yield from fetch(q, wanted))} if wanted else {}
    mails = yield from _mails(q, namespace, [task.id for task in tasks.values() if task.state == State.DONE])
    if mails:
        tasks |= {task.id: task for task in (yield from fetch(q, sorted(mails.values())))}
    tried = [task.id for task in tasks.values() if task.attempt and task.state != State.DONE]
    errors: dict[str, str] = dict((yield q("last_errors", tried)) if tried else [])
    return [Found(row, [one for one in routes if one.notification == row.id], tasks, errors, mails) for row in found]


def _mails(q: Queries, namespace: str, tasks: Sequence[str]) -> Steps[dict[str, str]]:
    """The tasks that bring mails to their transport, by those of the routes and digests that became these mails."""
    if not tasks:
        return {}
    rows = yield q("route_mails", namespace, [f"{ROUTE_KEY}{task}" for task in tasks])
    return {key.removeprefix(ROUTE_KEY): task for key, task in rows}


def _row(row: tuple[object, ...], namespace: str) -> Row:
    task_id, kind, key, data, problem, created_at = row
    return Row(task_id, namespace, kind, data, key, problem, created_at)  # type: ignore[arg-type]


def _route(row: tuple[object, ...], namespace: str) -> Route:
    task_id, notification, recipient, channel, digest = row
    return Route(task_id, notification, namespace, recipient, channel, digest)  # type: ignore[arg-type]


@operation()
def collect(q: Queries, route: str, place: Place, draft: Draft, window: int) -> Steps[str]:
    """Let a route wait for the open digest of its place, or for a new one that this task will send; its task."""
    rows = yield q("open_digest", *msgspec.structs.astuple(place), draft.id, window)
    digest: str = rows[0][0]
    if digest == draft.id:
        yield from accepted(q, [draft], True, False)
    yield q("join_digest", route, digest)
    return digest


@operation()
def close_digest(q: Queries, place: Place, digest: str) -> Steps[list[Item]]:
    """Let nobody else join; what is in it, the oldest first."""
    yield q("close_digest", *msgspec.structs.astuple(place), digest)
    rows = yield q("digested", digest)
    return [Item(*row) for row in rows]


@operation()
def throttle(q: Queries, place: Place, window: int, most: int, task: str, token: int, details: bytes) -> Steps[bool]:
    """Count one more in the window; False if there were as many as there may be.

    In the same transaction the task that counts gets `details` that say so: then it is counted once, whatever crashes.
    """
    rows = yield q("throttle", *msgspec.structs.astuple(place), window, most)
    if rows and not (yield q("set_progress", task, token, None, details)):
        raise SessionLost(f"task {task} belongs to another worker by now: it was not counted")
    return bool(rows)


@operation(single=True)
def set_preference(q: Queries, place: Place, wanted: bool) -> Steps[None]:
    """Write down what a recipient wants."""
    yield q("set_preference", *msgspec.structs.astuple(place), wanted)


@operation(single=True)
def drop_preference(q: Queries, place: Place) -> Steps[bool]:
    """Forget what a recipient wanted."""
    rows = yield q("drop_preference", *msgspec.structs.astuple(place))
    return bool(rows)


@operation(writes=False, single=True)
def preferences(q: Queries, namespace: str, recipient: str) -> Steps[list[Preference]]:
    """Everything that a recipient has said."""
    rows = yield q("preferences", namespace, recipient)
    return [Preference(kind, channel, bool(wanted)) for kind, channel, wanted in rows]


@operation(single=True)
def put_in_inbox(q: Queries, route: Route, kind: str, content: bytes) -> Steps[None]:
    """Show a recipient something; once, however often it is put there."""
    yield q("put_in_inbox", route.id, route.namespace, route.recipient, route.notification, kind, content)


@operation(writes=False, single=True)
def list_inbox(
    q: Queries, namespace: str, recipient: str, before: str | None, archived: bool, unread: bool, limit: int
) -> Steps[list[Entry]]:
    """What a recipient sees, the newest first."""
    rows = yield q("list_inbox", namespace, recipient, before, archived, unread, limit)
    return [Entry(*row) for row in rows]


@operation(writes=False, single=True)
def count_inbox(q: Queries, namespace: str, recipient: str) -> Steps[tuple[int, int]]:
    """How many entries an inbox has that are not archived, and how many of these are unread."""
    [(entries, unread)] = yield q("count_inbox", namespace, recipient)
    return entries, unread


@operation()
def mark_inbox(
    q: Queries, namespace: str, recipient: str, ids: Sequence[str] | None, archive: bool, kinds: Sequence[str]
) -> Steps[int]:
    """Mark entries as read, or archive them; of these kinds, what is still on its way to them is called off."""
    wanted = None if ids is None else [one for one in ids if is_id(one)]
    rows = yield q("archive_inbox" if archive else "read_inbox", namespace, recipient, wanted)
    seen = sorted({notification for _, notification, kind in rows if kind in kinds})
    if seen:
        routes = [_route(row, namespace) for row in (yield q("routes_of", seen))]
        others = [one for one in routes if one.recipient == recipient and one.channel != INBOX]
        tasks = yield from _on_their_way(q, namespace, others)
        yield from apply(q, [cancel(task, "it was read") for task in tasks if not task.ended])
    return len(rows)


def _on_their_way(q: Queries, namespace: str, routes: Sequence[Route]) -> Steps[list[Task]]:
    """The tasks of routes, and of the mails that they became; of a digest's only if everything in it was read."""
    digests = sorted({one.digest for one in routes if one.digest is not None})
    read = [row[0] for row in ((yield q("read_digests", digests)) if digests else [])]
    mails = yield from _mails(q, namespace, [one.id for one in routes if one.digest is None] + read)
    return (yield from fetch(q, [*(one.id for one in routes), *sorted(mails.values())]))


@operation(writes=False, single=True)
def was_read(q: Queries, notification: str, recipient: str) -> Steps[bool]:
    """Whether a recipient has seen a notification in the inbox."""
    rows = yield q("was_read", notification, recipient)
    return bool(rows)


@operation()
def prune_notifications(q: Queries, after: str, limit: int) -> Steps[tuple[int, str]]:
    """Remove notifications whose routes nobody remembers; how many, and where to go on."""
    rows = yield q("old_notifications", after, SETTLING, MALFORMED_FOR, limit)
    gone = [notification for notification, known in rows if not known]
    if gone:
        yield q("forget_notifications", gone)
    return len(gone), rows[-1][0] if len(rows) == limit else FIRST


@operation(single=True)
def prune_inbox(q: Queries, namespace: str, kept: int | None, limit: int) -> Steps[int]:
    """Remove entries that were read so long ago, if they are not kept for ever; how many."""
    if kept is None:
        return 0
    rows = yield q("prune_inbox", namespace, kept, limit)
    return len(rows)


@operation(single=True)
def prune_throttles(q: Queries, namespace: str, kept: int, limit: int) -> Steps[int]:
    """Forget how many somebody got in windows that began so long ago; how many of these."""
    rows = yield q("prune_throttles", namespace, kept, limit)
    return len(rows)
