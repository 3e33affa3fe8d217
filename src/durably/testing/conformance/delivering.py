"""Destinations and messages: added once, changed by one at a time, kept for as long as somebody may ask."""

from __future__ import annotations

import msgspec

from durably.core import lifecycle
from durably.core.delivery import Condition, Destination, Message, Rules, Standing
from durably.core.task import Failure
from durably.errors import BadOption
from durably.stores.operations.commit import commit
from durably.stores.operations.deliver import (
    FIRST,
    add_destinations,
    change_and_tell,
    change_destination,
    change_rules,
    deliveries_of,
    destinations,
    forget_destination,
    list_destinations,
    load,
    pending,
    prune_messages,
    publish,
)
from durably.stores.operations.read import gates
from durably.stores.operations.sweep import prune
from durably.testing.world import RETRY, World

HOUR = 3600


def a_peer(name: str, address: str = "post:x") -> Destination:
    return Destination("default", name, "post", address, Rules(timeout=7.0), Condition(learned="x"), b"sealed")


def a_message(world: World) -> Message:
    return Message(world.draft().id, "kind", b"\x00\xffbody", "text/plain", {"x": "y"}, "sender")


def sent(world: World, message: Message, name: str) -> str:
    """Publish to this peer; the task that brings it there."""
    [(_, task)] = world.run(publish(message, [a_peer(name)], lambda destination: world.draft(key=destination.name)))
    return task


def limits(world: World) -> dict[str, tuple[int | None, float | None, float]]:
    return {gate.name: (gate.concurrency, gate.rate, gate.burst) for gate in world.run(gates())}


