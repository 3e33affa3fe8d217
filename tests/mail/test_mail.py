"""Mail from acceptance to the last recipient: a real worker, and a server that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from durably import BadOption, Durably, UnknownTask
from durably.core.delivery import Outcome
from durably.core.lifecycle import lapse
from durably.deliveries import new_key
from durably.deliveries.channel import Channel, Delivery
from durably.mail.info import MailInfo
from durably.mail.sifted import Sifted
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.sweep import open_session
from tests.support.receivers import NAMES, certificate
from tests.support.smtp import CLOSE, Script

ANN, BOB, CYD = "ann@x.example", "bob@x.example", "cyd@x.example"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())


def with_server(app: Durably, server: Script, story: Callable[[], Awaitable[None]], **options: Any) -> None:
    """Play a story beside a server, which is the transport `main`."""

    async def whole() -> None:
        async with server.listening() as port:
            address = f"smtp://127.0.0.1:{port}?tls=none"
            await app.mail.aadd_transport("main", address, **{"schedule": [0, 0, 0], **options})
            await story()
            await app.aclose()

    asyncio.run(whole())


def states(info: MailInfo) -> dict[str, str]:
    return {one.address: one.state for one in info.recipients}


def test_a_mail_reaches_everybody_and_each_of_them_is_known(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "450 4.2.0 later", "550 5.1.1 unknown"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(
            sender="Shop <shop@here.example>", to=[ANN, BOB], cc=CYD, subject="Hello", text="It is there."
        )
        seen.append(await app.mail.aget(mail.id))
        await app.atick()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    before, after = seen
    assert states(before) == {ANN: "waiting", BOB: "waiting", CYD: "waiting"}
    assert states(after) == {ANN: "sent", BOB: "waiting", CYD: "refused"}
    assert {one.address: one.said for one in after.recipients}[CYD] == "550 5.1.1 unknown"
    assert after.reason is not None
    assert after.reason.startswith(f"1 of 3 recipients wait: {BOB}: 450 4.2.0 later")


def test_a_replay_goes_only_to_those_who_do_not_have_it(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.1.1 unknown"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))
        assert await app.mail.suppressions.aremove(BOB)
        assert await app.dead.areplay(destination="main") == 1
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    assert [(info.state, states(info)) for info in seen] == [
        ("dead", {ANN: "sent", BOB: "refused"}),
        ("sent", {ANN: "sent", BOB: "sent"}),
    ]
    assert [recipients for recipients, _ in server.taken] == [[ANN], [BOB]]


def test_a_mail_whose_answer_never_came_is_sent_again_with_the_same_id_and_marked(app: Durably) -> None:
    server = Script({"dot": [CLOSE]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=ANN, subject="Hello", text="It is there.")
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    [info] = seen
    assert (info.state, states(info)) == ("sent", {ANN: "sent"})
    assert [one.possible_duplicate for one in info.recipients] == [True]
    first, second = (source for _, source in server.taken)
    assert first == second


def test_only_who_may_have_it_twice_is_marked(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "452 4.5.3 too many"], "dot": ["250 fine", CLOSE]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        await app.atick()
        seen.append(await app.mail.aget(mail.id))
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    assert [info.state for info in seen] == ["waiting", "sent"]
    for info in seen:
        assert {one.address: one.possible_duplicate for one in info.recipients} == {ANN: False, BOB: True}
    assert [recipients for recipients, _ in server.taken] == [[ANN], [BOB], [BOB]]


class Falters:
    """A channel that does its work, but cannot say so the first time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls = 0

    async def deliver(self, delivery: Delivery) -> Outcome:
        found = await self._channel.deliver(delivery)
        self._calls += 1
        if self._calls == 1:
            raise RuntimeError("no memory")
        return found


def test_whoever_an_interrupted_attempt_may_have_reached_is_marked(app: Durably) -> None:
    server = Script({"RCPT": ["550 5.7.1 no"]})
    smtp = app.deliveries.channels["smtp"]
    assert isinstance(smtp, Sifted)
    smtp.channel = Falters(smtp.channel)
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        await app.atick()
        seen.append(await app.mail.aget(mail.id))
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    assert [states(info) for info in seen] == [{ANN: "waiting", BOB: "waiting"}, {ANN: "sent", BOB: "sent"}]
    assert [one.possible_duplicate for info in seen for one in info.recipients] == [True] * 4
    assert [recipients for recipients, _ in server.taken] == [[BOB], [ANN, BOB]]


def test_a_replay_that_dies_with_its_worker_is_still_one_and_marks_whom_it_may_have_reached(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.7.1 no", "452 4.2.2 mailbox full"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB, CYD], subject="Hello", text="x")
        await app.adrain()
        await app.mail.aresend(mail.id)
        await app.store.arun(open_session("doomed", 60_000_000, "host", 1, "{}"))
        held = (await app.store.arun(claim("doomed", ("deliveries",), 1))).tasks
        await app.store.arun(commit([lapse(task) for task in held]))
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story, schedule=[])
    assert (seen[0].state, states(seen[0])) == ("sent", {ANN: "sent", BOB: "sent", CYD: "sent"})
    assert [one.possible_duplicate for one in seen[0].recipients] == [False, True, True]
    assert [recipients for recipients, _ in server.taken] == [[ANN], [BOB, CYD]]


