"""Webhooks and federation over real connections: what is sent, what is checked, and what is kept open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from durably import BadSignature, Durably, Refused
from durably.core.delivery import Destination, Kind, Message, Outcome
from durably.deliveries import federation, webhooks
from durably.deliveries.channel import Delivery
from durably.deliveries.classify import Reply
from durably.deliveries.client import Client
from durably.deliveries.deliveries import Deliveries
from durably.deliveries.guard import Guard
from durably.deliveries.http import Federation, Webhook
from durably.deliveries.vault import new_key
from tests.support.receivers import NAMES, Answer, Receiver, Request, certificate

HERE = Guard(http=True, allow=["127.0.0.1/32"])
PRIVATE = generate_private_key(65537, 2048)
KEY = federation.Key(
    "https://here.example/ann#key",
    PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
)
PUBLIC = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def deliveries(app: Durably, monkeypatch: pytest.MonkeyPatch) -> Deliveries:
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())
    found = app.deliveries
    found.channels["webhook"] = Webhook(Client(HERE))

    async def key_for(sender: str) -> federation.Key:
        if sender != "https://here.example/ann":
            raise LookupError(sender)
        return KEY

    found.channels["federation"] = Federation(Client(HERE), key_for)
    return found


def headers(request: Request) -> dict[str, str]:
    return dict(request.headers)


def test_a_webhook_arrives_signed_and_its_receiver_can_tell(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.destinations.add("shop", receiver.url("/hooks?a=1"))
    sent = deliveries.publish("order.created", {"id": 7}, "shop", headers={"X-Trace": "t-1"})
    app.drain()

    [request] = receiver.requests
    secrets = deliveries.destinations.secrets("shop")
    assert webhooks.verify(request.body, headers(request), secrets).message_id == sent.id
    with pytest.raises(BadSignature):
        webhooks.verify(request.body + b" ", headers(request), secrets)
    assert (request.method, request.path, request.body) == ("POST", "/hooks?a=1", b'{"id":7}')
    assert request.header("content-type") == "application/json"
    assert request.header("x-trace") == "t-1"
    assert request.header("user-agent") == "Durably"


def test_two_secrets_are_valid_while_one_replaces_the_other(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.destinations.add("shop", receiver.url())
    [old] = deliveries.destinations.secrets("shop")
    new = deliveries.destinations.rotate("shop")
    deliveries.publish("n", 1, "shop")
    app.drain()

    [request] = receiver.requests
    for secret in (old, new):
        webhooks.verify(request.body, headers(request), secret)


def test_a_connection_is_kept_for_the_next_message(app: Durably, deliveries: Deliveries, receiver: Receiver) -> None:
    deliveries.destinations.add("shop", receiver.url())
    for number in range(5):
        deliveries.publish("n", number, "shop")
    app.drain()

    assert [request.body for request in receiver.requests] == [b"0", b"1", b"2", b"3", b"4"]
    assert {request.connection for request in receiver.requests} == {1}


def test_a_kept_connection_that_has_ended_costs_no_attempt(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.destinations.add("shop", receiver.url())
    receiver.answers([Answer(), Answer(hang_up="reset"), Answer()])
    sent = [deliveries.publish("n", number, "shop") for number in range(2)]
    app.drain()

    infos = [deliveries.report(one.id)[0].info for one in sent]
    assert [info and (info.state, info.attempt) for info in infos] == [("done", 1), ("done", 1)]
    assert [request.body for request in receiver.requests] == [b"0", b"1", b"1"]


def test_421_is_asked_once_more_on_a_new_connection(app: Durably, deliveries: Deliveries, receiver: Receiver) -> None:
    deliveries.destinations.add("shop", receiver.url())
    receiver.answers([421, 200])
    sent = deliveries.publish("n", 1, "shop")
    app.drain()

    info = deliveries.report(sent.id)[0].info
    assert info is not None
    assert (info.state, info.attempt) == ("done", 1)
    assert [request.connection for request in receiver.requests] == [1, 2]


def test_no_answer_after_the_body_was_sent_is_unknown(app: Durably, deliveries: Deliveries, receiver: Receiver) -> None:
    deliveries.destinations.add("shop", receiver.url(), schedule=[0, 0])
    receiver.answers([Answer(hang_up="before"), Answer(200)])
    sent = deliveries.publish("n", 1, "shop")
    app.drain()

    first, second = receiver.requests
    assert first.header("webhook-id") == second.header("webhook-id") == sent.id
    info = deliveries.report(sent.id)[0].info
    assert info is not None
    assert info.result["possible_duplicate"] is True


def test_410_disables_a_webhook_and_what_waits_is_kept(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.destinations.add("shop", receiver.url())
    receiver.answer(410)
    sent = [deliveries.publish("n", number, "shop") for number in range(2)]
    app.drain()

    assert len(receiver.requests) == 1
    assert deliveries.destinations.get("shop").standing == "disabled"

    receiver.answer(200)
    deliveries.destinations.resume("shop")
    app.drain()
    assert [request.body for request in receiver.requests] == [b"0", b"0", b"1"]
    infos = [deliveries.report(one.id)[0].info for one in sent]
    assert [info and info.attempt for info in infos] == [2, 1]


@pytest.mark.parametrize("kind", ["rfc9421", "cavage"])
def test_federation_signs_as_the_peer_wants_it_and_remembers(
    app: Durably, deliveries: Deliveries, receiver: Receiver, kind: str
) -> None:
    def judge(request: Request) -> Answer:
        modern = request.header("signature-input") is not None
        if modern != (kind == "rfc9421"):
            return Answer(401)
        federation.verify("POST", receiver.url("/inbox"), headers(request), request.body, lambda _: PUBLIC)
        return Answer(202)

    receiver.answer_with(judge)
    ann = "https://here.example/ann"
    for number in range(2):
        deliveries.publish(
            "Create",
            {"n": number},
            receiver.url("/inbox"),
            sender=ann,
            channel="federation",
            content_type="application/activity+json",
        )
    app.drain()

    assert [request.body for request in receiver.requests] == (
        [b'{"n":0}', b'{"n":1}'] if kind == "rfc9421" else [b'{"n":0}', b'{"n":0}', b'{"n":1}']
    )
    assert deliveries.destinations.get(receiver.url("/inbox")).condition.learned == (
        None if kind == "rfc9421" else "cavage"
    )


def test_a_sender_without_a_key_is_the_end_of_its_message_and_of_nothing_else(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    sent = deliveries.publish("Create", {}, receiver.url(), sender="https://here.example/bob", channel="federation")
    app.drain()

    assert receiver.requests == []
    assert deliveries.destinations.get(receiver.url()).standing == "active"
    info = deliveries.report(sent.id)[0].info
    assert info is not None
    assert (info.state, "there is no key for 'https://here.example/bob'" in str(info.reason)) == ("dead", True)


def post(client: Client, url: str) -> Reply | Outcome:
    async def story() -> Reply | Outcome:
        try:
            return await client.post(url, {}, b"x", 30.0)
        finally:
            await client.aclose()

    return asyncio.run(story())


def test_a_certificate_that_is_trusted_is_enough_and_one_that_is_not_is_transient() -> None:
    trusted = certificate(NAMES)
    with Receiver(tls=trusted) as receiver:
        found = post(Client(HERE, trust=trusted.client_context()), receiver.url())
        stranger = post(Client(HERE), receiver.url())

    assert isinstance(found, Reply)
    assert isinstance(stranger, Outcome)
    assert stranger.kind is Kind.TRANSIENT
    assert stranger.reason.startswith("TLS: ")
    assert stranger.alarming


def test_the_guard_stands_before_every_connection(receiver: Receiver) -> None:
    inside = post(Client(Guard(http=True)), receiver.url())
    assert isinstance(inside, Outcome)
    assert inside.kind is Kind.PERMANENT

    async def rebinding(name: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = Client(Guard(http=True, ports=[receiver.port], lookup=rebinding))
    named = post(client, f"http://peer.example:{receiver.port}/")
    assert isinstance(named, Outcome)
    assert named.kind is Kind.PERMANENT
    assert "the loopback network" in named.reason
    assert receiver.requests == []


def test_a_name_that_leads_nowhere_may_lead_somewhere_tomorrow() -> None:
    async def nowhere(name: str, port: int) -> list[str]:
        raise OSError("no such name")

    found = post(Client(Guard(http=True, lookup=nowhere)), "http://peer.example/")

    assert isinstance(found, Outcome)
    assert (found.kind, found.unreachable, found.breaks) == (Kind.TRANSIENT, True, True)


def test_an_address_that_could_never_be_reached_is_refused_when_it_is_added(deliveries: Deliveries) -> None:
    deliveries.channels["webhook"] = Webhook(Client(Guard()))
    for address in ("http://peer.example/", "https://10.0.0.1/", "https://user@peer.example/", "nonsense"):
        with pytest.raises(Refused):
            deliveries.destinations.add("a", address)
        with pytest.raises(Refused):
            deliveries.publish("n", 1, [address] if "://" in address else [f"x://{address}"])
    assert deliveries.destinations.list() == []


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (Answer(hang_up="before"), Kind.UNKNOWN),
        (Answer(503), Kind.TRANSIENT),
        (Answer(202), Kind.OK),
        (Answer(401), Kind.PERMANENT),
    ],
)
def test_what_the_second_way_of_signing_came_to_counts(receiver: Receiver, second: Answer, kind: Kind) -> None:
    answers = [Answer(400), second]
    receiver.answer_with(lambda _: answers.pop(0) if len(answers) > 1 else answers[0])

    async def key_for(_: str) -> federation.Key:
        return KEY

    async def story() -> Outcome:
        channel = Federation(Client(HERE), key_for)
        destination = Destination("default", "peer", "federation", receiver.url("/inbox"))
        message = Message("m", "Create", b"{}", sender="https://here.example/ann")
        try:
            return await channel.deliver(Delivery("t", 1, message, destination, now=1.7e9))
        finally:
            await channel.aclose()

    found = asyncio.run(story())
    assert found.kind is kind


def test_what_is_signed_is_the_address_that_is_posted_to(
    app: Durably, deliveries: Deliveries, receiver: Receiver
) -> None:
    def judge(request: Request) -> Answer:
        federation.verify("POST", receiver.url("/in?x%5B%5D=1"), headers(request), request.body, lambda _: PUBLIC)
        return Answer(202)

    receiver.answer_with(judge)
    sent = deliveries.publish(
        "Create", {}, receiver.url("/in?x[]=1"), channel="federation", sender="https://here.example/ann"
    )
    app.drain()

    assert [one.info and str(one.info.state) for one in deliveries.report(sent.id)] == ["done"]


def test_what_was_sent_on_a_kept_connection_that_ended_is_a_possible_duplicate(receiver: Receiver) -> None:
    answers = [Answer(204), Answer(hang_up="before"), Answer(204)]
    receiver.answer_with(lambda _: answers.pop(0))

    async def story() -> list[Reply | Outcome]:
        client = Client(HERE)
        try:
            return [await client.post(receiver.url(), {}, b"{}", 10.0) for _ in range(2)]
        finally:
            await client.aclose()

    found = asyncio.run(story())
    assert [one.possible_duplicate for one in found] == [False, True]
    assert all(isinstance(one, Reply) for one in found)
