"""The SMTP channel against servers that refuse, break off, fall silent and lie; and against a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from durably.core.delivery import Destination, Kind, Message, Outcome, Rules
from durably.deliveries.channel import Delivery
from durably.errors import BadOption
from durably.mail.letter import Letter
from durably.mail.session import LONGEST_LIFE, MOST_MAILS
from durably.mail.smtp import Smtp
from tests.support.receivers import NAMES, certificate
from tests.support.smtp import CLOSE, HANG, Script

ANN, BOB, CYD = "ann@x.example", "bob@x.example", "cyd@x.example"
JOERG = "jörg@x.example"
SOURCE = b"Subject: Hello\r\n\r\n.leading dot\r\nIt is there.\r\n"


@pytest.fixture(autouse=True, params=["one by one", "pipelined"])
def manner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server is talked to command by command, and several commands at once."""
    monkeypatch.setattr(Script, "extensions", ["PIPELINING"] if request.param == "pipelined" else [])


@pytest.fixture
async def smtp() -> AsyncIterator[Smtp]:
    channel = Smtp(hostname="here.example")
    yield channel
    await channel.aclose()


async def send(
    smtp: Smtp,
    port: int,
    *recipients: str,
    before: Any = None,
    query: str = "?tls=none",
    user: str = "",
    secrets: tuple[str, ...] = (),
    within: float = 20.0,
    scheme: str = "smtp",
    source: bytes = SOURCE,
    now: float = 0.0,
) -> Outcome:
    body = msgspec.msgpack.encode(Letter("shop@here.example", list(recipients) or [ANN], source))
    destination = Destination(
        "default", "main", "smtp", f"{scheme}://{user}127.0.0.1:{port}{query}", Rules(timeout=within)
    )
    return await smtp.deliver(Delivery("t", 1, Message("m", "mail", body), destination, secrets, now=now, kept=before))


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be later for everything on this event loop."""
    loop = asyncio.get_running_loop()
    before = loop.time
    monkeypatch.setattr(loop, "time", lambda: before() + seconds)


def named(server: Script) -> list[str]:
    """The recipients whom a server was asked for, in turn."""
    return [line.partition("<")[2].rstrip(">") for line in server.heard if line.startswith("RCPT")]


def states(outcome: Outcome) -> dict[str, str]:
    return {address: one.get("state", "waiting") for address, one in outcome.kept.items()}


async def test_a_mail_is_sent_as_it_is_with_its_dots(smtp: Smtp) -> None:
    server = Script()
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB)

    assert (found.kind, states(found)) == (Kind.OK, {ANN: "sent", BOB: "sent"})
    [(recipients, source)] = server.taken
    assert recipients == [ANN, BOB]
    assert source == SOURCE.replace(b"\r\n.", b"\r\n..") + b".\r\n"
    assert server.heard[:2] == ["EHLO here.example", "MAIL FROM:<shop@here.example>"]


async def test_connections_are_used_again_after_a_reset(smtp: Smtp) -> None:
    server = Script()
    async with server.listening() as port:
        for _ in range(3):
            assert (await send(smtp, port)).kind is Kind.OK

    assert server.connections == 1
    assert server.heard.count("RSET") == 2


async def test_a_connection_is_replaced_after_many_mails(smtp: Smtp) -> None:
    server = Script()
    async with server.listening() as port:
        for _ in range(MOST_MAILS + 1):
            await send(smtp, port)

    assert (server.connections, len(server.taken)) == (2, MOST_MAILS + 1)


async def test_a_connection_is_replaced_after_some_minutes(smtp: Smtp, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Script()
    async with server.listening() as port:
        await send(smtp, port)
        pass_time(LONGEST_LIFE - 60, monkeypatch)
        await send(smtp, port)
        assert server.connections == 1
        pass_time(61, monkeypatch)
        await send(smtp, port)

    assert (server.connections, len(server.taken)) == (2, 3)


async def test_a_kept_connection_that_has_ended_costs_nothing(smtp: Smtp) -> None:
    server = Script({"RSET": [CLOSE]})
    async with server.listening() as port:
        await send(smtp, port)
        found = await send(smtp, port)

    assert (found.kind, server.connections, len(server.taken)) == (Kind.OK, 2, 2)


async def test_some_recipients_are_refused_and_the_others_get_it(smtp: Smtp) -> None:
    server = Script({"RCPT": ["250 fine", "550 5.1.1 unknown", "450 4.2.0 greylisted"]})
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB, CYD)
        again = await send(smtp, port, ANN, BOB, CYD, before=found.kept)

    assert (found.kind, found.retry_after) == (Kind.TRANSIENT, 300.0)
    assert named(server) == [ANN, BOB, CYD, CYD]
    assert states(found) == {ANN: "sent", BOB: "refused", CYD: "waiting"}
    assert found.kept[BOB]["suppress"]
    assert (again.kind, states(again)) == (Kind.PERMANENT, {ANN: "sent", BOB: "refused", CYD: "sent"})
    assert again.reason == f"1 of 3 recipients were refused: {BOB}: 550 5.1.1 unknown"
    assert [recipients for recipients, _ in server.taken] == [[ANN], [CYD]]


async def test_who_is_greylisted_is_left_alone_while_others_are_tried(smtp: Smtp) -> None:
    server = Script({"RCPT": ["451 4.7.1 greylisted", "452 4.2.2 mailbox full", "452 4.2.2 mailbox full"]})
    async with server.listening() as port:
        first = await send(smtp, port, ANN, BOB, now=1000.0)
        second = await send(smtp, port, ANN, BOB, before=first.kept, now=1005.0)
        third = await send(smtp, port, ANN, BOB, before=second.kept, now=1015.0)
        last = await send(smtp, port, ANN, BOB, before=third.kept, now=1305.0)

    assert named(server) == [ANN, BOB, BOB, BOB, ANN]
    assert (first.retry_after, second.retry_after) == (None, None)
    assert third.retry_after is not None
    assert 285.0 <= third.retry_after < 290.0
    assert third.kept[ANN]["said"] == "451 4.7.1 greylisted"
    assert last.kind is Kind.OK


async def test_who_is_greylisted_stays_so_although_the_connection_is_lost(smtp: Smtp) -> None:
    server = Script({"RCPT": ["451 4.7.1 greylisted", "421 4.3.2 closing"]})
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB, now=1000.0)
        again = await send(smtp, port, ANN, BOB, before=found.kept, now=1005.0)

    assert (found.kind, found.breaks, found.retry_after) == (Kind.TRANSIENT, True, None)
    assert found.kept[ANN]["said"] == "451 4.7.1 greylisted"
    assert found.kept[BOB]["said"] == "421 4.3.2 closing"
    assert named(server)[-1] == BOB
    assert states(again) == {ANN: "waiting", BOB: "sent"}


async def test_a_wait_that_a_wrong_clock_has_asked_for_keeps_nobody_waiting(smtp: Smtp) -> None:
    server = Script()
    before = {ANN: {"said": "451 4.7.1 greylisted", "until": 999_999.0}, BOB: {}}
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB, before=before, now=1000.0)

    assert (found.kind, named(server)) == (Kind.OK, [ANN, BOB])


async def test_those_for_whom_there_is_no_room_get_it_in_another_transaction(smtp: Smtp) -> None:
    server = Script({"RCPT": ["250 fine", "250 fine", "452 4.5.3 too many"]})
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB, CYD)

    assert found.kind is Kind.OK
    assert [recipients for recipients, _ in server.taken] == [[ANN, BOB], [CYD]]


async def test_nobody_is_forgotten_behind_the_first_for_whom_there_is_no_room(smtp: Smtp) -> None:
    server = Script({"RCPT": ["250 fine", "452 4.5.3 too many"]})
    everyone = [ANN, BOB, CYD, "dan@x.example"]
    async with server.listening() as port:
        found = await send(smtp, port, *everyone)

    assert (found.kind, set(states(found).values())) == (Kind.OK, {"sent"})
    assert sorted(one for recipients, _ in server.taken for one in recipients) == everyone


async def test_a_server_that_wants_the_source_although_it_refused_everybody_gets_nothing(smtp: Smtp) -> None:
    server = Script({"RCPT": ["550 5.7.1 no"]})
    async with server.listening() as port:
        found = await send(smtp, port)
        again = await send(smtp, port)

    assert (found.kind, again.kind, server.connections) == (Kind.PERMANENT, Kind.OK, 1)
    assert len(server.taken) == 1


async def test_a_server_that_has_no_room_for_anybody_is_asked_later(smtp: Smtp) -> None:
    server = Script({"RCPT": ["452 4.5.3 too many"]})
    async with server.listening() as port:
        found = await send(smtp, port)

    assert (found.kind, states(found), server.taken) == (Kind.TRANSIENT, {ANN: "waiting"}, [])


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"greeting": ["421 busy"]}, Kind.TRANSIENT),
        ({"greeting": ["554 no service"]}, Kind.TRANSIENT),
        ({"greeting": [CLOSE]}, Kind.TRANSIENT),
        ({"greeting": ["HTTP/1.1 400 Bad Request"]}, Kind.TRANSIENT),
        ({"greeting": ["x" * 100_000]}, Kind.TRANSIENT),
        ({"EHLO": ["421 bye"]}, Kind.TRANSIENT),
        ({"EHLO": ["502 what?"], "HELO": ["502 what?"]}, Kind.TRANSIENT),
        ({"EHLO": ["502 what?"]}, Kind.OK),
        ({"EHLO": [CLOSE]}, Kind.TRANSIENT),
        ({"EHLO": ["250-" + "\r\n250-".join("x" * 500 for _ in range(1000)) + "\r\n250 end"]}, Kind.TRANSIENT),
        ({"MAIL": ["451 later"]}, Kind.TRANSIENT),
        ({"MAIL": ["550 5.7.1 not you"]}, Kind.PERMANENT),
        ({"MAIL": ["530 5.7.0 log in"]}, Kind.MISCONFIGURED),
        ({"MAIL": ["421 bye"]}, Kind.TRANSIENT),
        ({"MAIL": [CLOSE]}, Kind.TRANSIENT),
        ({"RCPT": [CLOSE]}, Kind.TRANSIENT),
        ({"RCPT": ["421 bye"]}, Kind.TRANSIENT),
        ({"RCPT": ["550 5.7.1 policy"]}, Kind.PERMANENT),
        ({"DATA": ["451 later"]}, Kind.TRANSIENT),
        ({"DATA": ["554 no"]}, Kind.PERMANENT),
        ({"DATA": [CLOSE]}, Kind.TRANSIENT),
        ({"DATA": ["421 bye"]}, Kind.TRANSIENT),
        ({"DATA": ["250 fine"]}, Kind.TRANSIENT),
        ({"DATA": ["334 go on"]}, Kind.TRANSIENT),
        ({"MAIL": ["354 go on"]}, Kind.TRANSIENT),
        ({"RCPT": ["250-" + "\r\n250-".join("x" * 500 for _ in range(1000))]}, Kind.TRANSIENT),
        ({"RCPT": ["250-fine\r\n550 no"]}, Kind.TRANSIENT),
        ({"source": ["421 4.3.2 closing"]}, Kind.TRANSIENT),
        ({"source": ["554 5.3.4 too big"]}, Kind.PERMANENT),
        ({"source": ["250 fine"]}, Kind.UNKNOWN),
        ({"source": [CLOSE]}, Kind.UNKNOWN),
        ({"dot": ["451 later"]}, Kind.TRANSIENT),
        ({"dot": ["554 5.7.1 spam"]}, Kind.PERMANENT),
        ({"dot": ["421 bye"]}, Kind.TRANSIENT),
        ({"dot": [CLOSE]}, Kind.UNKNOWN),
        ({"dot": ["nonsense"]}, Kind.UNKNOWN),
        ({"dot": ["354 go on"]}, Kind.UNKNOWN),
    ],
    ids=lambda given: str(given)[:50] if isinstance(given, dict) else str(given),
)
async def test_whatever_a_server_does_is_an_outcome(smtp: Smtp, answers: dict[str, list[str]], kind: Kind) -> None:
    server = Script(answers)
    async with server.listening() as port:
        found = await send(smtp, port, source=SOURCE + b"More.\r\n" * (2_000_000 if "source" in answers else 1))

    assert found.kind is kind, found
    assert found.reason
    assert bool(server.taken) >= (found.kind is Kind.OK)


async def test_nobody_is_judged_by_replies_that_are_out_of_step(smtp: Smtp) -> None:
    server = Script({"MAIL": ["250 fine\r\n250 and fine again"], "RCPT": ["550 5.1.1 unknown", "250 fine"]})
    async with server.listening() as port:
        found = await send(smtp, port, ANN, BOB)

    assert (found.kind, states(found)) == (Kind.TRANSIENT, {ANN: "waiting", BOB: "waiting"})
    assert server.taken == []


@pytest.mark.parametrize(
    "answers",
    [
        {"dot": ["421 4.3.2 closing"]},
        {"dot": ["354 go on"]},
        {"DATA": ["250 fine"]},
        {"source": ["554 5.3.4 too big"]},
    ],
    ids=str,
)
async def test_a_connection_is_not_used_again_after_that(smtp: Smtp, answers: dict[str, list[str]]) -> None:
    server = Script(answers)
    async with server.listening() as port:
        found = await send(smtp, port, source=SOURCE + b"More.\r\n" * (2_000_000 if "source" in answers else 1))
        again = await send(smtp, port)

    assert (found.breaks, again.kind) == ("source" not in answers, Kind.OK)
    assert (server.connections, server.heard.count("RSET")) == (2, 0)


@pytest.mark.parametrize(
    ("stage", "kind"), [("greeting", Kind.TRANSIENT), ("RCPT", Kind.TRANSIENT), ("dot", Kind.UNKNOWN)]
)
async def test_a_server_that_falls_silent_is_given_up(smtp: Smtp, stage: str, kind: Kind) -> None:
    async with Script({stage: [HANG]}).listening() as port:
        found = await send(smtp, port, within=0.2)

    assert (found.kind, found.breaks) == (kind, True)


async def test_a_refusal_stands_even_if_the_connection_is_lost_afterwards(smtp: Smtp) -> None:
    async with Script({"RCPT": ["550 5.1.1 unknown", "250 fine"], "dot": [CLOSE]}).listening() as port:
        found = await send(smtp, port, ANN, BOB)

    assert (found.kind, states(found)) == (Kind.UNKNOWN, {ANN: "refused", BOB: "waiting"})
    assert found.kept[BOB]["unknown"]


async def test_nobody_there_is_unreachable(smtp: Smtp) -> None:
    async with Script().listening() as port:
        pass
    found = await send(smtp, port)

    assert (found.kind, found.unreachable, found.breaks) == (Kind.TRANSIENT, True, True)


async def test_what_is_no_mail_is_dead(smtp: Smtp) -> None:
    destination = Destination("default", "main", "smtp", "smtp://127.0.0.1:1")
    found = await smtp.deliver(Delivery("t", 1, Message("m", "mail", b"{}"), destination))

    assert (found.kind, found.reason[:18]) == (Kind.PERMANENT, "this is not a mail")


async def test_nothing_is_sent_without_tls_unless_that_was_said(smtp: Smtp) -> None:
    server = Script()
    async with server.listening() as port:
        stripped = await send(smtp, port, query="")
        allowed = await send(smtp, port, query="?tls=opportunistic")

    assert (stripped.kind, stripped.alarming, stripped.unreachable) == (Kind.TRANSIENT, True, True)
    assert allowed.kind is Kind.OK
    assert len(server.taken) == 1


@pytest.mark.parametrize("query", ["", "?tls=opportunistic"])
async def test_no_password_is_given_without_tls_unless_that_was_said(smtp: Smtp, query: str) -> None:
    server = Script(offers=["AUTH PLAIN"])
    async with server.listening() as port:
        found = await send(smtp, port, query=query, user="shop@", secrets=("s3cret",))

    assert (found.kind, found.alarming, found.unreachable) == (Kind.TRANSIENT, True, True)
    assert server.heard == ["EHLO here.example"]


async def test_a_password_is_given_once_nobody_else_can_listen() -> None:
    made = certificate(NAMES)
    server, smtp = Script(offers=["AUTH PLAIN"], tls=made.server_context()), Smtp(trust=made.client_context())
    async with server.listening() as port:
        found = await send(smtp, port, query="?tls=opportunistic", user="shop@", secrets=("s3cret",))
        await smtp.aclose()

    assert found.kind is Kind.OK
    assert [line.partition(" ")[0] for line in server.heard][1:4] == ["STARTTLS", "EHLO", "AUTH"]


@pytest.mark.parametrize("query", ["", "?tls=opportunistic"])
async def test_a_certificate_must_be_for_this_server(query: str) -> None:
    made = certificate(["other.example"])
    server, smtp = Script(tls=made.server_context()), Smtp(trust=made.client_context())
    async with server.listening() as port:
        found = await send(smtp, port, query=query)

    assert (found.kind, found.alarming, found.unreachable) == (Kind.TRANSIENT, True, True)
    assert "IP address mismatch" in found.reason
    assert server.taken == []


async def test_a_certificate_must_be_believed() -> None:
    made = certificate(NAMES)
    server = Script(tls=made.server_context())
    stranger, friend = Smtp(), Smtp(trust=made.client_context())
    async with server.listening() as port:
        refused = await send(stranger, port, query="")
        taken = await send(friend, port, query="")
    await friend.aclose()

    assert (refused.kind, refused.alarming, refused.unreachable) == (Kind.TRANSIENT, True, True)
    assert refused.reason.startswith("TLS: ")
    assert (taken.kind, len(server.taken)) == (Kind.OK, 1)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (["235 welcome"], Kind.OK),
        (["535 5.7.8 wrong"], Kind.MISCONFIGURED),
        (["454 4.7.0 later"], Kind.THROTTLED),
        (["421 bye"], Kind.TRANSIENT),
    ],
)
async def test_a_password_is_given_and_what_is_said_to_it_concerns_the_transport(
    smtp: Smtp, answers: list[str], kind: Kind
) -> None:
    server = Script({"AUTH": answers}, offers=["AUTH PLAIN"])
    async with server.listening() as port:
        found = await send(smtp, port, user="shop@", secrets=("s3cret",))

    assert found.kind is kind
    assert "s3cret" not in f"{found}"


@pytest.mark.parametrize("way", ["LOGIN", "CRAM-MD5"])
async def test_a_welcome_that_comes_too_early_lets_nobody_in(smtp: Smtp, way: str) -> None:
    server = Script({"AUTH": ["235 welcome"]}, offers=[f"AUTH {way}"])
    async with server.listening() as port:
        found = await send(smtp, port, user="shop@", secrets=("s3cret",))

    assert (found.kind, states(found), server.taken) == (Kind.TRANSIENT, {ANN: "waiting"}, [])


class TestAddressesOutsideOfAscii:
    async def test_a_server_that_knows_of_them_is_told(self, smtp: Smtp) -> None:
        server = Script(offers=["SMTPUTF8", "8BITMIME"])
        async with server.listening() as port:
            found = await send(smtp, port, ANN, JOERG)
            await send(smtp, port, ANN)

        assert (found.kind, named(server)) == (Kind.OK, [ANN, JOERG, ANN])
        assert [line for line in server.heard if line.startswith("MAIL")] == [
            "MAIL FROM:<shop@here.example> SMTPUTF8 BODY=8BITMIME",
            "MAIL FROM:<shop@here.example>",
        ]

    async def test_at_another_server_the_others_get_it(self, smtp: Smtp) -> None:
        server = Script()
        async with server.listening() as port:
            found = await send(smtp, port, ANN, JOERG, BOB)

        assert (found.kind, found.elsewhere) == (Kind.PERMANENT, True)
        assert states(found) == {ANN: "sent", JOERG: "refused", BOB: "sent"}
        assert "suppress" not in found.kept[JOERG]
        assert "MAIL FROM:<shop@here.example>" in server.heard
        assert [recipients for recipients, _ in server.taken] == [[ANN, BOB]]

    async def test_headers_that_need_such_a_server_need_it_whoever_is_left(self, smtp: Smtp) -> None:
        source = f"To: {JOERG}\r\nSubject: Hello\r\n\r\nIt is there.\r\n".encode()
        before = {JOERG: {"state": "sent"}, ANN: {}}
        knows, other = Script(offers=["SMTPUTF8", "8BITMIME"]), Script()
        async with knows.listening() as one, other.listening() as another:
            taken = await send(smtp, one, JOERG, ANN, before=before, source=source)
            refused = await send(smtp, another, JOERG, ANN, before=before, source=source)

        assert (taken.kind, named(knows)) == (Kind.OK, [ANN])
        assert "MAIL FROM:<shop@here.example> SMTPUTF8 BODY=8BITMIME" in knows.heard
        assert (refused.kind, states(refused)) == (Kind.PERMANENT, {JOERG: "sent", ANN: "refused"})
        assert (refused.elsewhere, other.taken) == (True, [])

    async def test_a_body_outside_of_ascii_needs_none(self, smtp: Smtp) -> None:
        server = Script()
        async with server.listening() as port:
            found = await send(smtp, port, source="Subject: Hello\r\n\r\nGrüße\r\n".encode())

        assert found.kind is Kind.OK


async def test_without_a_password_or_a_way_to_give_it_the_transport_is_misconfigured(smtp: Smtp) -> None:
    async with Script().listening() as port:
        without = await send(smtp, port, user="shop@")
        no_way = await send(smtp, port, user="shop@", secrets=("s3cret",))

    assert (without.kind, no_way.kind) == (Kind.MISCONFIGURED, Kind.MISCONFIGURED)


class Inbox:
    """A handler of aiosmtpd."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.taken.append((envelope.rcpt_tos, envelope.content))
        return "250 taken"