def test_who_is_greylisted_is_not_asked_for_with_the_others(app: Durably) -> None:
    server = Script({"RCPT": ["451 4.7.1 greylisted", "452 4.2.2 mailbox full"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        for _ in range(3):
            await app.atick()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story, jitter=0)
    [info] = seen
    assert [recipients for recipients, _ in server.taken] == [[BOB]]
    assert states(info) == {ANN: "waiting", BOB: "sent"}
    assert info.info is not None
    assert info.info.attempt == 2
    assert info.info.due_at is not None
    assert 240 < (info.info.due_at - info.accepted).total_seconds() < 400


def test_a_refusal_stands_when_the_transport_makes_the_others_wait(app: Durably) -> None:
    server = Script({"RCPT": ["550 5.7.1 no", "530 5.7.0 log in"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        await app.atick()
        await app.deliveries.destinations.aresume("main")
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    assert (seen[0].state, states(seen[0])) == ("dead", {ANN: "refused", BOB: "sent"})
    assert [recipients for recipients, _ in server.taken] == [[BOB]]


def test_whoever_does_not_have_it_is_asked_for_by_a_replay_also_beside_others_who_wait(app: Durably) -> None:
    server = Script({"RCPT": ["550 5.7.1 no", "452 4.2.2 mailbox full"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=[ANN, BOB], subject="Hello", text="It is there.")
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))
        seen.append(await app.mail.aresend(mail.id))
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story, schedule=[])
    assert [(info.state, states(info)) for info in seen] == [
        ("dead", {ANN: "refused", BOB: "given up"}),
        ("waiting", {ANN: "waiting", BOB: "waiting"}),
        ("sent", {ANN: "sent", BOB: "sent"}),
    ]
    # A replay begins a cycle of attempts; the number that people see goes on.
    assert [(info.info.attempt, info.info.spent) for info in seen if info.info] == [(1, 1), (1, 0), (2, 1)]


def test_who_is_refused_after_an_attempt_without_an_answer_may_have_it_and_is_marked(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.7.1 no"], "dot": [CLOSE]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = await app.mail.asend(sender="shop@here.example", to=ANN, subject="Hello", text="It is there.")
        await app.adrain()
        seen.append(await app.mail.aget(mail.id))

    with_server(app, server, story)
    [info] = seen
    assert (info.state, states(info)) == ("dead", {ANN: "refused"})
    assert [one.possible_duplicate for one in info.recipients] == [True]
    assert len(server.taken) == 1


def test_a_password_that_is_wrong_pauses_the_transport_and_bounces_nobody(app: Durably) -> None:
    server = Script({"AUTH": ["535 5.7.8 wrong"]}, offers=["AUTH PLAIN"])
    seen: list[Any] = []

    async def story() -> None:
        await app.deliveries.destinations.aforget("main")
        port = server.port
        await app.mail.aadd_transport("main", f"smtp://shop@127.0.0.1:{port}?tls=none", password="s3cret")
        mail = await app.mail.asend(sender="shop@here.example", to=ANN, subject="Hello", text="It is there.")
        await app.atick()
        seen.append((await app.deliveries.destinations.aget("main")).standing)
        seen.append(states(await app.mail.aget(mail.id)))

    with_server(app, server, story)
    assert seen == ["disabled", {ANN: "waiting"}]
    assert server.taken == []


def test_a_certificate_that_is_not_believed_suspends_the_transport_and_bounces_nobody(app: Durably) -> None:
    made = certificate(NAMES)
    server = Script(tls=made.server_context())
    seen: list[Any] = []
    told: list[str] = []

    async def story() -> None:
        await app.deliveries.destinations.aforget("main")
        await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{server.port}", schedule=[0])
        app.events.subscribe(lambda event: told.append(event.kind))
        mail = await app.mail.asend(sender="shop@here.example", to=ANN, subject="Hello", text="It is there.")
        await app.adrain()
        seen.append((await app.deliveries.destinations.aget("main")).standing)
        seen.append((await app.mail.aget(mail.id)).state)
        app.mail.configure(trust=made.client_context())
        await app.deliveries.destinations.aresume("main")
        await app.adrain()
        seen.append((await app.mail.aget(mail.id)).state)

    with_server(app, server, story)
    assert seen == ["suspended", "waiting", "sent"]
    assert told.count("destination_alarming") == 2


def test_a_password_can_be_changed(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://shop@mail.example", password="old")
    destinations = app.deliveries.destinations

    assert destinations.rotate("main", "new") == "new"
    assert destinations.secrets("main") == ("new",)
    with pytest.raises(BadOption, match="secret: 'main' needs a password"):
        destinations.rotate("main")


def test_a_password_can_be_given_later(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://shop@mail.example")
    destinations = app.deliveries.destinations

    with pytest.raises(BadOption, match="secret: 'main' needs a password"):
        destinations.rotate("main")
    assert destinations.rotate("main", "s3cret") == "s3cret"
    assert destinations.secrets("main") == ("s3cret",)


def test_a_transport_that_is_away_for_weeks_is_not_gone(app: Durably) -> None:
    assert app.mail.add_transport("main", "smtp://mail.example").rules.gone_after is None
    assert app.mail.add_transport("other", "smtp://mail.example", gone_after=3).rules.gone_after == 3


def test_what_is_no_mail_is_refused_and_what_there_is_not_is_said(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    with pytest.raises(BadOption, match="to"):
        app.mail.send(sender="shop@here.example", to=[], subject="Hello", text="x")
    with pytest.raises(BadOption, match="transport: there is no 'other'; add it first"):
        app.mail.send(sender="shop@here.example", to=ANN, subject="Hello", text="x", transport="other")
    with pytest.raises(BadOption, match="transport"):
        app.mail.add_transport("worse", "https://mail.example")
    with pytest.raises(UnknownTask):
        app.mail.get("0190a5d1-ac96-774b-bcce-b302099a8057")


def test_a_transport_is_patient(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    rules = app.deliveries.destinations.get("main").rules

    assert (rules.order, rules.schedule[:3], rules.schedule[-1], rules.jitter) == (
        "unordered",
        (5.0, 10.0, 20.0),
        3600.0,
        0.25,
    )
