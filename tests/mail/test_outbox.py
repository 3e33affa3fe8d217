"""The outbox: accepted once, with the caller's transaction, listed, resent; and those who get nothing any more."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import closing
from email.message import EmailMessage, Message
from pathlib import Path
from typing import Any

import dkim  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from durably import BadOption, Durably, current
from durably.deliveries import new_key
from durably.mail import Attachment, Dkim
from durably.mail.info import MailInfo
from tests.support.smtp import CLOSE, Script

ANN, BOB, CYD = "ann@x.example", "bob@x.example", "cyd@x.example"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())


@pytest.fixture
def app(app: Durably) -> Durably:
    app.mail.sender = "Shop <shop@here.example>"
    return app


def play(app: Durably, story: Callable[[], Awaitable[None]], **servers: Script) -> None:
    """A story beside servers, each of which is a transport."""

    async def whole() -> None:
        async with asyncio.TaskGroup() as listening:
            over = asyncio.Event()
            for name, server in servers.items():
                ready = asyncio.Event()
                listening.create_task(listen(name, server, ready, over))
                await ready.wait()
            await story()
            await app.aclose()
            over.set()

    async def listen(name: str, server: Script, ready: asyncio.Event, over: asyncio.Event) -> None:
        async with server.listening() as port:
            fallback = "backup" if name == "main" and "backup" in servers else None
            address = f"smtp://127.0.0.1:{port}?tls=none"
            await app.mail.aadd_transport(name, address, schedule=[0, 0], fallback=fallback)
            ready.set()
            await over.wait()

    asyncio.run(whole())


def states(info: MailInfo) -> dict[str, str]:
    return {one.address: one.state for one in info.recipients}


def taken(server: Script) -> list[list[str]]:
    return [recipients for recipients, _ in server.taken]


def test_the_same_key_is_one_mail(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    first = app.mail.send(to=ANN, subject="Hello", text="x", key="order-7")
    second = app.mail.send(to=BOB, subject="Other", text="y", key="order-7")
    other = app.mail.send(to=ANN, subject="Hello", text="x", key="order-8")

    assert (first.new, second.new, other.new) == (True, False, True)
    assert first.id == second.id != other.id
    assert app.mail.get("order-7").about.to == [ANN]
    assert [one.id for one in app.mail.list()] == [other.id, first.id]
    assert len(app.tasks.list()) == 2


def test_a_mail_is_accepted_with_the_callers_transaction_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Durably(f"sqlite:///{path}") as app:
        app.migrate()
        app.mail.add_transport("main", "smtp://mail.example")
        with closing(sqlite3.connect(path, isolation_level=None)) as own:
            for end in ("ROLLBACK", "COMMIT"):
                own.execute("BEGIN IMMEDIATE")
                sent = app.mail.send(
                    sender="shop@here.example", to=ANN, subject=end, text="x", key="order-7", within=own
                )
                assert sent.new
                own.execute(end)

        assert [one.about.subject for one in app.mail.list() if one.about] == ["COMMIT"]


def test_mails_are_listed_by_their_state_and_in_pages(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.7.1 no", "450 4.2.0 later"]})
    sent: list[str] = []
    seen: dict[str, Any] = {}

    async def story() -> None:
        for number in range(3):
            sent.append((await app.mail.asend(to=ANN, subject=f"No. {number}", text="x")).id)
            await app.atick()
        for state in ("sent", "dead", "waiting", "cancelled"):
            seen[state] = [one.id for one in await app.mail.alist(state=state)]
        seen["page"] = [one.id for one in await app.mail.alist(before=sent[2], limit=1)]

    play(app, story, main=server)
    assert seen == {"sent": [sent[0]], "dead": [sent[1]], "waiting": [sent[2]], "cancelled": [], "page": [sent[1]]}
    one = app.mail.list(limit=1)[0]
    assert (one.state, one.transport, one.key) == ("waiting", "main", None)
    assert one.about is not None
    assert (one.about.subject, one.about.sender, one.about.recipients) == ("No. 2", "shop@here.example", 1)


def test_what_cannot_be_listed_is_refused(app: Durably) -> None:
    with pytest.raises(BadOption, match="state: 'gone' must be one of waiting, sent, dead, cancelled"):
        app.mail.list(state="gone")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="before: 'x' is not the id of a mail"):
        app.mail.list(before="x")


def test_a_dead_letter_is_sent_again_to_those_who_did_not_get_it(app: Durably) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.7.1 not from you"]})
    seen: list[MailInfo] = []

    async def story() -> None:
        mail = (await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x")).id
        await app.adrain()
        seen.append(await app.mail.aresend(mail))
        with pytest.raises(BadOption, match="is waiting: only what has come to its end can be sent again"):
            await app.mail.aresend(mail)
        await app.adrain()
        seen.append(await app.mail.aget(mail))

    play(app, story, main=server)
    assert [info.state for info in seen] == ["waiting", "sent"]
    assert taken(server) == [[ANN], [BOB]]
    with pytest.raises(BadOption, match="was sent to everybody: there is nobody to send it to again"):
        app.mail.resend(seen[0].id)


class TestSuppression:
    def test_who_was_left_out_gets_the_mail_once_he_is_off_the_list(self, app: Durably) -> None:
        server = Script({})
        seen: list[MailInfo] = []

        async def story() -> None:
            await app.mail.suppressions.aadd(BOB, "complaint")
            both = (await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x")).id
            alone = (await app.mail.asend(to=BOB, subject="Hello", text="x")).id
            await app.adrain()
            for mail in (both, alone):
                with pytest.raises(BadOption, match=f"would reach nobody: {BOB} is suppressed .* take it off the list"):
                    await app.mail.aresend(mail)
                seen.append(await app.mail.aget(mail))
            await app.mail.suppressions.aremove(BOB)
            for mail in (both, alone):
                await app.mail.aresend(mail)
            await app.adrain()
            for mail in (both, alone):
                seen.append(await app.mail.aget(mail))

        play(app, story, main=server)
        assert [info.state for info in seen] == ["sent", "cancelled", "sent", "sent"]
        assert {one.state for info in seen[2:] for one in info.recipients} == {"sent"}
        assert sorted(taken(server)) == [[ANN], [BOB], [BOB]]

    def test_who_bounced_for_good_gets_no_more_mail(self, app: Durably) -> None:
        server = Script({"RCPT": ["550 5.1.1 nobody here"]})
        seen: list[MailInfo] = []

        async def story() -> None:
            for _ in range(2):
                mail = (await app.mail.asend(to="Ann@X.example", subject="Hello", text="x")).id
                await app.adrain()
                seen.append(await app.mail.aget(mail))

        play(app, story, main=server)
        first, second = seen
        assert (first.state, second.state) == ("dead", "cancelled")
        assert states(second) == {"Ann@X.example": "suppressed"}
        assert second.reason is not None
        assert "bounce: 550 5.1.1 nobody here" in second.reason
        [known] = app.mail.suppressions.get(ANN)
        assert (known.address, known.cause, known.category) == (ANN, "bounce", "")
        assert server.heard.count("DATA") == 0

    def test_who_was_refused_by_policy_gets_mail_again(self, app: Durably) -> None:
        server = Script({"RCPT": ["550 5.7.1 not today"]})

        async def story() -> None:
            await app.mail.asend(to=ANN, subject="Hello", text="x")
            await app.adrain()

        play(app, story, main=server)
        assert app.mail.suppressions.list() == []

    def test_others_still_get_it(self, app: Durably) -> None:
        server = Script()
        app.mail.suppressions.add(BOB, "complaint", note="spam button")
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=server)
        assert seen[0].state == "sent"
        assert states(seen[0]) == {ANN: "sent", BOB: "suppressed"}
        assert taken(server) == [[ANN]]

    def test_who_unsubscribed_from_news_gets_the_rest(self, app: Durably) -> None:
        server = Script()
        assert app.mail.suppressions.add(ANN, "unsubscribe", category="news")
        assert not app.mail.suppressions.add(ANN, "complaint", category="news")

        async def story() -> None:
            for category in ("news", "", "receipts"):
                await app.mail.asend(to=ANN, subject=category or "none", text="x", category=category)
                await app.adrain()

        play(app, story, main=server)
        assert [one.about.subject for one in app.mail.list(state="sent") if one.about] == ["receipts", "none"]

    def test_somebody_can_be_written_to_again(self, app: Durably) -> None:
        for category in ("", "news"):
            app.mail.suppressions.add(ANN, category=category)
        app.mail.suppressions.add(BOB)

        assert [(one.address, one.category) for one in app.mail.suppressions.list()] == [
            (ANN, ""),
            (ANN, "news"),
            (BOB, ""),
        ]
        assert [one.address for one in app.mail.suppressions.list(after=(ANN, "news"), limit=1)] == [BOB]
        assert app.mail.suppressions.remove("ANN@x.example", category="news")
        assert [one.category for one in app.mail.suppressions.get(ANN)] == [""]
        assert app.mail.suppressions.remove(ANN)
        assert not app.mail.suppressions.remove(ANN)

    def test_what_makes_no_sense_is_refused(self, app: Durably) -> None:
        with pytest.raises(BadOption, match="cause: 'whim' must be one of bounce, complaint, unsubscribe, manual"):
            app.mail.suppressions.add(ANN, "whim")  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="address"):
            app.mail.suppressions.add("nobody")


class TestFallback:
    def test_what_a_transport_cannot_take_goes_out_through_another(self, app: Durably) -> None:
        main, backup = Script({"greeting": ["421 not now"]}), Script()
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, subject="Hello", text="x")).id
            await app.atick()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, taken(main), taken(backup)) == ("sent", [], [[ANN]])

    def test_a_wrong_password_pauses_one_and_the_other_goes_on(self, app: Durably) -> None:
        main, backup = Script({"MAIL": ["530 5.7.0 log in first"]}), Script()
        seen: list[str] = []

        async def story() -> None:
            for _ in range(2):
                await app.mail.asend(to=ANN, subject="Hello", text="x")
                await app.atick()
            seen.append((await app.deliveries.destinations.aget("main")).standing)

        play(app, story, main=main, backup=backup)
        assert (seen, taken(main), taken(backup)) == (["disabled"], [], [[ANN], [ANN]])

    def test_what_is_left_when_a_transport_is_gone_for_good_goes_out_through_another(self, app: Durably) -> None:
        main, backup = Script(), Script()

        async def story() -> None:
            gone = await app.deliveries.destinations.aset("main", address="smtp://127.0.0.1:1?tls=none", gone_after=1)
            assert gone.rules.gone_after == 1
            for _ in range(2):
                await app.mail.asend(to=ANN, subject="Hello", text="x")
                await app.adrain()
            assert (await app.deliveries.destinations.aget("main")).standing == "gone"

        play(app, story, main=main, backup=backup)
        assert (taken(main), taken(backup)) == ([], [[ANN], [ANN]])

    def test_what_the_first_may_have_taken_does_not_go_to_the_other(self, app: Durably) -> None:
        main, backup = Script({"dot": [CLOSE]}), Script()

        async def story() -> None:
            await app.mail.asend(to=ANN, subject="Hello", text="x")
            await app.adrain()

        play(app, story, main=main, backup=backup)
        assert (len(main.taken), backup.taken) == (2, [])

    def test_what_the_first_may_have_taken_never_goes_to_the_other_later_on(self, app: Durably) -> None:
        main, backup = Script({"dot": [CLOSE], "greeting": ["220 here", "421 not now"]}), Script()
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, main.connections) == ("sent", 3)
        assert (len(main.taken), backup.taken) == (2, [])

    def test_what_the_first_may_have_taken_waits_while_it_is_paused(self, app: Durably) -> None:
        main, backup = Script({"dot": [CLOSE]}), Script()
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, subject="Hello", text="x")).id
            await app.atick()
            await app.deliveries.destinations.apause("main")
            await app.atick()
            seen.append(await app.mail.aget(mail))
            other = (await app.mail.asend(to=BOB, subject="Hello", text="x")).id
            await app.atick()
            seen.append(await app.mail.aget(other))

        play(app, story, main=main, backup=backup)
        assert [one.state for one in seen] == ["waiting", "sent"]
        assert (taken(main), taken(backup)) == ([[ANN]], [[BOB]])

    def test_what_only_the_other_may_have_taken_goes_there_again(self, app: Durably) -> None:
        main, backup = Script({"greeting": ["421 not now"] * 2}), Script({"dot": [CLOSE]})
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, taken(main), taken(backup)) == ("sent", [], [[ANN], [ANN]])
        assert [one.possible_duplicate for one in seen[0].recipients] == [True]

    def test_whom_the_first_has_refused_the_other_is_not_asked_for(self, app: Durably) -> None:
        main, backup = Script({"RCPT": ["550 5.1.1 nobody here", "421 closing"]}), Script()
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, states(seen[0])) == ("dead", {ANN: "refused", BOB: "sent"})
        assert (taken(main), taken(backup)) == ([], [[BOB]])

    def test_whom_only_the_first_cannot_reach_gets_it_through_the_other(self, app: Durably) -> None:
        main, backup = Script(), Script(offers=["SMTPUTF8", "8BITMIME"])
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, bcc="jörg@x.example", subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, states(seen[0])) == ("sent", {ANN: "sent", "jörg@x.example": "sent"})
        assert (taken(main), taken(backup)) == ([[ANN]], [["jörg@x.example"]])

    def test_that_does_not_wait_for_those_who_are_greylisted(self, app: Durably) -> None:
        main, backup = Script({"RCPT": ["451 4.7.1 greylisted"]}), Script(offers=["SMTPUTF8", "8BITMIME"])
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, bcc="jörg@x.example", subject="Hello", text="x")).id
            await app.atick()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, states(seen[0])) == ("waiting", {ANN: "waiting", "jörg@x.example": "sent"})
        assert (taken(main), taken(backup)) == ([], [["jörg@x.example"]])

    def test_whom_neither_can_reach_is_refused(self, app: Durably) -> None:
        main, backup = Script(), Script()
        seen: list[MailInfo] = []

        async def story() -> None:
            mail = (await app.mail.asend(to=ANN, bcc="jörg@x.example", subject="Hello", text="x")).id
            await app.adrain()
            seen.append(await app.mail.aget(mail))

        play(app, story, main=main, backup=backup)
        assert (seen[0].state, states(seen[0])) == ("dead", {ANN: "sent", "jörg@x.example": "refused"})
        assert (taken(main), taken(backup)) == ([[ANN]], [])

    def test_only_those_go_to_the_other_whom_the_first_has_not_taken(self, app: Durably) -> None:
        main, backup = Script({"RCPT": ["250 fine", "452 4.5.3 too many"], "MAIL": ["250 fine", CLOSE]}), Script()

        async def story() -> None:
            await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x")
            await app.adrain()

        play(app, story, main=main, backup=backup)
        assert sorted([*taken(main), *taken(backup)]) == [[ANN], [BOB]]

    def test_the_fallback_keeps_its_own_rate(self, app: Durably) -> None:
        main, backup = Script({"greeting": ["421 no"] * 9}), Script()

        async def story() -> None:
            await app.deliveries.destinations.aset("backup", rate="1/h")
            for _ in range(3):
                await app.mail.asend(to=ANN, subject="Hello", text="x")
            await app.atick()

        play(app, story, main=main, backup=backup)
        assert taken(backup) == [[ANN]]

    def test_order_and_fallback_exclude_each_other(self, app: Durably) -> None:
        with pytest.raises(BadOption, match=r"fallback: .* needs order='unordered'"):
            app.mail.add_transport("main", "smtp://mail.example", order="fifo", fallback="backup")


class TestDeadLetters:
    def test_a_task_is_told_of_every_mail_that_is_given_up(self, app: Durably) -> None:
        server = Script({"RCPT": ["250 fine", "550 5.7.1 no"]})
        told: list[MailInfo] = []

        @app.task
        async def tell_the_administrator(mail: MailInfo) -> None:
            assert current().attempt == 1
            told.append(mail)

        app.mail.on_dead(tell_the_administrator)

        async def story() -> None:
            await app.mail.asend(to=[ANN, BOB], subject="Hello", text="x", key="order-7")
            await app.adrain()

        play(app, story, main=server)
        [mail] = told
        assert (mail.state, mail.key, states(mail)) == ("dead", "order-7", {ANN: "sent", BOB: "refused"})
        assert mail.reason is not None
        assert mail.reason.startswith("permanent: 1 of 2 recipients were refused: bob@x.example: 550 5.7.1 no")

    def test_a_task_that_cannot_be_told_is_refused(self, app: Durably) -> None:
        @app.task
        async def tell(letter: str) -> None: ...

        with pytest.raises(BadOption, match="on_dead: the task must take one argument `mail`"):
            app.mail.on_dead(tell)


class TestReadyMessages:
    def test_a_message_that_is_ready_is_sent_as_it_is_but_without_bcc(self, app: Durably) -> None:
        message = EmailMessage()
        message["From"], message["To"], message["Bcc"] = "Käthe <kaethe@here.example>", f"Ann <{ANN}>, {BOB}", CYD
        message["Subject"] = "Grüße"
        message.set_content("Hallo")
        server = Script()

        async def story() -> None:
            await app.mail.asend(message)
            await app.adrain()

        play(app, story, main=server)
        [(recipients, source)] = server.taken
        assert recipients == [ANN, BOB, CYD]
        assert b"Bcc" not in source
        assert b"cyd@" not in source
        assert b"Message-ID: <" in source
        assert message["Bcc"] == CYD
        assert b"\n" not in source.replace(b"\r\n", b"")

    def test_the_envelope_can_be_given(self, app: Durably) -> None:
        message = EmailMessage()
        message["From"], message["To"] = "a@here.example", "list@here.example"
        app.mail.add_transport("main", "smtp://mail.example")
        sent = app.mail.send(message, to=[ANN, BOB], sender="bounces@here.example")

        about = app.mail.get(sent.id).about
        assert (about.sender, about.to) == ("bounces@here.example", [ANN, BOB])

    @pytest.mark.parametrize(
        ("options", "refusal"),
        [
            ({"subject": "x"}, "subject: a message that is ready says it itself"),
            ({"context": {}}, "context: a message that is ready"),
            ({"sender": "nobody"}, "sender"),
            ({"subjekt": "x"}, "there is no option subjekt"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, app: Durably, options: Any, refusal: str) -> None:
        message = EmailMessage()
        message["From"], message["To"] = "a@here.example", ANN
        app.mail.add_transport("main", "smtp://mail.example")
        with pytest.raises(BadOption, match=refusal):
            app.mail.send(message, **options)

    def test_headers_that_somebody_has_injected_into_are_refused(self, app: Durably) -> None:
        message = Message()
        message["From"], message["To"], message["Subject"] = "a@here.example", ANN, "x\r\nBcc: eve@evil.example"
        app.mail.add_transport("main", "smtp://mail.example")
        with pytest.raises(BadOption, match=r"Subject: .* must not have line breaks"):
            app.mail.send(message)

    def test_what_is_no_mail_at_all_is_refused(self, app: Durably) -> None:
        app.mail.add_transport("main", "smtp://mail.example")
        with pytest.raises(BadOption, match=r"must be the name of a template, or an email\.message\.EmailMessage"):
            app.mail.send(7)  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="a mail needs to="):
            app.mail.send(subject="x", text="y")
        app.mail.sender = None
        with pytest.raises(BadOption, match="sender: in whose name"):
            app.mail.send(to=ANN, subject="x", text="y")


def test_a_mail_can_be_unsubscribed_from_with_one_click(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    link = "https://shop.example/unsubscribe?t=abc"
    clicked = app.mail.send(to=ANN, subject="News", text="x", unsubscribe=link)
    written = app.mail.send(to=ANN, subject="News", text="x", unsubscribe="mailto:leave@shop.example")

    assert f"List-Unsubscribe: <{link}>\r\n".encode() in app.mail.source(clicked.id)
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in app.mail.source(clicked.id)
    assert b"List-Unsubscribe-Post" not in app.mail.source(written.id)
    for bad in ("http://shop.example/u", "https://shop.example/<x>", "https://a\r\nX: y", 7):
        with pytest.raises(BadOption, match="unsubscribe"):
            app.mail.send(to=ANN, subject="News", text="x", unsubscribe=bad)  # type: ignore[arg-type]


def test_a_mail_that_is_too_big_is_refused(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    with pytest.raises(BadOption, match="this mail takes 27 MB"):
        app.mail.send(to=ANN, subject="x", text="x", attachments=[Attachment("big", bytes(20 * 1024 * 1024))])
    big = app.mail.send(to=ANN, subject="x", text="x", attachments=[Attachment("big", bytes(1024 * 1024))])
    assert len(app.mail.source(big.id)) > 1024 * 1024


def test_what_is_sent_is_signed_for_the_domain_of_its_author(app: Durably) -> None:
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = serialization.load_pem_private_key(pem, None).public_key()
    record = b"v=DKIM1; k=rsa; p=" + b64encode(
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    app.mail.configure(dkim=Dkim("here.example", "mail", pem))
    server = Script()

    async def story() -> None:
        await app.mail.asend(to=ANN, subject="Grüße", text="Hallo", unsubscribe="https://here.example/u")
        await app.mail.asend(to=ANN, subject="Hello", text="x", sender="shop@elsewhere.example")
        await app.adrain()

    play(app, story, main=server)
    signed, unsigned = sorted((source for _, source in server.taken), key=lambda one: b"elsewhere" in one)
    assert signed.startswith(b"DKIM-Signature: ")
    assert dkim.verify(signed.removesuffix(b".\r\n"), dnsfunc=lambda name, **_: record)
    assert b"DKIM-Signature" not in unsigned


def test_a_domain_is_written_as_dns_has_it(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    about = app.mail.get(app.mail.send(to="Ann <ann@bücher.example>", subject="x", text="x").id).about

    assert about.to == ["ann@xn--bcher-kva.example"]
    with pytest.raises(BadOption, match="is not an address"):
        app.mail.send(to=f"ann@{'ü' * 80}.example", subject="x", text="x")


def test_an_encoded_subject_is_shown_as_people_read_it(app: Durably) -> None:
    app.mail.add_transport("main", "smtp://mail.example")
    message = Message()
    message["From"], message["To"], message["Subject"] = "a@here.example", ANN, "=?utf-8?q?Gr=C3=BC=C3=9Fe?="

    assert app.mail.get(app.mail.send(message).id).about.subject == "Grüße"


def test_the_password_in_an_address_is_refused_and_not_shown(app: Durably) -> None:
    for address in ("smtp://u:hunter2@host:999999", "smtp://u:hunter2@host", "smtps://u:hunter2@"):
        with pytest.raises(BadOption) as refused:
            app.mail.add_transport("main", address)
        assert "hunter2" not in str(refused.value)


def test_many_threads_may_ask_for_it_first(tmp_path: Path) -> None:
    for number in range(10):
        with Durably(f"sqlite:///{tmp_path / str(number)}.db") as app:
            begin = threading.Barrier(4)
            found: set[int] = set()

            def ask(app: Durably = app, begin: threading.Barrier = begin, found: set[int] = found) -> None:
                begin.wait()
                found.add(id(app.notifications))
                found.add(-id(app.mail))

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 2