async def test_a_real_server_takes_it_with_tls_and_a_password() -> None:
    made, inbox = certificate(NAMES), Inbox()
    controller = Controller(
        inbox,
        hostname="127.0.0.1",
        port=0,
        tls_context=made.server_context(),
        require_starttls=True,
        auth_required=True,
        authenticator=lambda *given: AuthResult(success=given[-1].password == b"s3cret", handled=False),
    )
    controller.port = _free_port()
    controller.start()
    smtp = Smtp(trust=made.client_context())
    try:
        found = await send(smtp, controller.port, ANN, BOB, query="", user="shop@", secrets=("s3cret",))
        wrong = await send(smtp, controller.port, query="", user="shop@", secrets=("wrong",))
    finally:
        await smtp.aclose()
        await asyncio.to_thread(controller.stop)

    assert (found.kind, wrong.kind) == (Kind.OK, Kind.MISCONFIGURED)
    assert inbox.taken == [([ANN, BOB], SOURCE)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_there_are_only_so_many_connections_and_the_others_wait() -> None:
    server, channel = Script(), Smtp(hostname="here.example", connections=2)
    async with server.listening() as port:
        found = await asyncio.gather(*(send(channel, port) for _ in range(20)))
        await channel.aclose()

    assert {one.kind for one in found} == {Kind.OK}
    assert (server.connections, len(server.taken)) == (2, 20)


async def test_a_mail_waits_for_a_connection_as_long_as_it_could_still_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, channel = Script({"MAIL": [HANG]}), Smtp(hostname="here.example", connections=1)
    async with server.listening() as port:
        first = asyncio.create_task(send(channel, port, within=60.0))
        await server.hangs.wait()
        second = asyncio.create_task(send(channel, port, within=60.0))
        await asyncio.sleep(0)
        pass_time(29.0, monkeypatch)
        for _ in range(5):
            await asyncio.sleep(0)
        first.cancel()
        found = await second
        await asyncio.gather(first, return_exceptions=True)
        await channel.aclose()

    assert (found.kind, len(server.taken)) == (Kind.OK, 1)


async def test_the_time_for_which_a_mail_has_waited_is_part_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server, channel = Script({"MAIL": [HANG, HANG]}), Smtp(hostname="here.example", connections=1)
    async with server.listening() as port:
        first = asyncio.create_task(send(channel, port, within=60.0))
        await server.hangs.wait()
        second = asyncio.create_task(send(channel, port, within=60.0))
        await asyncio.sleep(0)
        pass_time(29.0, monkeypatch)
        server.hangs.clear()
        first.cancel()
        await server.hangs.wait()
        pass_time(32.0, monkeypatch)
        for _ in range(20):
            await asyncio.sleep(0)
        ended = second.done()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await channel.aclose()

    assert ended
    assert second.result().reason == f"{ANN}: the transport was not done within 60 s"


async def test_who_waits_too_long_for_a_connection_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durably.mail.smtp.BUSY", 0.001)
    server, channel = Script({"MAIL": [HANG]}), Smtp(hostname="here.example", connections=1)
    async with server.listening() as port:
        first = asyncio.create_task(send(channel, port))
        await asyncio.sleep(0)
        found = await send(channel, port)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = await send(channel, port)
        await channel.aclose()

    assert (found.kind, found.reason) == (Kind.INFRA, "all 1 connections to the transport are busy")
    assert found.retry_after == 1.0
    assert again.kind is Kind.OK


@pytest.mark.parametrize("wrong", [0, -1, True, "many"])
def test_a_number_of_connections_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match=r"connections: .* must be a whole number from 1"):
        Smtp(connections=wrong)
