"""Publishing to an audience, and what becomes of each delivery, on every store, with a channel of one's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durably import BadOption, Conflict, Durably, DurablyError, StoreUnavailable, UnknownTask
from durably.core.delivery import Destination, Kind, Outcome
from durably.core.lifecycle import lapse
from durably.deliveries.audience import Peer
from durably.deliveries.channel import Delivery
from durably.deliveries.deliveries import Deliveries
from durably.deliveries.dispatch import DRIVEN, SUSPECTS
from durably.deliveries.register import DestinationChange
from durably.deliveries.vault import new_key
from durably.notifications.people import Person
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.deliver import forget_destination
from durably.stores.operations.sweep import open_session

OK = Outcome(kind=Kind.OK, reason="taken", status=204)
BROKEN = Outcome(kind=Kind.TRANSIENT, reason="500 Internal Server Error", status=500, breaks=True)
REFUSED = Outcome(kind=Kind.TRANSIENT, reason="connection refused", unreachable=True, breaks=True)
AT_ONCE = (0, 0, 0, 0, 0)

Answer = Callable[[Delivery], Any]


class Post:
    """A channel that keeps what it was given, and answers as it is told."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self.answers: dict[str, Answer] = {}

    def __getitem__(self, name: str) -> list[bytes]:
        return [delivery.message.body for delivery in self.seen if delivery.destination.name == name]

    async def deliver(self, delivery: Delivery) -> Outcome:
        self.seen.append(delivery)
        script = self.answers.get(delivery.destination.name)
        answer: Any = OK if script is None else script(delivery)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def deliveries(app: Durably, post: Post, monkeypatch: pytest.MonkeyPatch) -> Deliveries:
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())
    found = app.deliveries
    found.channels["post"] = post
    return found


def peers(deliveries: Deliveries, *names: str, **options: Any) -> None:
    for name in names:
        deliveries.destinations.add(name, f"post:{name}", channel="post", **options)


def states(deliveries: Deliveries, message: str) -> dict[str, str]:
    return {one.destination: str(one.info and one.info.state) for one in deliveries.report(message)}