class Delivering:
    def test_a_destination_comes_back_as_it_was_added_and_is_added_once(self, world: World) -> None:
        assert world.run(add_destinations([a_peer("a"), a_peer("b")])) == {"a", "b"}
        assert world.run(add_destinations([a_peer("a", "post:other")])) == set()

        found = world.run(destinations("default", ["a", "c"]))
        now = found["a"].updated_at
        assert found == {"a": msgspec.structs.replace(a_peer("a"), version=now, updated_at=now)}
        assert world.run(destinations("other", ["a"])) == {}

    def test_of_two_who_change_a_destination_the_second_is_told(self, world: World) -> None:
        world.run(add_destinations([a_peer("a")]))
        first = world.run(destinations("default", ["a"]))["a"]
        changed = msgspec.structs.replace(first, condition=Condition(Standing.GONE, "left"))

        assert world.run(change_destination(changed))
        assert not world.run(change_destination(changed))
        found = world.run(destinations("default", ["a"]))["a"]
        assert (found.condition.standing, found.version) == (Standing.GONE, first.version + 1)

    def test_one_that_was_added_again_is_not_what_it_was(self, world: World) -> None:
        world.run(add_destinations([a_peer("a")]))
        old = world.run(destinations("default", ["a"]))["a"]
        world.run(forget_destination(old))
        world.advance(1)
        world.run(add_destinations([a_peer("a", "post:new")]))

        assert not world.run(change_destination(old))
        assert world.run(destinations("default", ["a"]))["a"].address == "post:new"

    def test_destinations_are_listed_by_name_and_standing_and_can_be_forgotten(self, world: World) -> None:
        gone = msgspec.structs.replace(a_peer("b"), condition=Condition(Standing.GONE))
        world.run(add_destinations([a_peer("c"), a_peer("a"), gone]))

        assert [one.name for one in world.run(list_destinations("default", "", None, 2))] == ["a", "b"]
        assert [one.name for one in world.run(list_destinations("default", "a", None, 9))] == ["b", "c"]
        assert [one.name for one in world.run(list_destinations("default", "", "gone", 9))] == ["b"]
        assert world.run(forget_destination(a_peer("a")))
        assert not world.run(forget_destination(a_peer("a")))

    def test_a_destination_that_needs_no_order_comes_changes_and_goes_with_its_limit(self, world: World) -> None:
        rules = Rules(order="unordered", concurrency=3, rate=2.5)
        hasty = msgspec.structs.replace(a_peer("b"), rules=rules)
        world.run(add_destinations([a_peer("a"), hasty]))
        assert limits(world) == {"g:to b": (3, 2.5, 2.5)}

        found = world.run(destinations("default", ["b"]))["b"]
        slower = msgspec.structs.replace(found, rules=Rules(order="unordered", concurrency=1))
        assert world.run(change_rules(slower))
        assert not world.run(change_rules(found)), "somebody has changed it"
        assert limits(world) == {"g:to b": (1, None, 1.0)}

        assert world.run(forget_destination(slower))
        assert limits(world) == {}

    def test_what_an_attempt_leaves_behind_is_kept_with_what_becomes_of_it(self, world: World) -> None:
        for ends in (False, True):
            task = world.add(key="k" if ends else None)
            [held] = world.claim(world.session())
            retried = msgspec.structs.replace(world.failing(held), details=b'"first"')
            world.apply(retried)
            assert world.get(task).details == b'"first"'
            world.advance(HOUR)
            world.promote()
            [held] = world.claim(world.session())
            world.apply(world.failing(held, permanent=True) if ends else lifecycle.snooze(held, 1.0))
            assert world.get(task).details == b'"first"', "nothing new was left"
            if not ends:
                world.advance(HOUR)
                world.promote()
                [held] = world.claim(world.session())
                last = msgspec.structs.replace(world.failing(held, permanent=True), details=b'"last"')
                world.apply(last)
                assert (world.get(task).state, world.get(task).details) == ("dead", b'"last"')

    def test_the_last_error_of_a_delivery_is_told(self, world: World) -> None:
        message = a_message(world)
        sent(world, message, "a")
        for error in ("first", "second"):
            [held] = world.claim(world.session())
            world.apply(lifecycle.fail(held, Failure("Boom", error), RETRY, 0.0))
            world.advance(HOUR)
            world.promote()

        assert [one.error for one in world.run(deliveries_of(message.id, "default"))] == ["second"]

    def test_a_change_is_told_by_a_task_of_its_own_or_not_made(self, world: World) -> None:
        world.run(add_destinations([a_peer("a")]))
        found = world.run(destinations("default", ["a"]))["a"]
        gone = msgspec.structs.replace(found, condition=Condition(Standing.GONE, "left"))
        told, again = world.draft(), world.draft()

        assert world.run(change_and_tell(gone, told)) == {("default", "a")}
        assert world.run(change_and_tell(gone, again)) == set()
        assert (world.exists(told.id), world.exists(again.id)) == (True, False)

    def test_a_publication_is_whole_and_sent_again_changes_nothing(self, world: World) -> None:
        message = a_message(world)
        drafts = {name: world.draft(key=name) for name in ("a", "b")}
        targets = [a_peer("a"), a_peer("b")]
        for again in (False, True):
            world.run(publish(message, targets, lambda destination: drafts[destination.name], again=again))
        tasks = {name: draft.id for name, draft in drafts.items()}
        before = world.run(deliveries_of(message.id, "default"))

        assert [(one.destination, one.id, one.task and one.task.state, one.error) for one in before] == [
            ("a", tasks["a"], "blocked", None),
            ("b", tasks["b"], "blocked", None),
        ]
        loaded = world.run(load([("default", "a")], [message.id]))
        assert msgspec.structs.replace(loaded.messages[message.id], created_at=0) == message
        assert loaded.destinations["default", "a"].rules == Rules(timeout=7.0)
        assert [task.id for task in world.run(pending("default", "a", 9))] == [tasks["a"]]

    def test_a_name_without_an_address_is_refused_and_nothing_is_accepted(self, world: World) -> None:
        message = a_message(world)
        try:
            world.run(publish(message, [a_peer("a"), a_peer("b", "")], lambda _: world.draft()))
        except BadOption:
            pass
        else:
            raise AssertionError("it was accepted")
        assert world.run(destinations("default", ["a", "b"])) == {}
        assert world.run(deliveries_of(message.id, "default")) == []

    def test_a_message_goes_when_nobody_waits_for_it_or_remembers_it(self, world: World) -> None:
        message, other = a_message(world), a_message(world)
        done = sent(world, message, "a")
        sent(world, other, "b")
        [task] = [one for one in world.claim(world.session()) if one.id == done]
        world.run(commit([lifecycle.complete(task, None, retention=10 * HOUR)]))

        world.advance(2 * HOUR)
        assert world.run(prune_messages(FIRST, 10)) == (0, FIRST)
        world.advance(9 * HOUR)
        assert world.run(prune(10)) == 1
        assert world.run(prune_messages(FIRST, 10)) == (1, FIRST)
        assert world.run(load([], [message.id, other.id])).messages.keys() == {other.id}
        assert world.run(deliveries_of(message.id, "default")) == []

    def test_messages_are_looked_through_a_few_at_a_time(self, world: World) -> None:
        for name in "abc":
            sent(world, a_message(world), name)
        world.advance(2 * HOUR)

        gone, after = world.run(prune_messages(FIRST, 2))
        assert (gone, after == FIRST) == (0, False)
        assert world.run(prune_messages(after, 2)) == (0, FIRST)
