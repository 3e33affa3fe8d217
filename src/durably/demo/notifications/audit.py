"""The comparison at the end: what services and mailboxes saw against what the engine says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from durably.app import Durably
from durably.demo.audit import PAGE, Check
from durably.demo.notifications.lines import Line
from durably.notifications.info import NotificationInfo
from durably.notifications.people import Person

INBOX, COMMENT, ALARM = "inbox", "comment", "alarm"
ENDS = ("sent", "skipped", "cancelled", "dead", "pending")
"""How a route may stand when the story is over."""


class Account(msgspec.Struct, frozen=True):
    """What the engine says about one route."""

    notification: str
    kind: str
    to: str
    channel: str
    state: str
    reason: str = ""
    thing: str = ""
    """What came if it was sent: the mail that it became, or what a service was told."""
    address: str = ""
    doubtful: bool = False
    """Whether it is marked as a possible duplicate."""
    quiet: bool = False
    """Whether it waits for the end of somebody's quiet hours."""

    @property
    def route(self) -> tuple[str, str, str]:
        """Which notification, to whom, over which channel."""
        return self.notification, self.to, self.channel


class Books(msgspec.Struct, frozen=True):
    """Everything that the engine says."""

    accounts: list[Account]
    malformed: dict[str, str]
    """Notifications that nobody gets, and why."""
    seen: list[tuple[str, str, str]]
    """The routes of what is in the inboxes."""


def the_books(app: Durably, people: dict[str, Person]) -> Books:
    """All that the engine knows, the oldest first."""
    found: list[NotificationInfo] = []
    while page := app.notifications.list(limit=PAGE, before=found[-1].id if found else None):
        found += page
    accounts = [account for info in reversed(found) for account in _accounts(app, info, people)]
    malformed = {info.id: info.problem for info in found if info.problem is not None}
    inboxes = {name: app.notifications.inbox.list(name, archived=True, limit=PAGE) for name in people}
    seen = [(entry.notification, name, INBOX) for name, entries in inboxes.items() for entry in entries]
    return Books(accounts, malformed, seen)


def _accounts(app: Durably, info: NotificationInfo, people: dict[str, Person]) -> Iterator[Account]:
    for one in info.routes:
        person, mailed = people[one.recipient], one.channel == "mail" and one.state == "sent"
        recipients = app.mail.get(one.via).recipients if mailed else []
        until = "" if one.next_attempt is None else f"{one.next_attempt:%H:%M}"
        yield Account(
            info.id,
            info.kind,
            one.recipient,
            one.channel,
            one.state,
            one.reason or (until and f"not before {until} UTC"),
            one.via if mailed else one.id,
            person.addresses.get(one.channel, ""),
            one.possible_duplicate or any(who.possible_duplicate for who in recipients),
            one.state == "pending" and person.quiet is not None and until == person.quiet[1],
        )


