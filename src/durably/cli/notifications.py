"""`durably notifications`: what happened, over which ways people were told, and what they see in their inbox."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from durably.app import Durably
from durably.cli.beginnings import whole_id
from durably.cli.connect import on_store
from durably.cli.detail import sentence
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer, compact, note
from durably.cli.table import table
from durably.cli.words import exact, printable, relative
from durably.errors import UnknownTask

if TYPE_CHECKING:
    from durably.notifications.inbox import EntryInfo
    from durably.notifications.info import NotificationInfo, RouteInfo

STATES = ("pending", "retrying", "collecting", "sent", "skipped", "dead", "cancelled", "forgotten")
ID = "0190a5d1-ac96-774b-bcce-b302099a8057"


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    summary = "notifications, their routes, and what people see in their inbox"
    examples = ["durably notifications list --recipient ann", "durably notifications inbox ann"]
    own = group(commands, "notifications", summary, examples)

    examples = [
        "durably notifications list --kind order.paid",
        "durably notifications list --recipient ann --limit 200",
    ]
    parser = command(own, "list", "notifications, newest first, and how their routes stand", examples)
    _narrow(parser)
    on_store(parser, list_notifications)

    parser = command(
        own, "show", "a notification: what happened, and each of its routes", [f"durably notifications show {ID[:8]}"]
    )
    parser.add_argument("notification", metavar="NOTIFICATION", help="the id, or its beginning")
    on_store(parser, show)

    examples = ["durably notifications routes --state dead", "durably notifications routes --recipient ann"]
    parser = command(own, "routes", "the ways to people, those of the newest notifications first", examples)
    parser.add_argument("--state", choices=STATES, help="only routes in this state")
    parser.add_argument("--channel", metavar="NAME", help="only those over this channel")
    _narrow(parser)
    on_store(parser, routes)

    examples = ["durably notifications inbox ann --unread", "durably notifications inbox ann --archived --json"]
    parser = command(own, "inbox", "what somebody sees in the application, newest first", examples)
    parser.add_argument("recipient", metavar="RECIPIENT", help="whose inbox")
    parser.add_argument("--unread", action="store_true", help="only what was not read yet")
    parser.add_argument("--archived", action="store_true", help="what was put away too")
    limited(parser)
    on_store(parser, inbox)


def _narrow(parser: Parser) -> None:
    parser.add_argument("--kind", metavar="NAME", help="only those of this kind")
    parser.add_argument("--recipient", metavar="NAME", help="only those for this recipient")
    parser.add_argument("--before", metavar="ID", help="only those of notifications older than this one: the next page")
    limited(parser, "so many notifications at most (50)")


def list_notifications(app: Durably, options: argparse.Namespace) -> int:
    """`durably notifications list`."""
    found = _listed(app, options)
    rows = [(one.id, one.kind, relative(one.accepted), _counts(one), one.key) for one in found]
    told = table(("ID", "KIND", "ACCEPTED", "ROUTES", "KEY"), rows, whole=("ACCEPTED", "ROUTES"))
    answer(options, found, told if found else "No notifications match.")
    _tell_of_more(options, found)
    return 0


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably notifications show`."""
    found = _found(app, options.notification)
    facts = [f"  {name:<9} {value}" for name, value in _facts(found) if value]
    told = [f"{found.id}  {printable(found.kind)}", *facts, ""]
    if found.problem is not None:
        told.append(sentence(f"It is malformed, and nobody gets it: {found.problem}"))
    elif found.routes:
        told.append(_routes([(found, one) for one in found.routes], kinds=False))
    answer(options, found, "\n".join(told).rstrip())
    return 0


def routes(app: Durably, options: argparse.Namespace) -> int:
    """`durably notifications routes`."""
    notifications = _listed(app, options)
    found = [
        (one, route)
        for one in notifications
        for route in one.routes
        if options.state in (None, route.state, _end(route))
        and options.channel in (None, route.channel)
        and options.recipient in (None, route.recipient)
    ]
    data = [{"notification": one.id, "kind": one.kind, "route": route} for one, route in found]
    answer(options, data, _routes(found, kinds=True) if found else "No routes match.")
    _tell_of_more(options, notifications)
    return 0


def inbox(app: Durably, options: argparse.Namespace) -> int:
    """`durably notifications inbox`."""
    own = app.notifications.inbox
    found = own.list(options.recipient, unread=options.unread, archived=options.archived, limit=options.limit)
    counts = own.counts(options.recipient)
    rows = [(one.id, _mark(one), relative(one.since), one.kind, one.title) for one in found]
    told = [table(("ID", "", "SINCE", "KIND", "TITLE"), rows, whole=("SINCE",)), ""] if found else []
    told.append(f"The inbox of {printable(options.recipient)} has {counts.entries:,} in it, {counts.unread:,} unread.")
    answer(options, {"recipient": options.recipient, "counts": counts, "entries": found}, "\n".join(told))
    return 0


def _listed(app: Durably, options: argparse.Namespace) -> list[NotificationInfo]:
    before = None if options.before is None else _whole(app, options.before)
    return app.notifications.list(kind=options.kind, recipient=options.recipient, before=before, limit=options.limit)


def _found(app: Durably, given: str) -> NotificationInfo:
    return app.notifications.get(_whole(app, given))


def _whole(app: Durably, given: str) -> str:
    found = whole_id(given, lambda last: [one.id for one in app.notifications.list(before=last, limit=2)])
    if found is None:
        raise UnknownTask(f"there is no notification {given!r}")
    return found


def _counts(one: NotificationInfo) -> str:
    """How many routes are in which state; or that there are none, since nobody understood it."""
    if one.problem is not None:
        return "malformed"
    counts = Counter(str(_end(route)) for route in one.routes)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _facts(one: NotificationInfo) -> Iterator[tuple[str, str]]:
    yield "key", printable(one.key or "")
    yield "accepted", exact(one.accepted)
    yield "data", compact(one.data) if one.data is not None else ""


def _routes(found: Sequence[tuple[NotificationInfo, RouteInfo]], *, kinds: bool) -> str:
    rows = [
        (
            *((one.kind,) if kinds else ()),
            route.recipient,
            route.channel,
            _state(route),
            route.attempt,
            "" if route.next_attempt is None else relative(route.next_attempt),
            route.reason,
            route.via,
        )
        for one, route in found
    ]
    headings = ("RECIPIENT", "CHANNEL", "STATE", "ATTEMPTS", "NEXT", "WHY", "VIA")
    return table((*(("KIND",) if kinds else ()), *headings), rows, whole=("STATE", "NEXT"))


def _end(route: RouteInfo) -> str:
    """Its state, or that of its mail if nobody gets that."""
    return route.mail if route.mail in ("dead", "cancelled") else route.state


def _state(route: RouteInfo) -> str:
    mail = f"mail {route.mail}" if route.mail not in (None, "sent") else ""
    return ", ".join(one for one in (route.state, mail, "maybe twice" if route.possible_duplicate else "") if one)


def _mark(entry: EntryInfo) -> str:
    return "archived" if entry.archived is not None else "" if entry.read is not None else "new"


def _tell_of_more(options: argparse.Namespace, found: Sequence[NotificationInfo]) -> None:
    if found and len(found) == options.limit and sys.stdout.isatty():
        note(f"{options.limit} are looked at; --limit takes more, --before {found[-1].id} the next ones")
