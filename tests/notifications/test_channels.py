"""Channels that reach somebody else: HTTP and Apprise, against a real receiver."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pytest

from durably import BadOption, Durably
from durably.core.delivery import Kind
from durably.deliveries import Client, Guard
from durably.deliveries.webhooks import new_secret, verify
from durably.notifications import AppriseChannel, HttpChannel, Note, Person
from tests.support.receivers import Receiver

LOCAL = Guard(http=True, allow=["127.0.0.0/8"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def note(address: str) -> Note:
    return Note(
        id="0190a5d1-ac96-774b-bcce-b302099a8057",
        notification="n",
        kind="paid",
        recipient="ann",
        address=address,
        title="Paid",
        text="Thank you",
        items=[{"n": 1}],
    )


class TestHttp:
    async def test_it_posts_json_that_can_be_verified(self, receiver: Receiver) -> None:
        secret = new_secret()
        channel = HttpChannel(Client(LOCAL), secret)
        came = await channel.send(note(receiver.url("/hook")))
        await channel.aclose()

        [request] = receiver.requests
        assert came is not None
        assert came.kind is Kind.OK
        assert verify(request.body, dict(request.headers), secret).message_id == note("").id
        assert msgspec.json.decode(request.body) == {
            "id": note("").id,
            "kind": "paid",
            "recipient": "ann",
            "title": "Paid",
            "text": "Thank you",
            "items": [{"n": 1}],
        }

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (204, Kind.OK),
            (404, Kind.GONE),
            (410, Kind.GONE),
            (400, Kind.PERMANENT),
            (500, Kind.TRANSIENT),
            (429, Kind.THROTTLED),
        ],
    )
    async def test_the_answer_decides(self, receiver: Receiver, status: int, kind: Kind) -> None:
        receiver.answer(status)
        channel = HttpChannel(Client(LOCAL))
        came = await channel.send(note(receiver.url()))
        await channel.aclose()

        assert came is not None
        assert came.kind is kind

    async def test_nobody_reaches_our_own_network(self, receiver: Receiver) -> None:
        channel = HttpChannel(Client(Guard(http=True)))
        came = await channel.send(note(receiver.url()))
        await channel.aclose()

        assert came is not None
        assert (came.kind, receiver.requests) == (Kind.PERMANENT, [])

    def test_a_bad_secret_is_refused_at_once(self) -> None:
        with pytest.raises(BadOption, match="webhook secret"):
            HttpChannel(Client(LOCAL), "short")


class TestApprise:
    async def test_it_calls_the_service_once(self, receiver: Receiver) -> None:
        address = receiver.url().replace("http://", "json://")
        assert await AppriseChannel().send(note(address)) is None

        [request] = receiver.requests
        assert msgspec.json.decode(request.body)["title"] == "Paid"
        assert msgspec.json.decode(request.body)["message"] == "Thank you"

    async def test_its_own_retries_are_off(self, receiver: Receiver) -> None:
        receiver.answer(500)
        address = receiver.url("/?retry=3").replace("http://", "json://")
        came = await AppriseChannel().send(note(address))

        assert came is not None
        assert len(receiver.requests) == 1

    async def test_what_it_does_not_confirm_may_have_arrived(self, receiver: Receiver) -> None:
        nobody = "json://127.0.0.1:1"
        address = f"{receiver.url().replace('http://', 'json://')} {nobody}"
        came = await AppriseChannel().send(note(address))

        assert came is not None
        assert (came.kind, len(receiver.requests)) == (Kind.UNKNOWN, 1)

    @pytest.mark.parametrize(
        "address",
        [
            "nosuch://user:s3cret@host/s3cret",
            "slack://badtoken-s3cret",
            "json://joe:s3cret@127.0.0.1:1/s3cret?tok=s3cret",
            "tgram://s3cret",
        ],
    )
    async def test_an_address_is_a_secret_that_nobody_logs(
        self, address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        logging.getLogger("apprise").warning("others may talk before")
        with caplog.at_level(logging.DEBUG):
            came = await AppriseChannel().send(note(address))
        logging.getLogger("apprise").warning("and after")

        assert came is not None
        assert "s3cret" not in caplog.text + came.reason
        assert "others may talk before" in caplog.text
        assert "and after" in caplog.text

    async def test_what_apprise_does_not_understand_is_refused_for_good(self) -> None:
        came = await AppriseChannel().send(note("pigeon://roof"))

        assert came is not None
        assert (came.kind, came.reason) == (Kind.PERMANENT, "Apprise does not understand the address")

    def test_routes_over_apprise_arrive(self, app: Durably, receiver: Receiver) -> None:
        address = receiver.url().replace("http://", "json://")
        app.notifications.resolver(lambda recipient: Person(addresses={"apprise": address}))
        app.notifications.kind("paid", ["apprise"])
        sent = app.notify("paid", "ann", {"title": "Paid", "text": "Thank you"})
        app.drain()

        assert [one.state for one in app.notifications.get(sent.id).routes] == ["sent"]
        assert len(receiver.requests) == 1