def audit(lines: list[Line], books: Books, unwilling: str, sleeper: str) -> Iterator[Check]:
    """Everything that the demo promises; one person wants no comments by mail, and one wants to sleep."""
    accepted = [line for line in lines if line.what == "accepted"]
    routes = {one.route: one for one in books.accounts}
    asked = {line.route for line in accepted}
    states = Counter(one.state for one in books.accounts)
    took = Counter((line.thing, line.to) for line in lines if line.what == "took")

    by_push, gone, by_sms = reached(books.accounts)
    expected = asked | {(*alarm, "sms") for alarm in gone}
    once = len(asked) == len(accepted) and len(routes) == len(books.accounts)
    counted = " + ".join(f"{states[state]} {state}" for state in ENDS if states[state])
    text = f"{len({line.notification for line in accepted})} notifications on {len(routes)} routes = {counted}"
    held = bool(asked) and once and routes.keys() == expected and states.keys() <= set(ENDS)
    yield Check(held, f"{text}: nothing is lost")

    sent = [one for one in books.accounts if one.state == "sent"]
    outside = {(one.thing, one.address) for one in sent if one.channel != INBOX}
    inside = {one.route for one in sent if one.channel == INBOX}
    text = f"each of the {len(sent)} that were sent arrived where it should, and nothing else did"
    yield Check(took.keys() == outside and Counter(books.seen) == Counter(inside), text)

    others = [one for one in books.accounts if one.state != "sent"]
    quiet = [one for one in others if one.quiet]
    told = all(one.reason for one in others) and states["pending"] == len(quiet)
    text = f"each of the {len(others)} others has a reason; {len(quiet)} of them wait for the end of quiet hours"
    yield Check(bool(quiet) and told, text)

    twice = {thing for thing, times in took.items() if times > 1}
    doubtful = {(one.thing, one.address) for one in books.accounts if one.doubtful}
    text = f"marked as possible duplicates: {len(doubtful)}; arrived twice, all of these marked: {len(twice)}"
    yield Check(bool(twice) and twice <= doubtful, f"{text}; every other arrived exactly once")

    yield Check(went_on(lines), "what was cut off by the kill was sent again by another process, with the same id")

    comments = [line for line in accepted if line.kind == COMMENT and line.channel == "mail"]
    mailed = [line for line in comments if line.route in routes and routes[line.route].state == "sent"]
    mails = {line.route: mails_with(lines, line.text, routes[line.route].address) for line in mailed}
    digests = Counter(mail for found in mails.values() for mail in found)
    right = all(found == [routes[route].thing] for route, found in mails.items())
    text = f"{len(mailed)} comments came by mail, each of them once, in {len(digests)} mail{'s' * (len(digests) != 1)}"
    yield Check(right and max(digests.values(), default=0) > 1, text)

    alarms = {line.route[:2] for line in accepted if line.kind == ALARM}
    refused = {line.note for line in lines if line.what == "gone"}
    confirmed = {one.thing for one in books.accounts if one.channel == "push" and one.state == "dead"}
    text = f"{len(alarms)} alarms: {len(by_push)} by push, and {len(by_sms)} by SMS where the device was certainly gone"
    held = bool(by_sms) and by_push | by_sms == alarms and by_sms == gone and confirmed == refused
    yield Check(held, text)

    text = f"{unwilling} got no comment by mail, and {sleeper} no mail at all in quiet hours"
    yield Check(not disturbances(lines, books.accounts, unwilling, sleeper), text)

    malformed = {line.notification for line in lines if line.what == "malformed"}
    kept = books.malformed.keys() == malformed and not malformed & {notification for notification, _, _ in routes}
    text = f"{len(malformed)} was malformed: it is kept, with what is wrong about it, and nobody got it"
    yield Check(bool(malformed) and kept and all(books.malformed.values()), text)

    again = [line for line in lines if line.what == "again"]
    text = f"{len(again)} keys were used twice, and nobody was told twice because of that"
    yield Check(bool(again) and once_for_each_key(lines), text)


def disturbances(lines: list[Line], accounts: list[Account], unwilling: str, sleeper: str) -> list[Line]:
    """What reached one of both although it should not have."""
    where = {one.to: one.address for one in accounts if one.channel == "mail"}
    took = [line for line in lines if line.what == "took"]
    comments = [line.text for line in lines if line.what == "accepted" and line.kind == COMMENT]
    unwanted = [line for line in took if line.to == where.get(unwilling) and any(one in line.text for one in comments)]
    return unwanted + [line for line in took if line.to == where.get(sleeper)]


def mails_with(lines: list[Line], text: str, address: str) -> list[str]:
    """The mails to an address that say something; one that came twice is one mail."""
    return list(dict.fromkeys(line.mail for line in lines if line.mail and line.to == address and text in line.text))


def reached(accounts: list[Account]) -> tuple[set[tuple[str, str]], set[tuple[str, str]], set[tuple[str, str]]]:
    """Whom alarms reached by push, whose device was gone, and whom they reached by SMS."""
    found = {
        end: {one.route[:2] for one in accounts if one.kind == ALARM and (one.channel, one.state) == end}
        for end in (("push", "sent"), ("push", "dead"), ("sms", "sent"))
    }
    by_push, gone, by_sms = found.values()
    return by_push, gone, by_sms


def went_on(lines: list[Line]) -> bool:
    """Whether what a killed process had sent was sent again by another one afterwards."""
    for at, line in enumerate(lines):
        if line.what == "killed":
            before = {one.note for one in lines[:at] if one.what == "took" and one.pid == line.pid}
            after = {one.note for one in lines[at:] if one.what == "took" and one.pid != line.pid}
            return line.note in before and line.note in after
    return False


def once_for_each_key(lines: list[Line]) -> bool:
    """Whether every key stands for one notification."""
    known: dict[str, set[str]] = {}
    for line in lines:
        if line.key:
            known.setdefault(line.key, set()).add(line.notification)
    return all(len(found) == 1 for found in known.values())
