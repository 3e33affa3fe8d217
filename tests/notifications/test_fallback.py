"""When another channel is tried: only where it is certain that the first reaches nobody, and then whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.mail.info import MailInfo
from durably.notifications.channel import Note
from durably.notifications.people import Person
from durably.stores.operations.deliver import hurry
from tests.notifications.test_digests import Timed, timed
from tests.notifications.test_notifications import PEOPLE, Told, states
from tests.support.smtp import Script

__all__ = ["timed"]
ADDRESS = "ann@x.example"


@pytest.fixture
def sms() -> Told:
    return Told()


@pytest.fixture
def app(app: Durably, sms: Told) -> Durably:
    app.notifications.resolver(PEOPLE.get)
    app.notifications.channels["sms"] = sms
    app.mail.sender = "Shop <shop@here.example>"
    return app


def deliver(app: Durably, server: Script, *stories: Callable[[], Awaitable[Any]]) -> None:
    """Bring what waits to a server, and what each of these does then."""

    async def whole() -> None:
        async with server.listening() as port:
            await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", schedule=[0])
            await app.adrain()
            for story in stories:
                await story()
                await app.adrain()
            await app.aclose()

    asyncio.run(whole())


class TestMail:
    def test_a_mail_whose_attempts_are_used_up_does_not_fall_back(self, app: Durably, sms: Told) -> None:
        server = Script({"dot": ["451 4.3.0 try later"] * 9})
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        deliver(app, server)

        [route, *others] = app.notifications.get(sent.id).routes
        assert (route.state, route.mail) == ("sent", "dead")
        assert "attempts exhausted (2)" in route.reason
        assert (others, sms.notes) == ([], [])

    def test_a_mail_to_an_address_that_bounced_before_falls_back(self, app: Durably, sms: Told) -> None:
        server = Script({"RCPT": ["550 5.1.1 nobody here"]})
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        app.notify("paid", "ann", {"n": 1})
        deliver(app, server, lambda: app.anotify("paid", "ann", {"n": 2}))

        assert [note.data for note in sms.notes] == [{"n": 1}, {"n": 2}]
        second = app.notifications.list()[0]
        assert states(second) == {("ann", "mail"): "sent", ("ann", "sms"): "sent"}
        assert second.routes[0].mail == "cancelled"
        assert "suppressed since" in second.routes[0].reason

    @pytest.mark.parametrize("cause", ["unsubscribe", "complaint", "manual"])
    def test_who_wants_no_mail_gets_nothing_instead_of_it(self, app: Durably, sms: Told, cause: Any) -> None:
        app.mail.suppressions.add(ADDRESS, cause)
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        deliver(app, Script())

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.mail) == ("sent", "cancelled")
        assert sms.notes == []

    def test_an_address_that_is_none_falls_back_at_once_and_is_not_doubtful(self, app: Durably, sms: Told) -> None:
        app.notifications.resolver(lambda recipient: Person(addresses={"mail": "not an address", "sms": "+1"}))
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        deliver(app, Script())

        [mail, other] = app.notifications.get(sent.id).routes
        assert (mail.state, mail.attempt, mail.possible_duplicate) == ("dead", 1, False)
        assert mail.reason.startswith("permanent: to: ")
        assert (other.channel, other.state) == ("sms", "sent")

    @pytest.mark.parametrize("missing", ["sender", "transport"])
    def test_what_only_we_can_repair_is_waited_for(self, app: Durably, sms: Told, missing: str) -> None:
        if missing == "sender":
            app.mail.add_transport("main", "console:")
            app.mail.sender = None
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        sent = app.notify("paid", "ann")
        app.drain()

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.possible_duplicate, sms.notes) == ("pending", False, [])

    @pytest.mark.parametrize("channel", ["mail", "sms"])
    def test_a_template_that_cannot_say_it_is_a_dead_letter_at_once(self, app: Durably, channel: str) -> None:
        app.mail.templates.put("paid", subject="{{ amount.digits.first }}", text="Thanks")
        app.notifications.kind("paid", [channel], templates={channel: "paid"})
        sent = app.notify("paid", "ann", {"amount": 7})
        deliver(app, Script())

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.attempt, route.possible_duplicate) == ("dead", 1, False)
        assert route.reason.startswith("permanent: template 'paid' (subject")


class TestHook:
    """The administrator is told of every dead mail, whatever becomes of those who follow it."""

    @pytest.fixture
    def told(self, app: Durably) -> list[str]:
        told: list[str] = []

        @app.task
        async def tell(mail: MailInfo) -> None:
            told.append(mail.about.subject)

        app.mail.on_dead(tell)
        return told

    def test_it_is_told_although_the_kind_is_not_declared_any_more(self, app: Durably, told: list[str]) -> None:
        mail = app.notifications.channels["mail"]

        class Last:
            """Sends a mail, after which nobody knows the kind any more."""

            async def send(self, note: Note) -> Outcome | None:
                del app.notifications.kinds._kinds["paid"]
                return await mail.send(note)

        app.notifications.channels["mail"] = Last()
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        app.notify("paid", "ann", {"title": "Order 7"})
        deliver(app, Script({"RCPT": ["550 5.1.1 nobody here"]}))

        assert told == ["Order 7"]

    def test_it_is_told_although_a_follower_raises(
        self, app: Durably, sms: Told, told: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(task: str, reason: str) -> None:
            raise ValueError("oops")

        fall_back = app.notifications.router.fall_back
        monkeypatch.setattr(app.notifications.router, "fall_back", broken)
        app.notifications.kind("paid", ["mail"], fallback={"mail": "sms"})
        app.notify("paid", "ann", {"title": "Order 7"})

        async def repair() -> None:
            assert (told, sms.notes) == (["Order 7"], [])
            monkeypatch.setattr(app.notifications.router, "fall_back", fall_back)
            waiting = [task.id for task in await app.tasks.alist() if task.name == "durably.undelivered"]
            await app.store.arun(hurry(waiting))

        deliver(app, Script({"RCPT": ["550 5.1.1 nobody here"]}), repair)

        assert (told, [note.recipient for note in sms.notes]) == (["Order 7"], ["ann"])


class TestNoAddress:
    def test_who_has_no_address_for_a_channel_is_reached_over_its_fallback(self, app: Durably, sms: Told) -> None:
        app.notifications.channels.update(push=Told(), pager=Told())
        app.notifications.kind("alarm", ["push"], critical=True, fallback={"push": "pager", "pager": "sms"})
        sent = app.notify("alarm", "bob")
        app.drain()

        found = app.notifications.get(sent.id)
        assert states(found) == {("bob", "push"): "skipped", ("bob", "pager"): "skipped", ("bob", "sms"): "sent"}
        assert {one.reason for one in found.routes} == {"", "no address for push", "no address for pager"}

    def test_who_is_unknown_or_does_not_want_it_is_not_reached_another_way(self, app: Durably, sms: Told) -> None:
        app.notifications.channels["push"] = Told()
        app.notifications.kind("paid", ["push"], fallback={"push": "sms"})
        app.notifications.preferences.set("ann", False, channel="push")
        sent = [app.notify("paid", who).id for who in ("ann", "zoe")]
        app.drain()

        assert [list(states(app.notifications.get(one)).values()) for one in sent] == [["skipped"], ["skipped"]]
        assert sms.notes == []

    def test_a_digest_for_whom_there_is_no_address_any_more_falls_back(self, timed: Timed) -> None:
        app, people = timed.app, {"ann": Person(addresses={"push": "p", "sms": "+1"})}
        app.notifications.resolver(people.get)
        app.notifications.channels["push"] = Told()
        app.notifications.kind("comment", ["push"], digest={"push": "1h"}, fallback={"push": "sms"})
        for number in range(2):
            app.notify("comment", "ann", {"n": number})
        app.drain()
        people["ann"] = Person(addresses={"sms": "+1"})
        timed.clock.advance(3601)
        app.drain()

        assert sorted(note.data["n"] for note in timed.sms.notes) == [0, 1]


def test_a_channel_whose_attempts_are_used_up_does_not_fall_back(timed: Timed) -> None:
    app = timed.app
    app.notifications.channels["push"] = Told(*[Outcome(kind=Kind.TRANSIENT, reason="no net")] * 20)
    app.notifications.kind("paid", ["push"], fallback={"push": "sms"})
    sent = app.notify("paid", "ann").id
    for _ in range(12):
        app.drain()
        timed.clock.advance(900)

    assert states(app.notifications.get(sent)) == {("ann", "push"): "dead"}
    assert timed.sms.notes == []
