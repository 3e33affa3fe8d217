"""Digests, quiet hours and mail: what depends on time, and what chains into the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.errors import BadOption
from durably.notifications.channel import Note
from durably.notifications.people import Person, quiet_for
from durably.stores.sqlite.store import SqliteStore
from durably.testing.clock import ManualClock
from tests.notifications.test_notifications import PEOPLE, Told, reasons, states
from tests.support.smtp import Script


class Timed:
    """An application whose clock is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.app = Durably(SqliteStore(str(path), clock=self.clock), clock=self.clock)
        self.app.migrate()
        self.app.notifications.resolver(PEOPLE.get)
        self.sms = Told()
        self.app.notifications.channels["sms"] = self.sms

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now() / 1_000_000, UTC)

    def until(self, hour: int) -> None:
        """Go on to the next time that it is so late, in UTC."""
        now = self.now()
        left = (hour - now.hour) % 24 * 3600 - now.minute * 60 - now.second
        self.clock.advance(left if left > 0 else left + 86_400)


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    made = Timed(tmp_path / "d.db")
    yield made
    made.app.close()


class TestDigests:
    def test_what_comes_within_a_window_is_one_message(self, timed: Timed) -> None:
        app = timed.app
        app.notifications.kind("comment", ["inbox", "sms"], digest="1h")
        sent = [app.notify("comment", who, {"n": number}).id for number, who in enumerate(["ann", "bob", "ann"])]
        app.drain()
        assert states(app.notifications.get(sent[0])) == {("ann", "inbox"): "sent", ("ann", "sms"): "collecting"}
        timed.clock.advance(1800)
        late = app.notify("comment", "ann", {"n": 3}).id
        app.drain()
        assert timed.sms.notes == []

        timed.clock.advance(1801)
        app.drain()

        assert sorted((note.recipient, len(note.items)) for note in timed.sms.notes) == [("ann", 3), ("bob", 1)]
        [note] = [note for note in timed.sms.notes if note.recipient == "ann"]
        assert (note.items, note.title) == ([{"n": 0}, {"n": 2}, {"n": 3}], "comment (3)")
        assert {states(app.notifications.get(one))["ann", "sms"] for one in (sent[0], sent[2], late)} == {"sent"}
        assert len({app.notifications.get(one).routes[1].via for one in (sent[0], sent[2], late)}) == 1

    def test_a_new_window_begins_after_the_old_one(self, timed: Timed) -> None:
        app = timed.app
        app.notifications.kind("comment", ["sms"], digest={"sms": "1h"})
        for number in range(2):
            app.notify("comment", "ann", {"n": number})
            app.drain()
            timed.clock.advance(3601)
            app.drain()

        assert [note.items for note in timed.sms.notes] == [[{"n": 0}], [{"n": 1}]]

    def test_a_digest_that_fails_is_sent_again_with_the_same_items(self, timed: Timed) -> None:
        app = timed.app
        timed.sms._answers = [Outcome(kind=Kind.TRANSIENT, reason="no net")]
        app.notifications.kind("comment", ["sms"], digest="1h")
        sent = app.notify("comment", "ann", {"n": 0}).id
        app.drain()
        timed.clock.advance(3601)
        app.drain()
        app.notify("comment", "ann", {"n": 1})
        [route] = app.notifications.get(sent).routes
        assert (route.state, route.reason) == ("retrying", "no net")
        timed.clock.advance(30)
        app.drain()

        assert [note.items for note in timed.sms.notes] == [[{"n": 0}], [{"n": 0}]]
        assert len({note.id for note in timed.sms.notes}) == 1

    def test_what_was_read_is_left_out(self, timed: Timed) -> None:
        app = timed.app
        app.notifications.kind("comment", ["inbox", "sms"], digest="1h", cancel_on_read=True)
        read = app.notify("comment", "ann", {"n": 0}).id
        app.drain()
        app.notifications.inbox.read_all("ann")
        unread = app.notify("comment", "ann", {"n": 1}).id
        app.drain()
        timed.clock.advance(3601)
        app.drain()

        assert [note.items for note in timed.sms.notes] == [[{"n": 1}]]
        assert states(app.notifications.get(unread))["ann", "sms"] == "sent"
        assert states(app.notifications.get(read))["ann", "sms"] == "skipped"
        assert "it was read" in reasons(app.notifications.get(read))

    def test_a_digest_of_which_everything_was_read_is_not_sent(self, timed: Timed) -> None:
        app = timed.app
        app.notifications.kind("comment", ["inbox", "sms"], digest="1h", cancel_on_read=True)
        sent = app.notify("comment", "ann").id
        app.drain()
        app.notifications.inbox.archive_all("ann")
        timed.clock.advance(3601)
        app.drain()

        assert timed.sms.notes == []
        assert "it was read" in reasons(app.notifications.get(sent))

    def test_critical_ones_are_not_collected(self, timed: Timed) -> None:
        timed.app.notifications.kind("fire", ["sms"], digest="1h", critical=True)
        timed.app.notify("fire", "ann")
        timed.app.drain()
        assert len(timed.sms.notes) == 1

    def test_a_digest_that_reaches_nobody_falls_back_for_each_of_its_notifications(self, timed: Timed) -> None:
        app, push = timed.app, Told(Outcome(kind=Kind.PERMANENT, reason="unregistered"))
        app.notifications.channels["push"] = push
        app.notifications.kind("comment", ["push"], digest="1h", fallback={"push": "sms"})
        for number in range(2):
            app.notify("comment", "ann", {"n": number})
        app.drain()
        timed.clock.advance(3601)
        app.drain()

        assert sorted(note.items[0]["n"] for note in timed.sms.notes) == [0, 1]


