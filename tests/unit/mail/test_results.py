"""The recipients of a mail, from one attempt to the next."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from durably.core.delivery import Destination, Kind, Message, Outcome
from durably.deliveries.channel import Delivery
from durably.mail.letter import Letter
from durably.mail.results import Recipient, begin, due, kept, marked, outcome
from durably.mail.sifted import Sifted


def test_who_wants_to_be_left_alone_gets_a_moment_and_makes_nobody_else_wait() -> None:
    greylisted, late = Recipient("waiting", "450 later", wait=300.0), Recipient("waiting", "451 busy")

    assert outcome({"a": greylisted}, 7.0).retry_after == 300.0
    assert outcome({"a": greylisted, "b": late}, 7.0).retry_after is None
    assert outcome({"a": greylisted, "b": late}, 7.0).kept["a"] == {"said": "450 later", "until": 307.0}
    assert outcome({"a": Recipient(until=307.0), "b": Recipient(until=207.0)}, 7.0).retry_after == 200.0


def test_what_only_this_transport_cannot_do_is_said() -> None:
    elsewhere, refused = Recipient("refused", "cannot", elsewhere=True), Recipient("refused", "550 no")

    assert outcome({"a": elsewhere, "b": Recipient()}).elsewhere
    assert outcome({"a": elsewhere, "b": Recipient("sent")}).elsewhere
    assert not outcome({"a": refused, "b": Recipient()}).elsewhere


def test_those_are_named_whose_time_has_come_or_else_those_whose_time_comes_first() -> None:
    now, soon, later = Recipient(), Recipient(until=130.0), Recipient(until=150.0)

    assert due({"a": now, "b": soon, "c": later}, 100.0) == ["a"]
    assert due({"a": now, "b": soon, "c": later}, 130.0) == ["a", "b"]
    assert due({"b": soon, "c": later}, 100.0) == ["b"]
    assert due({"a": now, "c": Recipient(until=100.0 + 301.0)}, 100.0) == ["a", "c"]
    assert due({"a": Recipient("sent")}, 100.0) == []


def begun(before: dict[str, Any], **options: Any) -> dict[str, Recipient]:
    destination = Destination("default", "main", "smtp", "smtp://mail.example")
    letter = Letter("shop@here.example", list(before), b"")
    return begin(Delivery("t", 2, Message("m", "mail", b""), destination, kept=before, **options), letter)


def test_an_attempt_finds_everybody_as_the_last_one_has_left_them_unless_it_is_a_replay() -> None:
    before = {"a": {"state": "sent"}, "b": {"state": "refused", "said": "550 no"}, "c": {"until": 5.0}}

    assert begun(before) == kept(["a", "b", "c"], before)
    assert begun(before, replayed=True) == {"a": Recipient("sent"), "b": Recipient(), "c": Recipient()}
    ended = {"a": {"state": "suppressed"}, "b": {"state": "refused", "possible_duplicate": True}}
    assert begun(ended) == {"a": Recipient(), "b": Recipient(possible_duplicate=True)}


def test_whom_another_transport_could_not_reach_is_tried() -> None:
    before = {"a": {"state": "refused", "said": "cannot", "elsewhere": True}, "b": {}}

    assert begun(before) == {"a": Recipient(), "b": Recipient()}


def test_who_may_have_it_is_marked_from_then_on() -> None:
    before = {"a": {"state": "sent"}, "b": {"state": "refused"}, "c": {"unknown": True}, "d": {}}
    doubtful = {True: Recipient(possible_duplicate=True), False: Recipient()}

    found = begun(before)
    assert [one.possible_duplicate for one in found.values()] == [False, False, True, False]
    cut = begun(before, interrupted=True)
    assert [one.possible_duplicate for one in cut.values()] == [False, False, True, True]
    replayed = begun(before, replayed=True)
    assert (replayed["b"], replayed["c"]) == (doubtful[False], doubtful[True])
    sent = Recipient("sent", "250 ok")
    after = marked(found, dict.fromkeys(before, sent))
    assert after == {**dict.fromkeys(before, sent), "c": Recipient("sent", "250 ok", possible_duplicate=True)}


class Trusting:
    """A suppression list with nobody on it."""

    async def among(self, addresses: list[str], category: str) -> dict[str, str]:
        return {}


class Paused:
    """A channel that has nothing to say about recipients."""

    async def deliver(self, delivery: Delivery) -> Outcome:
        return Outcome(kind=Kind.MISCONFIGURED, reason="there is no folder")


async def test_a_channel_that_says_nothing_about_recipients_leaves_them_as_they_were() -> None:
    before = {"a": {"state": "sent", "said": "250 ok"}, "b": {"unknown": True}}
    body = msgspec.msgpack.encode(Letter("shop@here.example", list(before), b""))
    destination = Destination("default", "main", "smtp", "smtp://mail.example")
    delivery = Delivery("t", 2, Message("m", "mail", body), destination, kept=before)

    found = await Sifted(Paused(), cast(Any, Trusting())).deliver(delivery)

    assert found.kind is Kind.MISCONFIGURED
    assert found.kept == {"a": before["a"], "b": {"unknown": True, "possible_duplicate": True}}
