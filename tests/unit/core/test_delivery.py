"""What an attempt to deliver comes to: the rules, one by one, without any peer."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from durably.core.delivery import (
    DAY,
    GONE_AFTER,
    LONGEST_WAIT,
    LOOK_AGAIN,
    Again,
    Breaker,
    Condition,
    Dead,
    Destination,
    Done,
    Dropped,
    Go,
    Kind,
    Message,
    Outcome,
    Rules,
    Standing,
    Verdict,
    Wait,
    admit,
    diverts,
    settle,
)
from durably.core.moment import SECOND

NOW = 20_000 * DAY
EXACT = Rules(jitter=0.0)
REFUSED = Outcome(kind=Kind.TRANSIENT, reason="connection refused", unreachable=True, breaks=True)
BROKEN = Outcome(kind=Kind.TRANSIENT, reason="500", breaks=True)
MISSING = Outcome(kind=Kind.TRANSIENT, reason="404")
FINE = Outcome(kind=Kind.OK, reason="204")


def after(outcome: Outcome, spent: int = 1, rules: Rules = EXACT, **condition: Any) -> tuple[Verdict, Condition]:
    return settle(rules, Condition(**condition), outcome, spent, NOW, 0.5)


@pytest.mark.parametrize(("spent", "wait"), [(1, 30.0), (2, 300.0), (3, 1800.0), (4, 21_600.0), (5, 86_400.0)])
@pytest.mark.parametrize("outcome", [MISSING, REFUSED], ids=["answered", "unreachable"])
def test_failures_wait_as_the_schedule_says(outcome: Outcome, spent: int, wait: float) -> None:
    verdict, _ = after(outcome, spent)

    assert verdict == Again(wait, outcome.reason)


def test_the_sixth_failure_is_a_dead_letter_with_its_reason() -> None:
    assert after(MISSING, 6)[0] == Dead("attempts exhausted (6): 404", certain=False)


def test_a_peer_that_cannot_be_reached_is_suspended_and_its_head_stays_as_the_probe() -> None:
    verdict, condition = after(REFUSED, 6)

    assert verdict == Again(1800.0, "connection refused", charged=False)
    assert condition.standing is Standing.SUSPENDED
    due = NOW + 1800 * SECOND
    assert condition.until == due
    assert admit(EXACT, condition, "t", due - 1) == Wait(1e-6, "suspended: connection refused")
    assert isinstance(admit(EXACT, condition, "t", due), Go)


def test_a_suspended_peer_is_not_probed_all_the_time_however_short_the_schedule_is() -> None:
    assert after(REFUSED, 2, Rules(schedule=(0.0,), jitter=0.0))[0] == Again(
        1800.0, "connection refused", charged=False
    )


@pytest.mark.parametrize("standing", [Standing.THROTTLED, Standing.SUSPENDED])
def test_an_answer_makes_a_destination_active_again(standing: Standing) -> None:
    held: dict[str, Any] = {
        "standing": standing,
        "reason": "r",
        "until": NOW - 1,
        "failures": 9,
        "breaker": "half-open",
        "probe": "t",
    }

    assert after(FINE, unreachable=(1, 2), learned="cavage", **held) == (Done(), Condition(learned="cavage"))
    assert after(MISSING, **held)[1] == Condition()


def test_a_success_on_an_active_destination_changes_nothing() -> None:
    assert after(FINE)[1] == Condition()


@pytest.mark.parametrize("outcome", [FINE, MISSING, REFUSED, Outcome(kind=Kind.THROTTLED, retry_after=9.0)])
@pytest.mark.parametrize("standing", [Standing.DISABLED, Standing.GONE])
def test_what_an_operator_decided_is_not_forgotten_when_a_late_answer_comes(
    outcome: Outcome, standing: Standing
) -> None:
    _, condition = after(outcome, 6, standing=standing, reason="paused")

    assert (condition.standing, condition.reason) == (standing, "paused")


def test_a_disabled_peer_can_still_turn_out_to_be_gone() -> None:
    gone = Outcome(kind=Kind.GONE, reason="410")

    assert after(gone, standing=Standing.DISABLED, reason="paused")[1].standing is Standing.GONE


@pytest.mark.parametrize("outcome", [FINE, MISSING, BROKEN])
def test_who_asked_for_time_gets_it_whatever_was_under_way_already(outcome: Outcome) -> None:
    _, condition = after(outcome, standing=Standing.THROTTLED, reason="429", until=NOW + 9)

    assert (condition.standing, condition.until >= NOW + 9) == (Standing.THROTTLED, True)


def test_a_disable_that_comes_with_a_429_is_not_lost() -> None:
    _, condition = after(Outcome(kind=Kind.THROTTLED, reason="429", disables=True))

    assert condition.standing is Standing.DISABLED


def test_a_throttled_destination_waits_as_a_whole_and_no_attempt_is_charged() -> None:
    verdict, condition = after(Outcome(kind=Kind.THROTTLED, reason="429", retry_after=120.0), 1)

    assert verdict == Again(120.0, "429", charged=False)
    assert condition.standing is Standing.THROTTLED
    assert admit(EXACT, condition, "other", NOW) == Wait(120.0, "throttled: 429")


@pytest.mark.parametrize(("asked", "spent", "wait"), [(5.0, 1, 30.0), (60.0, 1, 60.0), (1e12, 1, LONGEST_WAIT)])
def test_a_peer_may_ask_for_more_time_but_not_for_less_and_not_for_ever(asked: float, spent: int, wait: float) -> None:
    for kind in (Kind.THROTTLED, Kind.TRANSIENT):
        verdict, _ = after(Outcome(kind=kind, retry_after=asked), spent)
        assert isinstance(verdict, Again)
        assert verdict.seconds == wait


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_chance_only_stretches(chance: float) -> None:
    verdict, _ = settle(Rules(jitter=0.2), Condition(), MISSING, 1, NOW, chance)

    assert isinstance(verdict, Again)
    assert verdict.seconds == pytest.approx(30 * (1 + 0.2 * chance))


def test_permanent_is_dead_at_once_and_says_nothing_about_the_destination() -> None:
    assert after(Outcome(kind=Kind.PERMANENT, reason="413")) == (Dead("413", certain=True), Condition())


def test_gone_ends_the_message_and_all_that_come_after_it() -> None:
    verdict, condition = after(Outcome(kind=Kind.GONE, reason="410"))

    assert verdict == Dead("gone: 410", certain=False)
    assert admit(EXACT, condition, "next", NOW) == Dead("gone: 410")


def test_who_wants_nothing_more_is_disabled_and_the_message_waits_uncharged() -> None:
    verdict, condition = after(Outcome(kind=Kind.GONE, reason="410", disables=True))

    assert verdict == Again(LOOK_AGAIN, "410", charged=False)
    assert condition.standing is Standing.DISABLED
    assert admit(EXACT, condition, "t", NOW) == Wait(LOOK_AGAIN, "disabled: 410")


def test_a_receiver_may_take_a_message_and_want_no_more() -> None:
    verdict, condition = after(Outcome(kind=Kind.OK, reason="it asked to be disabled", disables=True))

    assert verdict == Done()
    assert condition.standing is Standing.DISABLED


def test_our_own_mistakes_disable_and_our_own_outages_wait_and_neither_is_charged() -> None:
    known: dict[str, Any] = {"failures": 2, "unreachable": (1,), "learned": "x"}
    mistake, disabled = after(Outcome(kind=Kind.MISCONFIGURED, reason="no secret"), **known)
    outage, untouched = after(Outcome(kind=Kind.INFRA, reason="no network"), **known)
    busy, _ = after(Outcome(kind=Kind.INFRA, reason="busy", retry_after=1.0), **known)

    assert mistake == Again(LOOK_AGAIN, "misconfigured: no secret", charged=False)
    assert disabled.standing is Standing.DISABLED
    assert outage == Again(30.0, "infra: no network", charged=False)
    assert busy == Again(1.0, "infra: busy", charged=False)
    assert untouched == Condition(**known)


def test_an_unknown_outcome_uses_the_schedule_and_says_so() -> None:
    outcome = Outcome(kind=Kind.UNKNOWN, reason="no answer after the body was sent", breaks=True)

    assert after(outcome)[0] == Again(30.0, "unknown: no answer after the body was sent")
    assert after(outcome, 6)[0] == Dead("attempts exhausted (6): unknown: no answer after the body was sent")


def test_a_peer_is_gone_after_seven_different_days_without_an_answer() -> None:
    condition = Condition()
    for day in range(GONE_AFTER):
        for hour in (0, 12):
            verdict, condition = settle(EXACT, condition, REFUSED, 6, NOW + day * DAY + hour * 3600 * SECOND, 0.0)
            if day < GONE_AFTER - 1:
                assert isinstance(verdict, Again)
    assert verdict == Dead("gone: not reached on 7 different days; the last time: connection refused")
    assert condition.standing is Standing.GONE


@pytest.mark.parametrize(("days", "gone_after"), [(1, 2), (2, 2), (30, None)])
def test_how_many_days_a_peer_may_be_silent_can_be_chosen(days: int, gone_after: int | None) -> None:
    rules, condition = msgspec.structs.replace(EXACT, gone_after=gone_after), Condition()
    for day in range(days):
        verdict, condition = settle(rules, condition, REFUSED, 6, NOW + day * DAY, 0.0)

    assert isinstance(verdict, Dead if days == gone_after else Again)
    assert condition.standing is (Standing.GONE if days == gone_after else Standing.SUSPENDED)
    assert condition.unreachable == tuple(NOW // DAY + day for day in range(days))[-7:]


def test_the_days_begin_anew_when_somebody_answers() -> None:
    assert after(BROKEN, unreachable=(1, 2, 3))[1].unreachable == ()
    assert after(REFUSED, unreachable=(1,))[1].unreachable == (1, NOW // DAY)


def test_the_breaker_opens_after_so_many_failures_in_a_row() -> None:
    condition = Condition()
    for count in range(1, 5):
        _, condition = settle(EXACT, condition, BROKEN, 1, NOW, 0.0)
        assert (condition.breaker, condition.failures) == ("closed", count)
    _, condition = settle(EXACT, condition, BROKEN, 1, NOW, 0.0)

    assert condition.breaker == "open"
    assert admit(EXACT, condition, "t", NOW) == Wait(30.0, "active: 500")


def test_an_answer_that_is_no_failure_of_the_peer_starts_the_count_again() -> None:
    assert after(MISSING, failures=4)[1].failures == 0


def test_one_probe_at_a_time_while_the_breaker_is_half_open() -> None:
    opened = Condition(breaker="open", failures=5, until=NOW)
    chosen = admit(EXACT, opened, "first", NOW)
    assert isinstance(chosen, Go)
    assert chosen.condition is not None
    assert (chosen.condition.breaker, chosen.condition.probe) == ("half-open", "first")

    assert isinstance(admit(EXACT, chosen.condition, "second", NOW), Wait)
    again = admit(EXACT, chosen.condition, "first", NOW)
    assert isinstance(again, Go)
    taken_over = admit(EXACT, chosen.condition, "second", chosen.condition.probe_until)
    assert isinstance(taken_over, Go)
    assert taken_over.condition is not None
    assert taken_over.condition.probe == "second"


def test_failures_that_were_under_way_when_the_breaker_opened_do_not_keep_it_open_longer() -> None:
    condition = Condition()
    for _ in range(20):
        _, condition = settle(EXACT, condition, BROKEN, 1, NOW, 0.0)

    assert (condition.failures, condition.until) == (5, NOW + 30 * SECOND)


def test_a_peer_that_wants_time_without_saying_how_much_gets_some() -> None:
    verdict, _ = after(Outcome(kind=Kind.THROTTLED, reason="429"), rules=Rules(schedule=(), jitter=0.0))

    assert verdict == Again(30.0, "429", charged=False)


def test_who_is_held_back_asks_again_now_and_then() -> None:
    condition = Condition(Standing.THROTTLED, "429", until=NOW + DAY)

    assert admit(EXACT, condition, "t", NOW) == Wait(LOOK_AGAIN, "throttled: 429")


def test_a_rate_is_left_to_the_limit_where_there_is_no_order() -> None:
    assert admit(Rules(rate=1.0, order="unordered"), Condition(sent_at=NOW), "t", NOW) == Go()


def test_a_probe_that_fails_keeps_the_breaker_open_for_twice_as_long() -> None:
    waits = []
    condition = Condition(breaker="half-open", failures=5, probe="t")
    for _ in range(3):
        _, condition = settle(EXACT, condition, BROKEN, 1, NOW, 0.0)
        waits.append((condition.until - NOW) / SECOND)
        condition = msgspec.structs.replace(condition, breaker="half-open", until=0)

    assert waits == [60.0, 120.0, 240.0]
    assert settle(EXACT, condition, FINE, 1, NOW, 0.0)[1].breaker == "closed"


def test_a_rate_is_kept_where_nobody_else_has_looked_at_it() -> None:
    rules = Rules(rate=4.0, order="unordered")

    assert admit(rules, Condition(), "t", NOW, paced=True) == Go(Condition(sent_at=NOW))
    assert admit(rules, Condition(sent_at=NOW), "t", NOW, paced=True) == Wait(0.25, "no more than 4 a second")
    assert admit(Rules(order="unordered"), Condition(sent_at=NOW), "t", NOW, paced=True) == Go()


def test_what_nobody_should_get_is_dropped_and_shows_nothing_about_the_peer() -> None:
    known: dict[str, Any] = {"failures": 2, "unreachable": (1,)}
    verdict, condition = after(Outcome(kind=Kind.UNWANTED, reason="suppressed", asked=False), **known)

    assert verdict == Dropped("suppressed")
    assert condition == Condition(**known)


@pytest.mark.parametrize(
    ("outcome", "other_way"),
    [
        (REFUSED, True),
        (BROKEN, True),
        (Outcome(kind=Kind.MISCONFIGURED), True),
        (Outcome(kind=Kind.THROTTLED), True),
        (MISSING, False),
        (FINE, False),
        (Outcome(kind=Kind.UNKNOWN, breaks=True), False),
        (Outcome(kind=Kind.PERMANENT, breaks=True), False),
        (Outcome(kind=Kind.PERMANENT, elsewhere=True), True),
        (Outcome(kind=Kind.TRANSIENT, elsewhere=True), True),
        (Outcome(kind=Kind.UNKNOWN, elsewhere=True), False),
        (Outcome(kind=Kind.INFRA), False),
    ],
)
def test_another_way_is_tried_only_if_this_one_is_in_trouble_and_nobody_can_have_it(
    outcome: Outcome, other_way: bool
) -> None:
    assert diverts(outcome) is other_way


def test_a_rate_is_kept_by_spacing_attempts() -> None:
    rules = Rules(rate=4.0)
    first = admit(rules, Condition(), "t", NOW)
    assert first == Go(Condition(sent_at=NOW))

    assert admit(rules, Condition(sent_at=NOW), "t", NOW) == Wait(0.25, "no more than 4 a second")
    assert admit(rules, Condition(sent_at=NOW), "t", NOW + SECOND // 4) == Go(Condition(sent_at=NOW + SECOND // 4))


def test_the_words_do_not_change_since_they_are_stored() -> None:
    assert [str(kind) for kind in Kind] == [
        "ok",
        "transient",
        "throttled",
        "permanent",
        "gone",
        "misconfigured",
        "infra",
        "unknown",
        "unwanted",
    ]
    assert [str(standing) for standing in Standing] == ["active", "throttled", "suspended", "disabled", "gone"]
    assert get_args(Breaker) == ("closed", "open", "half-open")


def test_what_is_left_out_means_the_usual() -> None:
    assert Rules() == Rules(
        "fifo", (30.0, 300.0, 1800.0, 21_600.0, 86_400.0), 15.0, 10, None, "block", 604_800.0, 5, 30.0, 0.1, None
    )
    assert msgspec.json.encode([Rules(), Condition()]) == b"[{},{}]"
    assert Message("i", "k", b"") == Message("i", "k", b"", "application/json", {}, None, 0)
    assert Again(1.0, "r").charged is True
    assert Destination("n", "a", "c", "x") == Destination("n", "a", "c", "x", Rules(), Condition(), None, 0, 0)
    structs = (Outcome, Rules, Condition, Destination, Message, Go, Wait, Done, Again, Dead, Dropped)
    assert all(struct.__struct_config__.frozen for struct in structs)


@pytest.mark.parametrize(("spent", "wait"), [(0, 30.0), (1, 30.0), (3, 1800.0), (9, 86_400.0)])
def test_a_throttled_peer_waits_at_least_as_the_schedule_says(spent: int, wait: float) -> None:
    verdict, _ = after(Outcome(kind=Kind.THROTTLED, reason="429", retry_after=1.0), spent)

    assert verdict == Again(wait, "429", charged=False)


@pytest.mark.parametrize("chance", [0.25, 1.0])
def test_chance_stretches_every_wait(chance: float) -> None:
    rules = Rules(jitter=0.2)
    infra, _ = settle(rules, Condition(), Outcome(kind=Kind.INFRA), 1, NOW, chance)
    suspended, _ = settle(rules, Condition(), REFUSED, 6, NOW, chance)

    assert isinstance(infra, Again)
    assert isinstance(suspended, Again)
    assert infra.seconds == pytest.approx(30 * (1 + 0.2 * chance))
    assert suspended.seconds == pytest.approx(1800 * (1 + 0.2 * chance))


def test_a_schedule_may_say_at_once() -> None:
    assert after(MISSING, 1, Rules(schedule=(0.0,), jitter=0.0))[0] == Again(0.0, "404")


def test_the_time_that_was_asked_for_is_over_when_it_has_come() -> None:
    assert after(FINE, standing=Standing.THROTTLED, reason="429", until=NOW)[1] == Condition()


def test_when_the_last_attempt_began_is_kept_for_the_rate() -> None:
    assert after(FINE, sent_at=NOW - 5)[1].sent_at == NOW - 5


def test_what_was_learned_replaces_what_was_known() -> None:
    assert after(Outcome(kind=Kind.OK, learned="cavage"), learned="rfc9421")[1].learned == "cavage"


def test_the_reason_is_the_one_that_opened_the_breaker_or_suspended_the_peer() -> None:
    later = Outcome(kind=Kind.TRANSIENT, reason="502", breaks=True)
    opened = after(later, breaker="open", failures=5, reason="500", until=NOW + 1)[1]
    suspended = after(REFUSED, standing=Standing.SUSPENDED, reason="dead", breaker="half-open", failures=5)[1]

    assert (opened.reason, suspended.reason) == ("500", "dead")


def test_a_probe_that_fails_opens_the_breaker_however_many_failures_are_allowed() -> None:
    _, condition = after(BROKEN, rules=Rules(breaker=9), breaker="half-open", failures=2)

    assert (condition.breaker, condition.until) == ("open", NOW + 30 * SECOND)


def test_a_breaker_stays_open_no_longer_than_it_can_be_counted() -> None:
    _, condition = after(BROKEN, rules=Rules(cooldown=0.01), breaker="half-open", failures=5000)

    assert condition.until == NOW + round(0.01 * 2**20 * SECOND)


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (Rules(rate=9.0), (None, None, 1.0)),
        (Rules(order="unordered"), (10, None, 1.0)),
        (Rules(order="unordered", rate=0.5, concurrency=2), (2, 0.5, 1.0)),
        (Rules(order="unordered", rate=7.0), (10, 7.0, 7.0)),
    ],
)
def test_deliveries_that_need_no_order_are_limited(rules: Rules, limit: tuple[int | None, float | None, float]) -> None:
    assert Destination("default", "acme", "webhook", "", rules).limit == limit


@pytest.mark.parametrize(("namespace", "line"), [("default", "to acme"), ("shop", "to shop/acme")])
def test_the_line_of_a_destination_is_that_of_its_namespace(namespace: str, line: str) -> None:
    assert Destination(namespace, "acme", "webhook", "").line == line


def test_what_was_never_asked_has_shown_nothing_about_the_peer() -> None:
    suspended = Condition(Standing.SUSPENDED, failures=7, breaker="half-open", unreachable=(1, 2))
    never = Outcome(kind=Kind.PERMANENT, reason="no key", asked=False)

    assert settle(EXACT, suspended, never, 1, NOW, 0.5) == (Dead("no key", certain=True), suspended)


def test_a_peer_is_left_alone_for_as_long_as_it_asked_whatever_message_met_it() -> None:
    asked = Outcome(kind=Kind.THROTTLED, reason="429", retry_after=45.0)
    verdict, condition = after(asked, spent=5)

    assert verdict == Again(86_400.0, "429", charged=False)
    assert condition.until == NOW + 45 * SECOND
    assert after(Outcome(kind=Kind.THROTTLED, retry_after=10.0**9))[1].until == NOW + 86_400 * SECOND
    assert after(Outcome(kind=Kind.THROTTLED))[1].until == NOW + 30 * SECOND
    stretched = settle(Rules(jitter=0.5), Condition(), asked, 1, NOW, 1.0)[1]
    assert stretched.until == NOW + 67_500_000


def test_what_is_not_said_is_harmless() -> None:
    assert Outcome(kind=Kind.OK) == Outcome(
        kind=Kind.OK,
        reason="",
        retry_after=None,
        unreachable=False,
        breaks=False,
        disables=False,
        asked=True,
        possible_duplicate=False,
        alarming=False,
        elsewhere=False,
        learned=None,
        status=None,
        body="",
        kept=None,
    )
    assert Condition() == Condition(Standing.ACTIVE, "", 0, 0, "closed", None, 0, (), None, 0)
    with pytest.raises(TypeError):
        Outcome(Kind.OK)  # type: ignore[call-arg]


def test_the_waits_are_what_the_documentation_says() -> None:
    assert DAY == 86_400_000_000
    assert admit(EXACT, Condition(Standing.DISABLED), "t", NOW) == Wait(600.0, "disabled: ")
    half_open = admit(Rules(timeout=5.0), Condition(breaker="open"), "t", NOW)
    assert isinstance(half_open, Go)
    assert half_open.condition is not None
    assert half_open.condition.probe_until == NOW + 65 * SECOND


@pytest.mark.parametrize(
    ("shown", "known"),
    [
        ({}, {}),
        ({"learned": "cavage"}, {"learned": "cavage"}),
        ({"disables": True, "reason": "stop"}, {"standing": Standing.DISABLED, "reason": "stop"}),
        ({"breaks": True}, {"failures": 1}),
    ],
)
def test_a_success_with_a_peer_that_is_well_changes_only_what_it_has_shown(
    shown: dict[str, Any], known: dict[str, Any]
) -> None:
    assert after(Outcome(kind=Kind.OK, **shown)) == (Done(), Condition(**known))
