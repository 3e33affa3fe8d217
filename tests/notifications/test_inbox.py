"""What is read, what that calls off, and how long it is kept."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from durably import BadOption, Durably
from durably.core.delivery import Outcome
from durably.notifications.channel import Note
from durably.notifications.inbox import Counts
from durably.stores.operations.deliver import hurry
from tests.notifications.test_digests import Timed, timed
from tests.notifications.test_notifications import PEOPLE, Told, states
from tests.support.smtp import Script

__all__ = ["timed"]
DAY = 86_400


@pytest.fixture
def app(app: Durably) -> Durably:
    app.notifications.resolver(PEOPLE.get)
    app.mail.sender = "Shop <shop@here.example>"
    return app


def test_who_names_no_entries_marks_none(app: Durably) -> None:
    app.notifications.kind("paid", ["inbox"])
    for _ in range(3):
        app.notify("paid", "ann")
    app.drain()
    inbox, none = app.notifications.inbox, list[str]()

    assert (inbox.read("ann", *none), inbox.archive("ann", *none)) == (0, 0)
    assert inbox.counts("ann") == Counts(3, 3)
    assert (inbox.read_all("ann"), inbox.counts("ann")) == (3, Counts(3, 0))
    assert (inbox.archive_all("ann"), inbox.counts("ann")) == (3, Counts(0, 0))


async def test_everything_can_be_read_on_an_event_loop(app: Durably) -> None:
    app.notifications.kind("paid", ["inbox"])
    await app.anotify("paid", "ann")
    await app.adrain()
    inbox = app.notifications.inbox

    assert (await inbox.aread("ann"), await inbox.aread_all("ann")) == (0, 1)
    assert (await inbox.aarchive("ann"), await inbox.aarchive_all("ann")) == (0, 1)
    await app.aclose()


def test_what_is_no_name_is_refused(app: Durably) -> None:
    notifications: Any = app.notifications
    refused: list[Callable[[], object]] = [
        lambda: notifications.get(5),
        lambda: notifications.list(before=5),
        lambda: notifications.inbox.list(None),
        lambda: notifications.inbox.list("ann", before=5),
        lambda: notifications.inbox.counts(None),
        lambda: notifications.inbox.read("ann", 5),
        lambda: notifications.preferences.get(5),
    ]
    for call in refused:
        with pytest.raises(BadOption, match="must be text"):
            call()


def test_what_is_read_before_its_route_has_ended_was_sent(app: Durably) -> None:
    real = app.notifications.channels["inbox"]

    class Broken:
        """Somebody reads it, and nobody hears that it is there."""

        async def send(self, note: Note) -> Outcome | None:
            came = await real.send(note)
            if await app.notifications.inbox.aread_all("ann"):
                raise ConnectionError("the answer did not come")
            return came

    app.notifications.channels["inbox"] = Broken()
    app.notifications.kind("paid", {"inbox": 0, "mail": "1h"}, cancel_on_read=True)
    sent = app.notify("paid", "ann")
    app.tick()
    app.store.run(hurry([one.id for one in app.notifications.get(sent.id).routes]))
    app.tick()

    assert states(app.notifications.get(sent.id)) == {("ann", "inbox"): "sent", ("ann", "mail"): "cancelled"}
    assert app.notifications.inbox.counts("ann") == Counts(1, 0)


class TestMailThatWaits:
    def outbox(self, app: Durably, story: Any) -> None:
        """A server that puts everything off until the end."""

        async def whole() -> None:
            server = Script({"greeting": ["421 later"] * 100})
            async with server.listening() as port:
                await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", breaker=1000)
                await story()
                await app.aclose()

        asyncio.run(whole())

    def test_it_is_called_off_when_its_notification_was_read(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox", "mail"], cancel_on_read=True)

        async def story() -> None:
            sent = [(await app.anotify("paid", "ann")).id for _ in range(2)]
            await app.adrain()
            [_, mail] = (await app.notifications.aget(sent[0])).routes
            assert (mail.state, mail.mail) == ("sent", "waiting")
            [second, first] = await app.notifications.inbox.alist("ann")
            await app.notifications.inbox.aread("ann", first.id)

            [_, mail] = (await app.notifications.aget(sent[0])).routes
            assert (mail.state, mail.mail, mail.reason) == ("sent", "cancelled", "it was read")
            assert (await app.mail.aget(mail.via)).state == "cancelled"
            [_, other] = (await app.notifications.aget(second.notification)).routes
            assert other.mail == "waiting"

        self.outbox(app, story)

    def test_a_digest_is_called_off_when_everything_in_it_was_read(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox", "mail"], cancel_on_read=True, digest={"mail": "50ms"})

        async def story() -> None:
            sent = [(await app.anotify("paid", "ann")).id for _ in range(2)]

            async def mails() -> set[str | None]:
                found = [await app.notifications.aget(one) for one in sent]
                return {route.mail for one in found for route in one.routes if route.channel == "mail"}

            while await mails() != {"waiting"}:
                await app.atick()
            [second, first] = await app.notifications.inbox.alist("ann")
            await app.notifications.inbox.aread("ann", first.id)
            assert await mails() == {"waiting"}
            await app.notifications.inbox.aread("ann", second.id)
            assert await mails() == {"cancelled"}

        self.outbox(app, story)


class TestRetention:
    def test_what_was_read_long_ago_is_removed_and_what_is_unread_stays(self, timed: Timed) -> None:
        app, inbox = timed.app, timed.app.notifications.inbox
        app.notifications.kind("paid", ["inbox"])
        for _ in range(3):
            app.notify("paid", "ann")
        app.drain()
        [_, archived, read] = inbox.list("ann")
        inbox.read("ann", read.id)
        inbox.archive("ann", archived.id)
        timed.clock.advance(89 * DAY)
        app.tick()
        assert len(inbox.list("ann", archived=True)) == 3
        timed.clock.advance(2 * DAY)
        app.tick()

        assert [one.read for one in inbox.list("ann", archived=True)] == [None]

    @pytest.mark.parametrize(("retention", "left"), [("10d", 0), (None, 1)])
    def test_how_long_can_be_chosen(self, timed: Timed, retention: Any, left: int) -> None:
        app, inbox = timed.app, timed.app.notifications.inbox
        inbox.retention = retention
        app.notifications.kind("paid", ["inbox"])
        app.notify("paid", "ann")
        app.drain()
        inbox.read_all("ann")
        timed.clock.advance(11 * DAY if retention else 1000 * DAY)
        app.tick()

        assert len(inbox.list("ann")) == left
        with pytest.raises(BadOption, match="retention"):
            inbox.retention = "soon"

    def test_the_inbox_of_another_namespace_is_left_alone(self, app: Durably) -> None:
        app.notifications.kind("paid", ["inbox"])
        app.notify("paid", "ann")
        app.drain()
        app.notifications.inbox.read_all("ann")
        with Durably(app.store.address, namespace="other") as other:
            other.notifications.inbox.retention = 0
            other.tick()
            assert len(app.notifications.inbox.list("ann")) == 1
        app.notifications.inbox.retention = 0
        app.tick()
        assert app.notifications.inbox.list("ann") == []

    @pytest.mark.parametrize(("window", "left"), [("1h", 0), ("60d", 1)])
    def test_what_throttling_counted_is_forgotten_when_its_window_is_over(
        self, timed: Timed, window: str, left: int
    ) -> None:
        app = timed.app
        app.notifications.channels["sms"] = Told()
        app.notifications.kind("paid", ["sms"], throttle=f"1/{window}")
        app.notify("paid", "ann")
        app.drain()
        timed.clock.advance(31 * DAY)
        app.tick()
        second = app.notify("paid", "ann")
        app.drain()

        assert states(app.notifications.get(second.id))["ann", "sms"] == ("skipped" if left else "sent")
        assert counted(app) == 1
        timed.clock.advance(62 * DAY)
        app.tick()
        assert counted(app) == 0


def counted(app: Durably) -> int:
    """How many windows somebody remembers."""
    with closing(sqlite3.connect(app.store.address.removeprefix("sqlite:///"))) as own:
        [(number,)] = own.execute("SELECT count(*) FROM durably_throttles")
    return int(number)