class TestThrottling:
    @pytest.mark.parametrize("kind", [Kind.THROTTLED, Kind.MISCONFIGURED, Kind.INFRA, Kind.TRANSIENT])
    def test_what_is_tried_again_is_counted_once(self, timed: Timed, kind: Kind) -> None:
        app = timed.app
        timed.sms._answers = [Outcome(kind=kind, reason="later")] * 3
        app.notifications.kind("paid", ["sms"], throttle="1/1h")
        first = app.notify("paid", "ann").id
        for _ in range(4):
            app.drain()
            timed.clock.advance(400)
        second = app.notify("paid", "ann").id
        app.drain()

        assert states(app.notifications.get(first))["ann", "sms"] == "sent"
        assert states(app.notifications.get(second))["ann", "sms"] == "skipped"
        assert len(timed.sms.notes) == 4


class TestQuietHours:
    def test_nothing_but_what_is_critical_comes_through(self, timed: Timed) -> None:
        app = timed.app
        app.notifications.kind("paid", ["inbox", "sms"])
        app.notifications.kind("fire", ["sms"], critical=True)
        timed.until(23)
        sent = app.notify("paid", "night").id
        app.notify("fire", "night")
        app.drain()

        assert [note.kind for note in timed.sms.notes] == ["fire"]
        found = app.notifications.get(sent)
        assert states(found) == {("night", "inbox"): "sent", ("night", "sms"): "pending"}
        assert reasons(found)[1] == "quiet hours until 07:00 (Europe/Berlin)"
        timed.until(7)
        app.drain()
        assert [note.kind for note in timed.sms.notes] == ["fire", "paid"]

    @pytest.mark.parametrize(
        ("now", "quiet", "zone", "hours"),
        [
            ("2026-05-04 21:59", ("22:00", "07:00"), "UTC", 0),
            ("2026-05-04 22:00", ("22:00", "07:00"), "UTC", 9),
            ("2026-05-05 06:30", ("22:00", "07:00"), "UTC", 0.5),
            ("2026-05-05 07:00", ("22:00", "07:00"), "UTC", 0),
            ("2026-05-04 20:00", ("22:00", "07:00"), "Europe/Berlin", 9),
            ("2026-05-04 19:59", ("22:00", "07:00"), "Europe/Berlin", 0),
            ("2026-03-28 21:00", ("22:00", "07:00"), "Europe/Berlin", 8),
            ("2026-10-24 20:00", ("22:00", "07:00"), "Europe/Berlin", 10),
            ("2026-05-04 13:00", ("12:00", "14:00"), "UTC", 1),
            ("2026-05-04 12:00", ("12:00", "12:00"), "UTC", 0),
        ],
    )
    def test_how_long_they_last(self, now: str, quiet: tuple[str, str], zone: str, hours: float) -> None:
        moment = datetime.fromisoformat(f"{now}+00:00")
        assert quiet_for(Person(quiet=quiet, timezone=zone), moment) == hours * 3600

    @pytest.mark.parametrize("quiet", [("22", "07:00"), ("24:00", "07:00"), ("22:00", 7), ("22:60", "07:00")])
    def test_a_time_that_is_none_is_refused(self, quiet: tuple[str, str]) -> None:
        with pytest.raises(BadOption, match=r"quiet: .* must be a time of the day"):
            quiet_for(Person(quiet=quiet), datetime.now(UTC))

    @pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc/passwd", "", "/etc/localtime"])
    def test_a_zone_that_nobody_knows_is_refused(self, zone: str) -> None:
        with pytest.raises(BadOption, match=r"timezone: .* is not known here"):
            quiet_for(Person(quiet=("22:00", "07:00"), timezone=zone), datetime.now(UTC))


