"""Notifications from the intent to the last route, on both stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from durably import BadOption, Durably, UnknownTask
from durably.core.delivery import Kind, Outcome
from durably.core.lifecycle import lapse
from durably.errors import SessionLost
from durably.notifications.channel import Note
from durably.notifications.info import NotificationInfo
from durably.notifications.people import Person
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.deliver import hurry
from durably.stores.operations.notify import Place, throttle
from durably.stores.operations.read import get
from durably.stores.operations.sweep import open_session


class Told:
    """A channel that remembers what it was given, and answers as it is told."""

    def __init__(self, *answers: Outcome | Exception | None) -> None:
        self.notes: list[Note] = []
        self._answers = list(answers)

    async def send(self, note: Note) -> Outcome | None:
        self.notes.append(note)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


PEOPLE = {
    "ann": Person(addresses={"sms": "+1", "push": "p-ann", "mail": "ann@x.example"}, locale="de"),
    "bob": Person(addresses={"sms": "+2"}),
    "night": Person(addresses={"sms": "+3"}, timezone="Europe/Berlin", quiet=("22:00", "07:00")),
}


@pytest.fixture
def app(app: Durably) -> Durably:
    app.notifications.resolver(PEOPLE.get)
    return app


def states(info: NotificationInfo) -> dict[tuple[str, str], str]:
    return {(one.recipient, one.channel): one.state for one in info.routes}


def reasons(info: NotificationInfo) -> list[str]:
    return [one.reason for one in info.routes]


class TestIntent:
    def test_every_recipient_gets_it_over_every_channel(self, app: Durably) -> None:
        sms, push = Told(), Told()
        app.notifications.channels.update(sms=sms, push=push)
        app.notifications.kind("paid", ["sms", "push"])
        sent = app.notify("paid", ["ann", "bob", "ann"], {"amount": 7})
        assert states(app.notifications.get(sent.id)) == {
            ("ann", "sms"): "pending",
            ("ann", "push"): "pending",
            ("bob", "sms"): "pending",
            ("bob", "push"): "pending",
        }

        app.drain()

        found = app.notifications.get(sent.id)
        assert states(found) == {
            ("ann", "sms"): "sent",
            ("ann", "push"): "sent",
            ("bob", "sms"): "sent",
            ("bob", "push"): "skipped",
        }
        assert {one.reason for one in found.routes} == {"", "no address for push"}
        assert sorted((note.recipient, note.address, note.locale) for note in sms.notes) == [
            ("ann", "+1", "de"),
            ("bob", "+2", ""),
        ]
        [note] = push.notes
        assert (note.kind, note.data, note.items, note.attempt) == ("paid", {"amount": 7}, [{"amount": 7}], 1)
        assert note.id in {one.id for one in found.routes}
        assert (found.kind, found.data, found.key, found.malformed) == ("paid", {"amount": 7}, None, False)

    def test_the_same_kind_and_key_is_the_same_notification(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        app.notifications.kind("sent", ["inbox"])
        first = app.notify("paid", "ann", {"n": 1}, key="order-7")
        again = app.notify("paid", "bob", {"n": 2}, key="order-7")
        other = app.notify("sent", "ann", {"n": 3}, key="order-7")

        assert (first.new, again.new, other.new) == (True, False, True)
        assert first.id == again.id != other.id
        app.drain()
        assert [one.data for one in app.notifications.inbox.list("ann")] == [{"n": 3}, {"n": 1}]
        assert app.notifications.inbox.list("bob") == []

    @pytest.mark.parametrize(
        ("kind", "recipient", "data", "key", "problem"),
        [
            ("nope", "ann", {}, None, "nope: no such kind is declared; there are paid, typed"),
            (7, "ann", {}, None, "7: no such kind"),
            ("paid", "", {}, None, "paid: recipient: '' must be text"),
            ("paid", [], {}, None, "paid: recipient"),
            ("paid", [7], {}, None, "paid: recipient: 7 must be text"),
            ("paid", None, {}, None, "paid: recipient"),
            ("paid", "ann", object(), None, "paid: "),
            ("paid", "ann", {"x": "y" * 300_000}, None, "paid: the arguments"),
            ("paid", "ann", {}, "", "paid: key"),
            ("paid", "ann\0", {}, None, "paid: recipient"),
            ("typed", "ann", {"amount": "seven"}, None, "typed: Expected `int`"),
        ],
    )
    def test_a_malformed_intent_is_recorded_and_not_raised(
        self, app: Durably, kind: Any, recipient: Any, data: Any, key: Any, problem: str
    ) -> None:
        app.notifications.kind("paid", ["inbox"])
        app.notifications.kind("typed", ["inbox"], schema=Paid)
        sent = app.notify(kind, recipient, data, key=key)

        assert sent.problem is not None
        assert sent.problem.startswith(problem)
        found = app.notifications.get(sent.id)
        assert (found.problem, found.routes, found.malformed) == (sent.problem, [], True)
        assert app.drain() == 0

    @pytest.mark.parametrize("number", range(5))
    def test_whatever_a_schema_raises_is_recorded_and_not_raised(self, app: Durably, number: int) -> None:
        app.notifications.kind("grumpy", ["inbox"], schema=Grumpy)
        sent = app.notify("grumpy", "ann", {"number": number})

        assert sent.problem is not None
        assert sent.problem.startswith(f"grumpy: {type(Grumpy.raises[number]).__name__}: ")
        assert app.notifications.get(sent.id).problem == sent.problem

    def test_what_cannot_even_be_shown_is_recorded_and_not_raised(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        for kind, recipient, data in (
            ("paid", "ann", Evil()),
            ("paid", Evil(), {}),
            (Evil(), "ann", {}),
            ([], "ann", {}),
            ("paid", (one for one in "ab"), {}),
            ("\ud800", "ann", {}),
            ("paid", "ann", {"x": "\ud800"}),
            ("paid", "ann", 10**5000),
        ):
            sent = app.notify(kind, recipient, data)  # type: ignore[arg-type]
            assert sent.problem is not None
            assert app.notifications.get(sent.id).malformed

    def test_the_same_kind_and_key_is_the_same_malformed_notification(self, app: Durably) -> None:
        app.notifications.kind("typed", ["inbox"], schema=Paid)
        first = app.notify("typed", "ann", {"amount": "seven"}, key="order-7")
        again = app.notify("typed", "ann", {"amount": "eight"}, key="order-7")
        right = app.notify("typed", "ann", {"amount": 7}, key="order-7")
        other = app.notify("typed", "ann", {"amount": 8}, key="order-8")

        assert (first.new, again.new, right.new, other.new) == (True, False, False, True)
        assert first.id == again.id == right.id != other.id
        assert first.problem == again.problem == right.problem
        assert first.problem is not None
        assert other.problem is None
        assert [(one.key, one.malformed) for one in app.notifications.list()] == [("order-8", False), ("order-7", True)]

    def test_what_fits_the_schema_is_kept_as_the_schema_has_it(self, app: Durably) -> None:
        app.notifications.kind("typed", ["inbox"], schema=Paid)
        sent = app.notify("typed", "ann", Paid(7))

        assert (sent.problem, app.notifications.get(sent.id).data) == (None, {"amount": 7, "currency": "EUR"})

    def test_intent_and_routes_commit_with_the_callers_transaction_or_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.db"
        with Durably(f"sqlite:///{path}") as app:
            app.migrate()
            app.notifications.kind("paid", ["inbox"])
            with closing(sqlite3.connect(path, isolation_level=None)) as own:
                for end in ("ROLLBACK", "COMMIT"):
                    own.execute("BEGIN IMMEDIATE")
                    app.notify("paid", "ann", {"end": end}, within=own)
                    own.execute(end)

            assert [one.data for one in app.notifications.list()] == [{"end": "COMMIT"}]
            assert len(app.tasks.list()) == 1

    def test_the_first_attempts_can_be_made_at_once(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms", "inbox"])
        app.notify("paid", "bob", {"n": 1})
        sent = app.notify("paid", "ann", {"n": 2}, at_once=True)

        assert states(app.notifications.get(sent.id)) == {("ann", "sms"): "sent", ("ann", "inbox"): "sent"}
        assert [note.recipient for note in sms.notes] == ["ann"]

    async def test_at_once_in_an_event_loop_has_its_own_way(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        with pytest.raises(BadOption, match="use `await app"):
            app.notify("paid", "ann", at_once=True)
        sent = await app.anotify("paid", "ann", at_once=True)
        assert states(await app.notifications.aget(sent.id)) == {("ann", "inbox"): "sent"}
        await app.aclose()

    def test_notifications_are_listed(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        app.notifications.kind("sent", ["inbox"])
        a, b, c = (app.notify(*what).id for what in (("paid", "ann"), ("sent", "ann"), ("paid", "bob")))
        bad = app.notify("nope", "ann").id

        assert [one.id for one in app.notifications.list()] == [bad, c, b, a]
        assert [one.id for one in app.notifications.list(kind="paid")] == [c, a]
        assert [one.id for one in app.notifications.list(recipient="ann")] == [b, a]
        assert [one.id for one in app.notifications.list(before=c, limit=1)] == [b]
        with pytest.raises(BadOption, match="before"):
            app.notifications.list(before="x")
        with pytest.raises(UnknownTask, match="no notification"):
            app.notifications.get("0190a5d1-ac96-774b-bcce-b302099a8057")


class Paid(msgspec.Struct):
    amount: int
    currency: str = "EUR"


class Grumpy(msgspec.Struct):
    """Data that raises whatever it likes."""

    raises: ClassVar = [KeyError("a"), RuntimeError("b"), ZeroDivisionError("c"), LookupError(), RecursionError("d")]
    number: int

    def __post_init__(self) -> None:
        raise self.raises[self.number]


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("nobody looks at me")


class TestRoutes:
    def test_each_route_has_its_own_budget(self, app: Durably) -> None:
        sms, push = Told(Outcome(kind=Kind.TRANSIENT, reason="no net")), Told()
        app.notifications.channels.update(sms=sms, push=push)
        app.notifications.kind("paid", ["sms", "push"])
        sent = app.notify("paid", "ann")
        app.tick()

        found = app.notifications.get(sent.id)
        assert states(found) == {("ann", "push"): "sent", ("ann", "sms"): "retrying"}
        [route] = [one for one in found.routes if one.channel == "sms"]
        assert (route.reason, route.attempt) == ("no net", 1)
        assert route.next_attempt is not None
        assert timedelta(seconds=8) < route.next_attempt - datetime.now(UTC) < timedelta(seconds=14)

    @pytest.mark.parametrize(
        ("answer", "state", "reason"),
        [
            (Outcome(kind=Kind.PERMANENT, reason="no such number"), "dead", "permanent: no such number"),
            (Outcome(kind=Kind.GONE, reason="gone"), "dead", "permanent: gone"),
            (Outcome(kind=Kind.UNWANTED, reason="blocked"), "skipped", "blocked"),
            (Outcome(kind=Kind.MISCONFIGURED, reason="no key"), "pending", "no key"),
            (Outcome(kind=Kind.THROTTLED, reason="slow down"), "pending", "slow down"),
            (Outcome(kind=Kind.INFRA, reason="no network"), "pending", "no network"),
            (Outcome(kind=Kind.UNKNOWN, reason="no answer"), "retrying", "no answer"),
            (ValueError("oops"), "retrying", "ValueError: oops"),
            (None, "sent", ""),
        ],
    )
    def test_what_the_channel_says_decides(self, app: Durably, answer: Any, state: str, reason: str) -> None:
        app.notifications.channels["sms"] = Told(answer)
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.tick()

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.reason) == (state, reason)

    def test_what_may_have_arrived_is_marked(self, app: Durably) -> None:
        sms = Told(Outcome(kind=Kind.UNKNOWN, reason="no answer"))
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.tick()
        assert app.notifications.get(sent.id).routes[0].possible_duplicate
        [task] = app.tasks.list()
        app.store.run(hurry([task.id]))
        app.tick()

        assert [note.possible_duplicate for note in sms.notes] == [False, True]
        assert len({note.id for note in sms.notes}) == 1
        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.possible_duplicate) == ("sent", True)

    def test_what_may_have_arrived_is_marked_even_if_it_is_skipped_in_the_end(self, app: Durably) -> None:
        app.notifications.channels["sms"] = Told(Outcome(kind=Kind.UNKNOWN, reason="no answer"))
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.tick()
        app.notifications.preferences.set("ann", False)
        app.store.run(hurry([one.id for one in app.notifications.get(sent.id).routes]))
        app.tick()

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.possible_duplicate) == ("skipped", True)

    def test_what_was_called_off_while_its_worker_died_is_marked(self, app: Durably) -> None:
        app.notifications.channels["sms"] = Told()
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.store.run(open_session("doomed", 60_000_000, "host", 1, "{}"))
        [held] = app.store.run(claim("doomed", ("notifications",), 1)).tasks
        app.handle(held.id).cancel("not any more")
        [task] = app.store.run(get([held.id]))
        app.store.run(commit([lapse(task)]))

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.possible_duplicate) == ("cancelled", True)

    def test_a_replay_of_what_died_with_its_worker_is_marked(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"])
        app.notify("paid", "ann")
        app.store.run(open_session("doomed", 60_000_000, "host", 1, "{}"))
        [held] = app.store.run(claim("doomed", ("notifications",), 1)).tasks
        app.store.run(commit([lapse(msgspec.structs.replace(held, alone=True, crashes=2))]))
        app.dead.replay()
        app.tick()

        assert [note.possible_duplicate for note in sms.notes] == [True]

    def test_a_channel_that_answers_nonsense_is_tried_again(self, app: Durably) -> None:
        app.notifications.channels["sms"] = Told("fine")  # type: ignore[arg-type]
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.tick()
        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.reason) == ("retrying", "the channel answered str")

    def test_whom_nobody_knows_is_skipped(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        sent = app.notify("paid", "zoe")
        app.drain()
        assert reasons(app.notifications.get(sent.id)) == ["nobody knows the recipient"]

    def test_a_resolver_that_fails_is_asked_again(self, app: Durably) -> None:
        async def broken(recipient: str) -> Any:
            return {"mail": "x"}

        app.notifications.resolver(broken)
        app.notifications.kind("paid", ["inbox"])
        sent = app.notify("paid", "ann")
        app.tick()
        [route] = app.notifications.get(sent.id).routes
        assert route.state == "retrying"
        assert "instead of a Person" in route.reason

    def test_a_worker_that_does_not_know_the_kind_or_the_channel_leaves_it_to_others(self, app: Durably) -> None:
        app.notifications.channels["pigeon"] = Told()
        app.notifications.kind("paid", ["pigeon"])
        sent = app.notify("paid", "ann")
        del app.notifications.channels["pigeon"]
        app.tick()
        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.reason) == (
            "pending",
            "this worker has no channel 'pigeon': see notifications.channels",
        )

    def test_channels_may_come_later(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", {"inbox": 0, "sms": "10m"})
        sent = app.notify("paid", "ann")
        app.tick()
        assert states(app.notifications.get(sent.id)) == {("ann", "inbox"): "sent", ("ann", "sms"): "pending"}
        assert sms.notes == []


class TestWishes:
    def test_who_does_not_want_it_is_skipped_unless_it_is_critical(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"])
        app.notifications.kind("fire", ["sms"], critical=True)
        app.notifications.preferences.set("ann", False)
        skipped, through = app.notify("paid", "ann"), app.notify("fire", "ann")
        app.drain()

        assert reasons(app.notifications.get(skipped.id)) == ["the recipient does not want it"]
        assert [note.notification for note in sms.notes] == [through.id]

    def test_the_most_special_wish_counts(self, app: Durably) -> None:
        sms, push = Told(), Told()
        app.notifications.channels.update(sms=sms, push=push)
        for kind in ("paid", "sent"):
            app.notifications.kind(kind, ["sms", "push"])
        wishes = app.notifications.preferences
        wishes.set("ann", False, channel="sms")
        wishes.set("ann", True, kind="paid")
        wishes.set("ann", False, kind="paid", channel="push")
        for kind in ("paid", "sent"):
            app.notify(kind, "ann")
        app.drain()

        assert ([note.kind for note in sms.notes], [note.kind for note in push.notes]) == (["paid"], ["sent"])
        assert [(one.kind, one.channel, one.wanted) for one in wishes.get("ann")] == [
            ("", "sms", False),
            ("paid", "", True),
            ("paid", "push", False),
        ]
        assert wishes.drop("ann", channel="sms")
        assert not wishes.drop("ann", channel="sms")

    def test_what_is_too_much_is_skipped(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"], throttle="2/1h")
        sent = [app.notify("paid", who).id for who in ("ann", "ann", "ann", "bob")]
        app.drain()

        assert sorted(note.recipient for note in sms.notes) == ["ann", "ann", "bob"]
        skipped = [route for one in sent for route in app.notifications.get(one).routes if route.state == "skipped"]
        assert [one.reason for one in skipped] == ["throttled: 2 in 3600 s"]

    def test_what_its_channel_puts_off_is_counted_once(self, app: Durably) -> None:
        sms = Told(Outcome(kind=Kind.THROTTLED, reason="slow down"))
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"], throttle="1/1h")
        sent = app.notify("paid", "ann")
        app.tick()
        app.store.run(hurry([one.id for one in app.notifications.get(sent.id).routes]))
        app.tick()

        assert states(app.notifications.get(sent.id)) == {("ann", "sms"): "sent"}

    def test_what_failed_before_it_was_counted_is_counted_later(self, app: Durably) -> None:
        sms, failing = Told(), [ValueError("no database")] * 2

        def find(recipient: str) -> Person | None:
            if failing:
                raise failing.pop()
            return PEOPLE[recipient]

        app.notifications.resolver(find)
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["sms"], throttle="1/1h")
        sent = [app.notify("paid", "ann").id for _ in range(2)]
        app.tick()
        app.store.run(hurry([route.id for one in sent for route in app.notifications.get(one).routes]))
        app.tick()

        assert len(sms.notes) == 1
        assert sorted(states(app.notifications.get(one))["ann", "sms"] for one in sent) == ["sent", "skipped"]

    def test_who_lost_its_lease_counts_for_nothing(self, app: Durably) -> None:
        app.notifications.channels["sms"] = Told()
        app.notifications.kind("paid", ["sms"])
        sent = app.notify("paid", "ann")
        app.store.run(open_session("worker", 60_000_000, "host", 1, "{}"))
        [task] = app.store.run(claim("worker", ("notifications",), 1)).tasks
        place = Place("default", "ann", "paid", "sms")

        def counted(token: int) -> bool:
            return app.store.run(throttle(place, 3_600_000_000, 1, task.id, token, b'{"counted":true}'))

        with pytest.raises(SessionLost):
            counted(task.token - 1)
        assert counted(task.token)
        assert not counted(task.token)
        assert app.notifications.get(sent.id).routes[0].id == task.id


class TestInbox:
    def test_what_arrived_is_read_and_put_away(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        for number in range(3):
            app.notify("paid", "ann", {"title": f"Order {number} is paid", "text": "Thank you", "number": number})
        app.drain()
        inbox = app.notifications.inbox
        entries = inbox.list("ann")

        assert [one.title for one in entries] == [f"Order {number} is paid" for number in (2, 1, 0)]
        assert (entries[0].text, entries[0].kind, entries[0].read) == ("Thank you\nnumber: 2", "paid", None)
        assert (inbox.counts("ann").entries, inbox.counts("ann").unread) == (3, 3)
        assert inbox.read("ann", entries[0].id) == 1
        assert inbox.read("ann", entries[0].id, "nonsense") == 0
        assert inbox.counts("ann").unread == 2
        assert [one.id for one in inbox.list("ann", unread=True)] == [entries[1].id, entries[2].id]
        assert inbox.archive("ann", entries[1].id) == 1
        assert [one.id for one in inbox.list("ann")] == [entries[0].id, entries[2].id]
        assert len(inbox.list("ann", archived=True)) == 3
        assert [one.id for one in inbox.list("ann", before=entries[0].id, limit=1)] == [entries[2].id]
        assert (inbox.read_all("bob"), inbox.read_all("ann")) == (0, 1)
        assert (inbox.archive_all("ann"), inbox.counts("ann").entries) == (2, 0)

    def test_what_was_read_is_called_off_elsewhere(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", {"inbox": 0, "sms": "10m"}, cancel_on_read=True)
        read, unread = app.notify("paid", "ann"), app.notify("paid", "bob")
        app.tick()
        assert app.notifications.inbox.read_all("ann") == 1

        assert states(app.notifications.get(read.id))["ann", "sms"] == "cancelled"
        assert states(app.notifications.get(unread.id))["bob", "sms"] == "pending"

    def test_what_was_read_just_before_it_is_sent_is_skipped(self, app: Durably) -> None:
        sms = Told()
        app.notifications.channels["sms"] = sms
        kind = app.notifications.kind("paid", {"inbox": 0, "sms": "1h"}, cancel_on_read=True)
        sent = app.notify("paid", "ann")
        app.tick()
        app.notifications.kinds._kinds["paid"] = msgspec.structs.replace(kind, cancel_on_read=False)
        app.notifications.inbox.read_all("ann")
        app.notifications.kinds._kinds["paid"] = kind
        app.store.run(hurry([one.id for one in app.notifications.get(sent.id).routes]))
        app.drain()
        assert "it was read" in reasons(app.notifications.get(sent.id))
        assert sms.notes == []


class TestFallback:
    def test_another_channel_is_tried_when_one_is_confirmed_not_to_reach_anybody(self, app: Durably) -> None:
        sms, push = Told(), Told(Outcome(kind=Kind.GONE, reason="unregistered"))
        app.notifications.channels.update(sms=sms, push=push)
        app.notifications.kind("paid", ["push"], fallback={"push": "sms"})
        sent = app.notify("paid", "ann", {"n": 1})
        app.drain()

        assert states(app.notifications.get(sent.id)) == {("ann", "push"): "dead", ("ann", "sms"): "sent"}
        assert [note.data for note in sms.notes] == [{"n": 1}]

    def test_nobody_else_is_tried_while_it_is_not_certain(self, app: Durably) -> None:
        sms, push = Told(), Told(*[Outcome(kind=Kind.TRANSIENT, reason="no net")] * 8)
        app.notifications.channels.update(sms=sms, push=push)
        app.notifications.kind("paid", ["push"], fallback={"push": "sms"})
        sent = app.notify("paid", "ann")
        for _ in range(8):
            app.tick()
            app.store.run(hurry([one.id for one in app.notifications.get(sent.id).routes]))
        app.drain()
        assert states(app.notifications.get(sent.id)) == {("ann", "push"): "dead"}
        assert sms.notes == []


def test_what_makes_no_sense_cannot_be_declared(app: Durably) -> None:
    add = app.notifications.kind
    add("paid", ["inbox"])
    for options, refusal in (
        ({"name": "paid", "channels": ["inbox"]}, "already declared"),
        ({"name": "", "channels": ["inbox"]}, "kind"),
        ({"name": "x", "channels": []}, "at least one"),
        ({"name": "x", "channels": "inbox"}, "must be a list of names"),
        ({"name": "x", "channels": {"inbox": "soon"}}, "channels: inbox"),
        ({"name": "x", "channels": ["mail"], "cancel_on_read": True}, "needs the channel 'inbox'"),
        ({"name": "x", "channels": ["mail"], "fallback": {"push": "sms"}}, "leads nowhere"),
        ({"name": "x", "channels": ["mail"], "fallback": {"mail": "mail"}}, "leads nowhere"),
        ({"name": "x", "channels": ["mail"], "throttle": "often"}, "rate"),
        ({"name": "x", "channels": ["mail"], "throttle": "1.5/1h"}, "whole number"),
        ({"name": "x", "channels": ["mail"], "digest": 0}, "digest"),
        ({"name": "x", "channels": ["inbox"], "digest": {"inbox": "1h"}}, "digest"),
    ):
        with pytest.raises(BadOption, match=refusal):
            add(**options)
    assert list(app.notifications.kinds) == ["paid"]