def test_a_message_reaches_everyone_once_and_the_report_says_so(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", "b", "c")

    sent = deliveries.publish("order.created", {"id": 7}, ["a", "b", "c", "a"])
    app.drain()

    assert sorted(delivery.destination.name for delivery in post.seen) == ["a", "b", "c"]
    assert {delivery.message.body for delivery in post.seen} == {b'{"id":7}'}
    assert {delivery.message.id for delivery in post.seen} == {sent.id}
    assert states(deliveries, sent.id) == {"a": "done", "b": "done", "c": "done"}
    assert deliveries.message(sent.id).kind == "order.created"


def test_the_sender_is_left_out_and_shared_addresses_are_merged(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    @deliveries.audience
    def followers(of: str) -> list[Peer]:
        return [
            Peer("https://one.example/ann", "https://one.example/ann/inbox", "https://one.example/inbox"),
            Peer("https://one.example/bob", "https://one.example/bob/inbox", "https://one.example/inbox"),
            Peer("https://two.example/cyd", "https://two.example/cyd/inbox"),
            Peer(of, f"{of}/inbox"),
        ]

    sender = "https://here.example/dee"
    sent = deliveries.publish(
        "Create", b"{}", [followers(sender), "https://two.example/x"], sender=sender, channel="post"
    )
    app.drain()

    assert list(sent.deliveries) == ["https://one.example/inbox", "https://two.example/cyd", "https://two.example/x"]
    assert [one.destination.address for one in post.seen if "cyd" in one.destination.name] == [
        "https://two.example/cyd/inbox"
    ]


def test_a_destination_that_is_not_known_yet_is_added_and_a_mere_name_is_refused(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    sent = deliveries.publish("hello", {}, "https://new.example/hook", channel="post")
    app.drain()

    assert states(deliveries, sent.id) == {"https://new.example/hook": "done"}
    assert deliveries.destinations.get("https://new.example/hook").channel == "post"
    with pytest.raises(BadOption, match="there is no destination 'nobody'; add it first, or give its address"):
        deliveries.publish("hello", {}, ["nobody"])


def test_messages_to_one_destination_arrive_in_order_whatever_fails(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)
    left = [3]

    def flaky(_: Delivery) -> Outcome:
        left[0] -= 1
        return BROKEN if left[0] >= 0 else OK

    post.answers["a"] = flaky
    for number in range(5):
        deliveries.publish("n", number, "a")
    app.drain()

    assert post["a"] == [b"0", b"0", b"0", b"0", b"1", b"2", b"3", b"4"]


def test_what_keeps_failing_is_a_dead_letter_and_the_next_goes_on(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE, breaker=100)
    post.answers["a"] = lambda delivery: BROKEN if delivery.message.body == b"0" else OK
    first, second = deliveries.publish("n", 0, "a"), deliveries.publish("n", 1, "a")
    app.drain()

    assert post["a"] == [b"0"] * 6 + [b"1"]
    assert states(deliveries, first.id) == {"a": "dead"}
    assert states(deliveries, second.id) == {"a": "done"}
    [letter] = app.dead.list(queue="deliveries")
    assert letter.reason == "attempts exhausted (6): 500 Internal Server Error"


def test_a_replayed_dead_letter_begins_a_new_cycle_with_the_same_message(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=[])
    post.answers["a"] = lambda _: BROKEN
    sent = deliveries.publish("n", 0, "a")
    app.drain()
    post.answers.clear()

    assert app.dead.replay(queue="deliveries") == 1
    app.drain()

    assert states(deliveries, sent.id) == {"a": "done"}
    assert {delivery.message.id for delivery in post.seen} == {sent.id}


def test_a_peer_that_cannot_be_reached_is_suspended_and_loses_nothing(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "dead", "b", schedule=AT_ONCE, breaker=100)
    post.answers["dead"] = lambda _: REFUSED
    sent = [deliveries.publish("n", number, ["dead", "b"]) for number in range(3)]
    app.drain()

    assert post["b"] == [b"0", b"1", b"2"]
    assert post["dead"] == [b"0"] * 6
    assert deliveries.destinations.get("dead").standing == "suspended"
    assert [states(deliveries, one.id)["dead"] for one in sent] == ["blocked"] * 3

    post.answers.clear()
    deliveries.destinations.resume("dead")
    app.drain()

    assert post["dead"][6:] == [b"0", b"1", b"2"]
    assert deliveries.destinations.get("dead").standing == "active"


@pytest.mark.parametrize("order", ["fifo", "unordered"])
def test_a_throttled_destination_waits_as_a_whole(app: Durably, deliveries: Deliveries, post: Post, order: Any) -> None:
    peers(deliveries, "a", order=order, concurrency=1)
    post.answers["a"] = lambda _: Outcome(kind=Kind.THROTTLED, reason="429", retry_after=3600)
    for number in range(3):
        deliveries.publish("n", number, "a")
    app.drain()

    assert len(post["a"]) == 1
    assert deliveries.destinations.get("a").standing == "throttled"

    post.answers.clear()
    deliveries.destinations.resume("a")
    app.drain()

    assert sorted(post["a"][1:]) == [b"0", b"1", b"2"]


def test_the_breaker_keeps_everyone_away_from_a_failing_peer_and_charges_nobody(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", order="unordered", concurrency=1, schedule=[3600], breaker=2, cooldown=3600)
    post.answers["a"] = lambda _: BROKEN
    sent = [deliveries.publish("n", number, "a") for number in range(5)]
    app.drain()

    assert len(post["a"]) == 2
    assert deliveries.destinations.get("a").condition.breaker == "open"
    infos = [deliveries.report(one.id)[0].info for one in sent]
    assert sorted(info.spent for info in infos if info is not None) == [0, 0, 0, 1, 1]


def test_a_destination_can_be_paused_and_resumed(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", "b", order="unordered")
    deliveries.destinations.pause("a", "they asked for it")
    sent = deliveries.publish("n", 1, ["a", "b"])
    app.drain()

    assert (post["a"], post["b"]) == ([], [b"1"])
    assert deliveries.destinations.get("a").condition.reason == "they asked for it"

    deliveries.destinations.resume("a")
    app.drain()
    assert states(deliveries, sent.id) == {"a": "done", "b": "done"}


def test_gone_is_the_end_for_everything_that_waits(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a")
    post.answers["a"] = lambda _: Outcome(kind=Kind.GONE, reason="410 Gone")
    sent = [deliveries.publish("n", number, "a") for number in range(3)]
    app.drain()

    assert len(post.seen) == 1
    assert [states(deliveries, one.id)["a"] for one in sent] == ["dead"] * 3
    assert deliveries.destinations.get("a").standing == "gone"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: "fine", "the channel 'post' answered 'fine' instead of an Outcome"),
        (lambda _: None, "the channel 'post' answered None instead of an Outcome"),
        (lambda _: RuntimeError("no idea"), "RuntimeError: no idea"),
        (lambda _: Outcome(kind="nonsense"), "the channel 'post' answered with an Outcome that makes no sense"),  # type: ignore[arg-type]
        (lambda _: Outcome(kind=Kind.OK, reason=None), "the channel 'post' answered with an Outcome that makes no"),  # type: ignore[arg-type]
    ],
)
def test_a_channel_that_answers_nonsense_is_a_failed_attempt(
    app: Durably, deliveries: Deliveries, post: Post, answer: Answer, reason: str
) -> None:
    peers(deliveries, "a", schedule=[])
    post.answers["a"] = answer
    deliveries.publish("n", 1, "a")
    app.drain()

    [letter] = app.dead.list(queue="deliveries")
    assert (letter.reason or "").startswith(f"attempts exhausted (1): unknown: {reason}")
    assert [one.possible_duplicate for one in deliveries.report(post.seen[0].message.id)] == [True]


def test_a_channel_can_be_exchanged_while_messages_wait(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)
    post.answers["a"] = lambda _: BROKEN
    deliveries.publish("n", 1, "a")
    app.tick()
    deliveries.channels["post"] = other = Post()
    app.drain()

    assert len(post.seen) == 1
    assert other["a"] == [b"1"]


def test_an_unknown_outcome_marks_what_follows_as_a_possible_duplicate(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)
    outcomes = iter([BROKEN, Outcome(kind=Kind.UNKNOWN, reason="no answer"), BROKEN, OK])
    post.answers["a"] = lambda _: next(outcomes)
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    assert [delivery.possible_duplicate for delivery in post.seen] == [False, False, True, True]
    info = deliveries.report(sent.id)[0].info
    assert info is not None
    assert info.result["possible_duplicate"] is True


def test_a_channel_that_can_tell_is_asked_before_anything_is_sent_twice(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    asked = []

    async def reconcile(delivery: Delivery) -> bool:
        asked.append(delivery.message.id)
        return True

    post.reconcile = reconcile  # type: ignore[attr-defined]
    peers(deliveries, "a", schedule=AT_ONCE)
    post.answers["a"] = lambda _: Outcome(kind=Kind.UNKNOWN, reason="no answer")
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    assert len(post.seen) == 1
    assert asked == [sent.id]
    assert states(deliveries, sent.id) == {"a": "done"}


def test_what_waits_too_long_expires(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", expires="1ms")
    deliveries.destinations.pause("a")
    sent = deliveries.publish("n", 1, "a")
    while states(deliveries, sent.id) != {"a": "cancelled"}:
        app.drain()

    info = deliveries.report(sent.id)[0].info
    assert info is not None
    assert info.reason == "expired"


def test_secrets_are_made_shown_rotated_and_never_stored_in_the_clear(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    added = deliveries.destinations.add("a", "post:a", channel="post", secret="whsec_" + "c2VjcmV0" * 5)
    [first] = deliveries.destinations.secrets("a")
    second = deliveries.destinations.rotate("a")

    assert added.signed
    assert deliveries.destinations.secrets("a") == (second, first)
    deliveries.publish("n", 1, "a")
    app.drain()
    assert post.seen[0].secrets == (second, first)
    assert first not in repr(deliveries.destinations.get("a")) + repr(deliveries.destinations)
    assert deliveries.destinations.retire("a").signed
    assert deliveries.destinations.secrets("a") == (second,)


def test_what_is_wrong_is_refused_before_anything_is_accepted(deliveries: Deliveries) -> None:
    peers(deliveries, "a")
    with pytest.raises(Conflict, match="there is a destination 'a' already"):
        peers(deliveries, "a")
    for options, message in (
        ({"order": "random"}, "order: 'random' must be one of fifo, unordered"),
        ({"schedule": "30s"}, "schedule: '30s' must be a list of waits"),
        ({"timeout": 0}, "timeout: 0 must be longer than nothing"),
        ({"concurrency": 0}, "concurrency: 0 must be a whole number from 1"),
        ({"rate": "fast"}, "rate: 'fast' is not a rate"),
        ({"jitter": 2}, "jitter: 2 must be from 0 to 1"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ):
        with pytest.raises(BadOption, match=message):
            peers(deliveries, "b", **options)
    for headers in ({"x\r\ny": "1"}, {"x": "1\r\ny: 2"}, {"Host": "evil"}, {"webhook-id": "1"}):
        with pytest.raises(BadOption, match="headers"):
            deliveries.publish("n", 1, "a", headers=headers)
    with pytest.raises(BadOption, match="content_type"):
        deliveries.publish("n", 1, "a", content_type="text/plain\n")
    assert deliveries.destinations.pending("a") == []


def test_destinations_are_listed_by_name_and_by_how_they_stand(deliveries: Deliveries) -> None:
    peers(deliveries, "c", "a", "b")
    deliveries.destinations.pause("b")

    listed = deliveries.destinations.list
    assert [one.name for one in listed()] == ["a", "b", "c"]
    assert [one.name for one in listed(standing="disabled")] == ["b"]
    assert [one.name for one in listed(after="a", limit=1)] == ["b"]
    assert deliveries.destinations.set("a", timeout="3s", order="unordered").rules.timeout == 3.0
    assert deliveries.destinations.forget("a")
    assert not deliveries.destinations.forget("a")


def test_flush_tries_what_is_due_and_with_force_everything_that_waits(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=[3600])
    post.answers["a"] = lambda _: BROKEN
    first, second = (deliveries.publish("n", number, "a") for number in range(2))

    assert deliveries.destinations.flush("a").waiting == [first.deliveries["a"], second.deliveries["a"]]
    assert deliveries.destinations.flush("a").delivered == []
    assert post["a"] == [b"0"]

    post.answers.clear()
    flushed = deliveries.destinations.flush("a", force=True)
    assert flushed.delivered == [first.deliveries["a"], second.deliveries["a"]]
    assert post["a"] == [b"0", b"0", b"1"]


@pytest.mark.parametrize("order", ["fifo", "unordered"])
def test_a_forced_flush_tries_everyone_once_and_charges_nobody(
    app: Durably, deliveries: Deliveries, post: Post, order: Any
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE, order=order, concurrency=2, breaker=100)
    post.answers["a"] = lambda _: BROKEN
    sent = [deliveries.publish("n", number, "a") for number in range(3)]

    for _ in range(7):
        deliveries.destinations.flush("a", force=True)

    assert Counter(post["a"]) == ({b"0": 7} if order == "fifo" else {b"0": 7, b"1": 7, b"2": 7})
    spent = [info.spent for one in sent for info in [deliveries.report(one.id)[0].info] if info is not None]
    assert spent == [0, 0, 0]


def test_flush_leaves_other_destinations_alone(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", "b")
    peers(deliveries, "c", order="unordered")
    deliveries.publish("n", 1, ["a", "b", "c"])

    deliveries.destinations.flush("a")
    assert [one.destination.name for one in post.seen] == ["a"]
    deliveries.destinations.flush("c")
    assert [one.destination.name for one in post.seen] == ["a", "c"]


def test_a_probe_asks_the_peer_with_the_message_that_waits_first(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=[], breaker=100)
    post.answers["a"] = lambda _: REFUSED
    for number in range(2):
        deliveries.publish("n", number, "a")
    app.drain()
    assert deliveries.destinations.probe("a").standing == "suspended"
    assert post["a"] == [b"0", b"0"]

    post.answers.clear()
    assert deliveries.destinations.probe("a").standing == "active"
    assert post["a"] == [b"0", b"0", b"0"]
    app.drain()
    assert post["a"][-1] == b"1"


def test_the_first_attempts_can_be_made_at_once_and_only_for_the_heads(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", "b")
    peers(deliveries, "c", order="unordered")
    post.answers["b"] = lambda _: BROKEN
    deliveries.publish("n", 0, "a")

    sent = deliveries.publish("n", 1, ["a", "b", "c"], at_once=True)

    assert (post["a"], post["b"], post["c"]) == ([b"0"], [b"1"], [b"1"])
    assert states(deliveries, sent.id) == {"a": "blocked", "b": "blocked", "c": "done"}
    app.drain()
    assert post["a"] == [b"0", b"1"]

    async def within_a_loop() -> None:
        with pytest.raises(BadOption, match="apublish"):
            deliveries.publish("n", 2, "a", at_once=True)

    asyncio.run(within_a_loop())


def test_an_application_can_make_all_first_attempts_at_once(post: Post) -> None:
    with Durably("sqlite:///:memory:", at_once=True) as app:
        app.deliveries.channels["post"] = post
        peers(app.deliveries, "a")

        app.deliveries.publish("n", 0, "a")
        assert post["a"] == [b"0"]
        app.deliveries.publish("n", 1, "a", at_once=False)
        assert post["a"] == [b"0"]
        app.drain()

        async def within_a_loop() -> None:
            app.deliveries.publish("n", 2, "a")
            assert post["a"] == [b"0", b"1"], "it would block the loop: the workers do it"
            await app.adrain()
            await app.deliveries.apublish("n", 3, "a")
            await app.aclose()

        asyncio.run(within_a_loop())
        assert post["a"] == [b"0", b"1", b"2", b"3"]


def test_an_application_can_send_and_notify_at_once(tmp_path: Path) -> None:
    with Durably("sqlite:///:memory:", at_once=True) as app:
        app.mail.sender = "shop@here.example"
        app.mail.add_transport("main", f"file://{tmp_path}")
        app.notifications.resolver({"ann": Person()}.get)
        app.notifications.kind("paid", channels=["inbox"])

        app.mail.send(to="ann@there.example", subject="Hello", text="It is paid.")
        told = app.notify("paid", "ann", {"order": 1})

        assert len(list(tmp_path.iterdir())) == 1
        assert [route.state for route in app.notifications.get(told.id).routes] == ["sent"]


def test_peers_that_failed_get_a_few_places_and_the_others_keep_their_pace(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    dead = [f"dead-{number}" for number in range(SUSPECTS + 10)]
    peers(deliveries, *dead, schedule=[0, 3600])
    peers(deliveries, "alive")
    for name in dead:
        post.answers[name] = lambda _: BROKEN
    deliveries.publish("n", 0, dead)
    app.tick()
    assert len(post.seen) == len(dead)

    deliveries.publish("n", 1, "alive")
    app.tick()
    assert len(post.seen) == len(dead) + SUSPECTS + 1
    assert post["alive"] == [b"1"]


def test_failures_at_the_same_time_are_each_one_attempt(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", order="unordered", concurrency=5, schedule=[3600, 3600], breaker=100)
    post.answers["a"] = lambda _: BROKEN
    sent = [deliveries.publish("n", number, "a") for number in range(5)]
    app.drain()

    infos = [deliveries.report(one.id)[0].info for one in sent]
    assert len(post.seen) == 5
    assert [info and info.spent for info in infos] == [1] * 5
    assert deliveries.destinations.get("a").condition.failures == 5


def test_what_was_taken_is_done_even_if_the_store_is_away_for_a_moment(
    app: Durably, deliveries: Deliveries, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)
    sent = deliveries.publish("n", 1, "a")
    store, left = app.store, [3]
    real = store.arun

    def arun(_: Any, op: Any) -> Any:
        if op.name == "change_destination" and left[0] > 0 and len(post.seen) > 1:
            left[0] -= 1
            raise StoreUnavailable("away", fleeting=True)
        return real(op)

    monkeypatch.setattr(type(store), "arun", arun)
    post.answers["a"] = lambda _: BROKEN if len(post.seen) == 1 else OK
    app.drain()

    assert len(post.seen) == 2
    assert states(deliveries, sent.id) == {"a": "done"}


def test_what_was_overtaken_is_delivered_after_a_resume(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", policy="overtake", schedule=[3600])
    post.answers["a"] = lambda delivery: BROKEN if delivery.message.body == b"0" else OK
    sent = [deliveries.publish("n", number, "a") for number in range(3)]
    app.drain()
    post.answers.clear()
    deliveries.destinations.resume("a")
    app.drain()

    assert [states(deliveries, one.id)["a"] for one in sent] == ["done"] * 3


def test_what_was_taken_is_done_even_if_its_destination_is_forgotten_meanwhile(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)

    def forgetting(delivery: Delivery) -> Outcome:
        if len(post.seen) == 1:
            return BROKEN
        app.store.run(forget_destination(Destination("default", "a", "post", "post:a")))
        return OK

    post.answers["a"] = forgetting
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    assert states(deliveries, sent.id) == {"a": "done"}


def test_a_member_of_an_audience_who_cannot_be_reached_at_all_is_left_out_and_named(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    def check(address: str) -> None:
        if "inside" in address:
            raise BadOption("it is inside")

    post.check = check  # type: ignore[attr-defined]

    @deliveries.audience
    def followers() -> list[str]:
        return ["https://one.example/", "https://inside.example/", "https://two.example/"]

    sent = deliveries.publish("n", 1, followers(), channel="post")
    assert list(sent.deliveries) == ["https://one.example/", "https://two.example/"]
    assert sent.refused == {"https://inside.example/": "it is inside"}
    with pytest.raises(BadOption, match="it is inside"):
        deliveries.publish("n", 1, ["https://one.example/", "https://inside.example/"], channel="post")


def test_a_held_line_stays_held_when_a_permit_comes_back(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", order="unordered", concurrency=1)
    post.answers["a"] = lambda _: Outcome(kind=Kind.THROTTLED, reason="429", retry_after=3600)
    sent = [deliveries.publish("n", number, "a") for number in range(20)]
    app.drain()

    infos = [deliveries.report(one.id)[0].info for one in sent]
    assert sorted(info.attempt for info in infos if info is not None) == [0] * 19 + [1]


def test_a_message_that_cannot_be_decoded_any_more_is_a_dead_letter(
    app: Durably, deliveries: Deliveries, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers(deliveries, "a")
    sent = deliveries.publish("n", 1, "a")

    class Lost:
        def encode(self, data: bytes) -> bytes:
            return data

        def decode(self, data: bytes) -> bytes:
            if data == b"1":
                raise ValueError("no such key")
            return data

    monkeypatch.setattr(app._engine, "codec", Lost())
    app.drain()

    assert states(deliveries, sent.id) == {"a": "dead"}
    assert post.seen == []


def test_what_waits_for_a_forgotten_destination_becomes_dead_letters(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", schedule=[3600])
    deliveries.destinations.pause("a")
    sent = deliveries.publish("n", 1, "a")
    app.drain()
    deliveries.destinations.forget("a")
    app.drain()

    assert states(deliveries, sent.id) == {"a": "dead"}


def test_a_new_address_is_signed_and_a_secret_that_cannot_sign_is_refused(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    deliveries.channels["webhook"] = post
    deliveries.publish("n", 1, "https://new.example/hook")
    app.drain()

    assert len(post.seen[0].secrets) == 1
    assert post.seen[0].secrets[0] not in repr(post.seen[0])
    with pytest.raises(BadOption, match="webhook secret"):
        deliveries.destinations.add("b", "post:b", secret="hunter2")
    with pytest.raises(BadOption, match="webhook secret"):
        deliveries.destinations.rotate("https://new.example/hook", "hunter2")


def test_what_is_no_id_is_no_message(deliveries: Deliveries) -> None:
    assert deliveries.report("nonsense") == []
    with pytest.raises(UnknownTask, match="there is no message 'nonsense'"):
        deliveries.message("nonsense")


def test_what_was_under_way_when_a_worker_left_may_have_arrived(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a")
    sent = deliveries.publish("n", 1, "a")

    async def story() -> None:
        begun = asyncio.Event()
        deliver = post.deliver

        async def hang(delivery: Delivery) -> Outcome:
            await deliver(delivery)
            begun.set()
            return await asyncio.Future()

        post.deliver = hang  # type: ignore[method-assign]
        worker = app.worker(grace=0)
        serving = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        await serving
        post.deliver = deliver  # type: ignore[method-assign]
        await app.aclose()

    asyncio.run(story())
    app.drain()

    assert [delivery.possible_duplicate for delivery in post.seen] == [False, True]
    assert states(deliveries, sent.id) == {"a": "done"}


def test_the_report_says_why_an_attempt_was_not_charged(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a")
    post.answers["a"] = lambda _: Outcome(kind=Kind.INFRA, reason="no sockets left")
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    [report] = deliveries.report(sent.id)
    assert (report.reason, report.possible_duplicate) == ("infra: no sockets left", False)
    assert report.info is not None
    assert report.info.spent == 0


def test_the_report_marks_what_may_have_arrived(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", schedule=[3600])
    post.answers["a"] = lambda _: Outcome(kind=Kind.UNKNOWN, reason="no answer")
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    assert deliveries.report(sent.id)[0].possible_duplicate


def test_a_replay_of_what_died_with_its_workers_is_a_possible_duplicate(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a")
    sent = deliveries.publish("n", 1, "a")
    handle = app.handle(sent.deliveries["a"])
    lives = 0
    while handle.state() != "dead":
        lives += 1
        app.store.run(open_session(f"doomed {lives}", 60_000_000, "host", 1, "{}"))
        for alone in (False, True):
            held = app.store.run(claim(f"doomed {lives}", ("deliveries",), 1, alone=alone)).tasks
            app.store.run(commit([lapse(task) for task in held]))
    assert lives > 1
    assert post.seen == []

    app.dead.replay()
    app.drain()

    assert [delivery.possible_duplicate for delivery in post.seen] == [True]
    assert [one.possible_duplicate for one in deliveries.report(sent.id)] == [True]


def test_a_replay_of_what_the_peer_refused_is_none(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a")
    post.answers["a"] = lambda delivery: Outcome(kind=Kind.PERMANENT, reason="422") if len(post.seen) == 1 else OK
    deliveries.publish("n", 1, "a")
    app.drain()
    app.dead.replay()
    app.drain()

    assert [delivery.possible_duplicate for delivery in post.seen] == [False, False]


@pytest.mark.parametrize("order", ["fifo", "unordered"])
def test_dead_letters_are_found_counted_replayed_and_purged_by_destination(
    app: Durably, deliveries: Deliveries, post: Post, order: str
) -> None:
    refusing = True
    peers(deliveries, "a", "b", order=order)
    for name in ("a", "b"):
        post.answers[name] = lambda _: Outcome(kind=Kind.PERMANENT, reason="422") if refusing else OK
    sent = [deliveries.publish("n", number, ["a", "b"]) for number in range(3)]
    app.drain()
    refusing = False
    of_a = [one.deliveries["a"] for one in sent]

    assert {letter.id for letter in app.dead.list(destination="a")} == set(of_a)
    assert app.dead.list(destination="nobody") == []
    assert app.dead.replay(destination="a", dry_run=True) == 3
    assert len(app.dead.list()) == 6
    assert app.dead.replay(destination="a") == 3
    app.drain()
    assert app.dead.list(destination="a") == []
    again = [one.message.id for one in post.seen if one.destination.name == "a"][3:]
    ids = [one.id for one in sent]
    assert again == ids if order == "fifo" else sorted(again) == sorted(ids)

    assert app.dead.purge(destination="b", dry_run=True) == 3
    assert app.dead.purge(destination="b") == 3
    assert app.dead.list() == []


def test_a_hook_is_told_of_every_change_that_a_peer_makes(app: Durably, deliveries: Deliveries, post: Post) -> None:
    told: list[tuple[str, str, str, str]] = []

    @deliveries.on_change
    @app.task
    async def look(change: DestinationChange) -> None:
        told.append((change.destination, change.before, change.standing, change.reason))

    peers(deliveries, "a", "b", schedule=AT_ONCE)
    gone = Outcome(kind=Kind.GONE, reason="410 Gone")
    throttled = Outcome(kind=Kind.THROTTLED, reason="429", retry_after=0.0)
    post.answers = {"a": lambda _: gone, "b": lambda _: throttled}
    deliveries.publish("n", 1, ["a", "b"])
    app.drain()
    deliveries.destinations.pause("b")
    deliveries.destinations.resume("b")
    post.answers.clear()
    app.drain()

    assert sorted(told) == [("a", "active", "gone", "410 Gone"), ("b", "active", "throttled", "429")]


def test_a_hook_that_takes_something_else_is_refused_at_once(app: Durably, deliveries: Deliveries) -> None:
    @app.task
    async def look(letter: str) -> None: ...

    with pytest.raises(DurablyError, match="change"):
        deliveries.on_change(look)


def test_the_report_tells_what_last_went_wrong(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a")
    post.answers["a"] = lambda _: BROKEN
    sent = deliveries.publish("n", 1, "a")
    app.tick()

    assert [one.reason for one in deliveries.report(sent.id)] == ["500 Internal Server Error"]


def test_the_old_secret_signs_for_as_long_as_the_rotation_says(app: Durably, deliveries: Deliveries) -> None:
    deliveries.destinations.add("a", "https://a.example/hooks")
    [first] = deliveries.destinations.secrets("a")
    second = deliveries.destinations.rotate("a")
    assert deliveries.destinations.secrets("a") == (second, first)

    third = deliveries.destinations.rotate("a", overlap=0)
    assert deliveries.destinations.secrets("a") == (third,)
    with pytest.raises(BadOption, match="overlap"):
        deliveries.destinations.rotate("a", overlap="soon")


def test_a_webhook_need_not_be_signed_and_then_needs_no_key(
    app: Durably, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not deliveries.destinations.add("a", "https://a.example/hooks", signed=False).signed
    assert deliveries.destinations.secrets("a") == ()
    assert deliveries.destinations.add("b", "post:b", channel="post").signed is False
    with pytest.raises(BadOption, match="needs none"):
        deliveries.destinations.add("c", "https://c.example/hooks", signed=False, secret="whsec_" + "A" * 44)


def test_a_channel_finds_again_what_it_has_kept(app: Durably, deliveries: Deliveries, post: Post) -> None:
    peers(deliveries, "a", schedule=AT_ONCE)
    script = [
        Outcome(kind=Kind.TRANSIENT, reason="half of it", kept={"sent": ["ann"]}),
        Outcome(kind=Kind.TRANSIENT, reason="nobody there"),
        Outcome(kind=Kind.OK, reason="all of it", kept={"sent": ["ann", "bob"]}),
    ]
    post.answers["a"] = lambda _: script[len(post.seen) - 1]
    sent = deliveries.publish("n", 1, "a")
    app.drain()

    assert [delivery.kept for delivery in post.seen] == [None, {"sent": ["ann"]}, {"sent": ["ann"]}]
    assert app.handle(sent.deliveries["a"]).info().result == {"kept": {"sent": ["ann", "bob"]}}


def test_a_flush_tries_everything_and_leaves_nothing_behind_for_a_worker_of_the_same_coroutine(
    app: Durably, deliveries: Deliveries, post: Post
) -> None:
    peers(deliveries, "a", order="unordered", schedule=[3600])
    post.answers["a"] = lambda _: BROKEN
    sent = [deliveries.publish("n", number, "a") for number in range(6)]

    async def story() -> list[int]:
        failed = await deliveries.destinations.aflush("a", force=True)
        post.answers.clear()
        flushed = await deliveries.destinations.aflush("a", force=True)
        await app.aclose()
        assert DRIVEN.get() is None
        return [len(failed.waiting), len(flushed.delivered)]

    assert asyncio.run(story()) == [6, 6]
    assert Counter(delivery.message.id for delivery in post.seen) == {one.id: 2 for one in sent}