class TestMail:
    @pytest.fixture
    def app(self, app: Durably) -> Durably:
        app.notifications.resolver(PEOPLE.get)
        app.mail.sender = "Shop <shop@here.example>"
        return app

    def deliver(self, app: Durably, server: Script) -> None:
        async def whole() -> None:
            async with server.listening() as port:
                await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", schedule=[0])
                await app.adrain()
                await app.aclose()

        asyncio.run(whole())

    def test_a_route_becomes_a_mail_of_the_outbox_once(self, app: Durably) -> None:
        server = Script()
        app.notifications.kind("paid", ["mail"], category="receipts")
        sent = app.notify("paid", ["ann", "bob"], {"title": "Order 7 is paid", "text": "Thank you", "amount": 7})
        self.deliver(app, server)

        found = app.notifications.get(sent.id)
        assert states(found) == {("ann", "mail"): "sent", ("bob", "mail"): "skipped"}
        mail = app.mail.get(found.routes[0].via)
        assert (mail.state, mail.about.subject, mail.about.category) == ("sent", "Order 7 is paid", "receipts")
        assert mail.key == f"durably.route:{found.routes[0].id}"
        [(recipients, source)] = server.taken
        assert recipients == ["ann@x.example"]
        assert b"Thank you\r\namount: 7" in source

    def test_the_template_speaks_the_language_of_its_reader(self, app: Durably) -> None:
        server = Script()
        for locale, subject in (("", "Paid {{ amount }}"), ("de", "Bezahlt {{ amount }} ({{ recipient }})")):
            app.mail.templates.put("paid", subject=subject, text="{{ items|length }}", locale=locale)
        app.notifications.kind("paid", ["mail", "inbox"], templates={"mail": "paid", "inbox": "paid"})
        sent = app.notify("paid", "ann", {"amount": 7})
        self.deliver(app, server)

        mail = app.mail.get(app.notifications.get(sent.id).routes[1].via)
        assert (mail.about.subject, mail.about.template, mail.about.version) == ("Bezahlt 7 (ann)", "paid", "1")
        [entry] = app.notifications.inbox.list("ann")
        assert (entry.title, entry.text) == ("Bezahlt 7 (ann)", "1")

    @pytest.mark.parametrize("template", [None, "news"])
    def test_whoever_can_unsubscribe_does_so_with_one_click(self, app: Durably, template: str | None) -> None:
        server = Script()
        app.mail.templates.put("news", subject="News", text="Nothing new")

        @app.notifications.unsubscribe_link
        def link(recipient: str, category: str) -> str:
            return f"https://here.example/{category}/{recipient}"

        templates = {} if template is None else {"mail": template}
        app.notifications.kind("news", ["mail"], category="weekly", templates=templates)
        app.notifications.kind("paid", ["mail"])
        for kind in ("news", "paid"):
            app.notify(kind, "ann")
        self.deliver(app, server)

        headers = [source.replace(b"\r\n ", b" ") for _, source in server.taken]
        linked = [source for source in headers if b"List-Unsubscribe:" in source]
        assert (len(headers), len(linked)) == (2, 1)
        assert b"List-Unsubscribe: <https://here.example/weekly/ann>" in linked[0]
        assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click" in linked[0]

    def test_a_mail_that_is_refused_for_good_falls_back(self, app: Durably) -> None:
        server, sms = Script({"RCPT": ["550 5.1.1 nobody here"]}), Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        self.deliver(app, server)

        assert states(app.notifications.get(sent.id)) == {("ann", "mail"): "sent", ("ann", "sms"): "sent"}
        assert [note.recipient for note in sms.notes] == ["ann"]

    def test_a_mail_that_is_only_late_does_not_fall_back(self, app: Durably) -> None:
        server, sms = Script({"RCPT": ["450 4.2.0 later"] * 2}), Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        app.notify("paid", "ann")
        self.deliver(app, server)
        assert sms.notes == []

    def test_a_mail_whose_attempts_are_used_up_does_not_fall_back(self, app: Durably) -> None:
        server, sms = Script({"MAIL": ["451 4.3.0 later"] * 2}), Told()
        app.notifications.channels["sms"] = sms
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        self.deliver(app, server)

        assert app.mail.get(app.notifications.get(sent.id).routes[0].via).state == "dead"
        assert sms.notes == []


def test_a_note_says_everything_that_a_channel_needs() -> None:
    note = Note(id="i", notification="n", kind="paid", recipient="ann", address="+1")
    assert (note.items, note.attempt, note.possible_duplicate) == ([], 1, False)
