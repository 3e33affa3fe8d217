"""What must hold for notifications once everything has come to rest: the channels tell whom they really reached."""

from __future__ import annotations

from collections.abc import Iterator

from durably.notifications.inbox import EntryInfo
from durably.notifications.info import NotificationInfo, RouteInfo
from durably.testing.simulation.ledger import Ledger, Reached
from durably.testing.simulation.loop import EPOCH
from durably.testing.simulation.scenario import INBOX, Scenario, Sort
from durably.testing.simulation.ways import Seen

Complaints = Iterator[str]
REFUSALS = ("refuses", "leaves")


class Reach:
    """The reckoning with the channels."""

    def __init__(self, scenario: Scenario, ledger: Ledger, seen: Seen) -> None:
        self._steady = not scenario.jumps
        self._sorts = {sort.name: sort for sort in scenario.sorts}
        self._to = {notice.number: notice.to for notice in scenario.notices}
        self._ledger = ledger
        self._seen = seen
        self._numbers = {one.id: _number(one) for one in seen.notifications}

    def complaints(self) -> Complaints:
        """Everything that is wrong."""
        yield from self._promises()
        for notification in self._seen.notifications:
            if notification.kind not in self._sorts:
                yield from self._malformed(notification)
                continue
            sort = self._sorts[notification.kind]
            yield from self._ways(notification, sort)
            for route in notification.routes:
                yield from self._route(notification, route)
                if route.channel not in sort.channels:
                    yield from self._fallen_back(notification, route, sort)
        yield from self._copies()
        yield from self._throttled()
        for one in self._ledger.reached:
            yield from self._unwanted(one)
            yield from self._unread(one)

    def _promises(self) -> Complaints:
        """What was accepted is there, once for each kind and key."""
        known = {one.id: one for one in self._seen.notifications}
        for told in self._ledger.announced:
            found = known.get(told.notification)
            if found is None or found.kind != told.sort or (told.problem is None and found.key != told.key):
                yield f"notice {told.number} was accepted as {told.notification}, and there is no such notification"
            elif told.new and found.problem != told.problem:
                yield f"notice {told.number} was answered with {told.problem}, and {found.problem} is kept"
        new = [told.notification for told in self._ledger.announced if told.new]
        if len(new) > len(set(new)):
            yield f"a notification was new more than once: {new}"
        keys = [(one.kind, one.key) for one in known.values() if one.key is not None]
        if len(keys) > len(set(keys)):
            yield f"more than one notification has the same kind and key: {keys}"
        numbers = [number for number in self._numbers.values() if number is not None]
        if len(numbers) > len(set(numbers)):
            yield f"a notice became more than one notification: {numbers}"

    def _malformed(self, notification: NotificationInfo) -> Complaints:
        """What nobody knows how to send is kept with what is wrong, and goes nowhere."""
        if notification.problem is None or notification.routes:
            yield f"a notification of the kind {notification.kind} is not known as malformed"

    def _ways(self, notification: NotificationInfo, sort: Sort) -> Complaints:
        """One route for each recipient and channel, and others only where one may fall back to them."""
        number = self._numbers[notification.id]
        assert number is not None
        found = [(route.recipient, route.channel) for route in notification.routes]
        wanted = {(who, channel) for who in self._to[number] for channel in sort.channels}
        others = {(who, channel) for who in self._to[number] for channel in sort.fallback.values()}
        if len(found) > len(set(found)) or not wanted <= set(found) <= wanted | others:
            yield f"notice {number} has the routes {found}"

    def _route(self, notification: NotificationInfo, route: RouteInfo) -> Complaints:
        """Who is told to have it has it; who may have it is marked; who has not knows why."""
        number = self._numbers[notification.id]
        about = f"notice {number} to {route.recipient} by {route.channel} is {route.state}"
        came = self._came(notification, route)
        if route.state not in ("sent", "skipped", "dead", "cancelled"):
            yield f"{about} in the end"
        if route.state == "sent" and not came:
            yield f"{about}, and never arrived"
        if route.state != "sent" and not route.reason:
            yield f"{about} without a reason"
        if route.channel == INBOX:
            return
        if route.state != "sent" and came and not route.possible_duplicate:
            yield f"{about}, and it arrived without a mark"
        if came > 1 and not route.possible_duplicate:
            yield f"{about}, and it arrived {came} times without a mark"
        if route.reason.startswith("permanent") and not self._was_refused(route):
            yield f"{about} ({route.reason}), and the channel never refused it"
        yield from self._skipped(about, notification, route)

    def _skipped(self, about: str, notification: NotificationInfo, route: RouteInfo) -> Complaints:
        """What is skipped was too much, unwanted, or read."""
        sort, who = self._sorts[notification.kind], route.recipient
        if route.reason.startswith("throttled"):
            others = self._begun(who, sort.name, route.channel) - {_note(route)}
            if sort.critical or sort.throttle is None or len(others) < sort.throttle:
                yield f"{about} ({route.reason}), and there were only {len(others)} others"
        if route.reason == "the recipient does not want it" and (
            sort.critical or all(wish.wanted or wish.who != who for wish in self._ledger.wishes)
        ):
            yield f"{about}, and nobody said that {who} does not want it"
        if route.reason == "it was read" and not (sort.cancel_on_read and self._read_at(notification.id, who)):
            yield f"{about} since it was read, and it was not"

    def _fallen_back(self, notification: NotificationInfo, route: RouteInfo, sort: Sort) -> Complaints:
        """Another channel is tried only once the first one has refused, or has no address."""
        firsts = [
            one
            for one in notification.routes
            if one.recipient == route.recipient and sort.fallback.get(one.channel) == route.channel
        ]
        if not any(self._was_refused(one) or one.reason.startswith("no address") for one in firsts):
            number = self._numbers[notification.id]
            yield f"notice {number} falls back to {route.channel}, and nobody has refused it: {firsts}"

    def _copies(self) -> Complaints:
        """A note is brought once without a mark; what it says is in no other note to the same person."""
        notes: dict[str, list[Reached]] = {}
        carriers: dict[tuple[str, str, int], set[str]] = {}
        for one in self._ledger.reached:
            notes.setdefault(one.note, []).append(one)
            for number in one.items:
                carriers.setdefault((one.recipient, one.channel, number), set()).add(one.note)
            if len(one.items) > len(set(one.items)):
                yield f"a digest to {one.recipient} has {one.items}, and some of it twice"
        for note in notes.values():
            if sum(not one.marked for one in note) > 1:
                yield f"{note[0].items} came to {note[0].recipient} by {note[0].channel} more than once without a mark"
        for (who, channel, number), some in carriers.items():
            if len(some) > 1:
                yield f"notice {number} came to {who} by {channel} in {len(some)} different notes"

    def _throttled(self) -> Complaints:
        """No more notes than the kind allows."""
        reached = self._ledger.reached
        places = {(one.recipient, one.sort, one.channel) for one in reached}
        for who, name, channel in sorted(places):
            sort = self._sorts[name]
            notes = {one.note for one in reached if (one.recipient, one.sort, one.channel) == (who, name, channel)}
            if sort.throttle is not None and not sort.critical and len(notes) > sort.throttle:
                yield f"{len(notes)} notes of {name} came to {who} by {channel}, and {sort.throttle} are allowed"

    def _unwanted(self, one: Reached) -> Complaints:
        """Nothing comes by an attempt that began after it was said that it is not wanted."""
        if self._sorts[one.sort].critical:
            return
        place = (one.recipient, one.sort, one.channel)
        said = [wish for wish in self._ledger.wishes if (wish.who, wish.sort, wish.channel) == place]
        wanted = [wish for wish in said if wish.wanted and wish.asked <= one.at]
        for wish in said:
            if not wish.wanted and wish.answered < one.began and all(other.answered < wish.asked for other in wanted):
                yield f"{one.sort} came to {one.recipient} by {one.channel}, who does not want it"

    def _unread(self, one: Reached) -> Complaints:
        """Nothing comes by an attempt that began after it was read."""
        if not (self._steady and self._sorts[one.sort].cancel_on_read):
            return
        for notification, number in self._numbers.items():
            read = self._read_at(notification, one.recipient) if number in one.items else None
            if read is not None and read < one.began:
                late = f"{one.began - read:.3f} s after it was read"
                yield f"notice {number} came to {one.recipient} by {one.channel} {late}"

    def _came(self, notification: NotificationInfo, route: RouteInfo) -> int:
        """How often somebody got it over a channel."""
        if route.channel == INBOX:
            return sum(entry.notification == notification.id for entry in self._entries(route.recipient))
        number = self._numbers[notification.id]
        return sum(one.note == _note(route) and number in one.items for one in self._ledger.reached)

    def _was_refused(self, route: RouteInfo) -> bool:
        return any(one.note == _note(route) and one.reply in REFUSALS for one in self._ledger.asked)

    def _begun(self, who: str, sort: str, channel: str) -> set[str]:
        """The notes of a place that somebody began to bring."""
        notes = {
            _note(route)
            for one in self._seen.notifications
            for route in one.routes
            if (one.kind, route.recipient, route.channel) == (sort, who, channel)
        }
        return {note for note in notes if self._ledger.of(note)}

    def _entries(self, who: str) -> list[EntryInfo]:
        return self._seen.inboxes.get(who, [])

    def _read_at(self, notification: str, who: str) -> float | None:
        """When somebody has read it in the inbox, in virtual time."""
        read = [entry.read for entry in self._entries(who) if entry.notification == notification]
        return read[0].timestamp() - EPOCH if read and read[0] is not None else None


def _number(notification: NotificationInfo) -> int | None:
    data = notification.data
    return data.get("notice") if isinstance(data, dict) else None


def _note(route: RouteInfo) -> str:
    """The task that brings it: its own, or that of the digest which it is in."""
    return route.via or route.id
