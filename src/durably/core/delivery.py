"""Deliveries: what an attempt can come to, and what follows for the message and for its destination. Pure.

A destination remembers what its peer has shown: that it wants to be left alone, does not answer, or is gone.
Only `transient` and `unknown` outcomes use up the schedule of a message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, assert_never

import msgspec

from durably.core.moment import SECOND, micros
from durably.core.task import full_queue

DAY = 86_400 * SECOND
LONGEST_WAIT = 86_400.0
"""However long a peer wants to be left alone, it is asked again after a day."""
GONE_AFTER = 7
"""A peer that could not be reached on so many different days is gone, unless its rules say otherwise."""
SUSPENDED_FOR = 1800.0
"""Seconds between two probes of a peer that could not be reached for the whole of a schedule."""
LEAST_THROTTLE = 30.0
"""Seconds for which a peer is left alone that asked for it without saying for how long."""
LOOK_AGAIN = 600.0
"""Seconds after which a delivery that was held back asks again how its destination stands."""
INFRA_WAIT = 30.0
"""Seconds until another try when the trouble is on our side."""
STALE_PROBE = 60.0
"""Seconds beyond its timeout after which a probe that reported nothing may be taken over."""


class Kind(StrEnum):
    """What an attempt came to."""

    OK = "ok"
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    PERMANENT = "permanent"
    GONE = "gone"
    MISCONFIGURED = "misconfigured"
    INFRA = "infra"
    UNKNOWN = "unknown"
    UNWANTED = "unwanted"
    """Nobody is there who should get it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel says about one attempt. Retrying is not its business."""

    kind: Kind
    reason: str = ""
    """For people: what the peer said, or why nobody could be asked."""
    retry_after: float | None = None
    """Seconds for which the peer wants to be left alone."""
    unreachable: bool = False
    """Nobody answered at all."""
    breaks: bool = False
    """Counts for the breaker: a network error, or the peer's own failure."""
    disables: bool = False
    """The peer wants nothing more until somebody has looked at it."""
    asked: bool = True
    """The peer was asked, or nobody answered there: False if it was never tried."""
    possible_duplicate: bool = False
    """The peer may have got it twice in this attempt, or has it although this attempt failed."""
    alarming: bool = False
    """Trying again may help, but somebody should look at it now."""
    elsewhere: bool = False
    """Another way may reach what this one never can."""
    learned: str | None = None
    """What to remember about the peer, in the channel's own words."""
    status: int | None = None
    body: str = ""
    kept: Any = None
    """What the channel wants to know at the next attempt, as data; of the last one it stays with the task."""


class Standing(StrEnum):
    """How a destination stands."""

    ACTIVE = "active"
    THROTTLED = "throttled"
    SUSPENDED = "suspended"
    DISABLED = "disabled"
    GONE = "gone"


Breaker = Literal["closed", "open", "half-open"]


class Rules(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a destination is delivered to."""

    order: Literal["fifo", "unordered"] = "fifo"
    schedule: tuple[float, ...] = (30.0, 300.0, 1800.0, 21_600.0, 86_400.0)
    """Seconds to wait after each failed attempt; when they are used up, the message is a dead letter."""
    timeout: float = 15.0
    """Seconds for one attempt, with everything that belongs to it."""
    concurrency: int = 10
    """Deliveries under way at once, if they need no order."""
    rate: float | None = None
    """Deliveries per second."""
    policy: Literal["block", "overtake", "pause"] = "block"
    """What a failing head does to those behind it."""
    expires: float = 604_800.0
    """Seconds after which a message that waits is not worth delivering any more."""
    breaker: int = 5
    """Failures in a row that open the breaker."""
    cooldown: float = 30.0
    """Seconds for which it stays open at first."""
    jitter: float = 0.1
    """The share by which waits are stretched, by chance."""
    fallback: str | None = None
    """The destination that gets what this one cannot take at the moment."""
    gone_after: int | None = GONE_AFTER
    """The peer is gone when nobody has answered on so many different days; None if it never is."""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a destination remembers. Times are the store's."""

    standing: Standing = Standing.ACTIVE
    reason: str = ""
    until: int = 0
    """Nobody tries before this moment."""
    failures: int = 0
    """In a row, of the kind that the breaker counts."""
    breaker: Breaker = "closed"
    probe: str | None = None
    """The task that may try while the breaker is half-open."""
    probe_until: int = 0
    unreachable: tuple[int, ...] = ()
    """The days on which nobody answered, since somebody last did."""
    learned: str | None = None
    sent_at: int = 0
    """When the last attempt began, if a rate is kept."""


class Destination(msgspec.Struct, frozen=True):
    """A peer, or an endpoint of one."""

    namespace: str
    name: str
    channel: str
    address: str
    rules: Rules = Rules()
    condition: Condition = Condition()
    secrets: bytes | None = None
    """Sealed."""
    version: int = 0
    updated_at: int = 0

    @property
    def line(self) -> str:
        """The limit group in which its deliveries wait if they need no order."""
        return f"to {full_queue(self.namespace, self.name)}"

    @property
    def limit(self) -> tuple[int | None, float | None, float]:
        """What that group is limited to: how many at once, how many per second, and how many of these in one go."""
        if self.rules.order == "fifo":
            return None, None, 1.0
        return self.rules.concurrency, self.rules.rate, max(self.rules.rate or 1.0, 1.0)


class Message(msgspec.Struct, frozen=True):
    """What is delivered, to however many."""

    id: str
    kind: str
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    sender: str | None = None
    created_at: int = 0


class Go(msgspec.Struct, frozen=True):
    """The attempt may be made; as a probe, and at this rate, only once the condition is written."""

    condition: Condition | None = None


class Wait(msgspec.Struct, frozen=True):
    """Not now: no attempt is charged."""

    seconds: float
    reason: str


class Done(msgspec.Struct, frozen=True):
    """The peer has it."""


class Again(msgspec.Struct, frozen=True):
    """It is tried again."""

    seconds: float
    reason: str
    charged: bool = True


class Dead(msgspec.Struct, frozen=True):
    """It is a dead letter."""

    reason: str
    certain: bool = False
    """Whether trying again is known to be useless, or it was tried for long enough."""


class Dropped(msgspec.Struct, frozen=True):
    """It has become pointless."""

    reason: str


Verdict = Done | Again | Dead | Dropped
DONE = Done()
WELL = Condition()


def admit(rules: Rules, condition: Condition, task: str, now: int, *, paced: bool = False) -> Go | Wait | Dead:
    """Whether a delivery may be tried now; `paced`, if nobody else has looked at its rate."""
    if condition.standing is Standing.GONE:
        return Dead(f"gone: {condition.reason}")
    if condition.standing is Standing.DISABLED:
        return Wait(LOOK_AGAIN, f"disabled: {condition.reason}")
    if condition.until > now:
        return Wait(min((condition.until - now) / SECOND, LOOK_AGAIN), f"{condition.standing}: {condition.reason}")
    if condition.breaker != "closed":
        if condition.probe != task and condition.probe_until > now:
            return Wait(rules.cooldown, "another delivery tries whether the peer is back")
        leased = now + micros(rules.timeout + STALE_PROBE)
        return Go(msgspec.structs.replace(condition, breaker="half-open", probe=task, probe_until=leased))
    if rules.rate is None or not (paced or rules.order == "fifo"):
        return Go()
    due = condition.sent_at + micros(1 / rules.rate)
    if due > now:
        return Wait((due - now) / SECOND, f"no more than {rules.rate:g} a second")
    return Go(msgspec.structs.replace(condition, sent_at=now))


def diverts(outcome: Outcome) -> bool:
    """Whether another way is worth a try at once: this one is in trouble or not able to, and surely nobody has got the
    message in this attempt."""
    if outcome.kind in (Kind.TRANSIENT, Kind.PERMANENT) and outcome.elsewhere:
        return True
    return outcome.kind in (Kind.MISCONFIGURED, Kind.THROTTLED) or (outcome.kind is Kind.TRANSIENT and outcome.breaks)


def settle(
    rules: Rules, condition: Condition, outcome: Outcome, spent: int, now: int, chance: float
) -> tuple[Verdict, Condition]:
    """What becomes of the message after its attempt number `spent`, and how the destination stands then."""
    if condition == WELL and outcome.kind is Kind.OK and _is_no_news(outcome):
        return DONE, condition
    after = _shown(rules, condition, outcome, now)
    if outcome.disables:
        after = _stands(after, Standing.DISABLED, outcome.reason, after.until)
    match outcome.kind:
        case Kind.OK:
            return DONE, after
        case Kind.TRANSIENT | Kind.UNKNOWN:
            return _failed(rules, after, outcome, spent, now, chance)
        case Kind.THROTTLED:
            asked = max(min(outcome.retry_after or 0.0, LONGEST_WAIT), LEAST_THROTTLE) * (1 + rules.jitter * chance)
            throttled = _stands(after, Standing.THROTTLED, outcome.reason, now + micros(asked))
            wait = max(_wait(rules, spent, chance, outcome.retry_after), LEAST_THROTTLE)
            return Again(wait, outcome.reason, charged=False), throttled
        case Kind.PERMANENT:
            return Dead(outcome.reason, certain=True), after
        case Kind.GONE if outcome.disables:
            return Again(LOOK_AGAIN, outcome.reason, charged=False), after
        case Kind.GONE:
            return Dead(f"gone: {outcome.reason}"), _stands(after, Standing.GONE, outcome.reason, after.until)
        case Kind.MISCONFIGURED:
            reason = f"misconfigured: {outcome.reason}"
            disabled = _stands(after, Standing.DISABLED, reason, after.until)
            return Again(LOOK_AGAIN, reason, charged=False), disabled
        case Kind.UNWANTED:
            return Dropped(outcome.reason), after
        case Kind.INFRA:
            wait = INFRA_WAIT if outcome.retry_after is None else outcome.retry_after
            return Again(wait * (1 + rules.jitter * chance), f"infra: {outcome.reason}", charged=False), after
        case _:
            assert_never(outcome.kind)


def _is_no_news(outcome: Outcome) -> bool:
    """Whether a success shows nothing but that all is well."""
    return not (outcome.breaks or outcome.unreachable or outcome.disables) and outcome.learned is None


def _failed(
    rules: Rules, condition: Condition, outcome: Outcome, spent: int, now: int, chance: float
) -> tuple[Verdict, Condition]:
    """The schedule goes on, unless it is used up. Who could not be reached is suspended instead of given up."""
    if rules.gone_after is not None and len(condition.unreachable) >= rules.gone_after:
        reason = f"not reached on {rules.gone_after} different days; the last time: {outcome.reason}"
        return Dead(f"gone: {reason}"), _stands(condition, Standing.GONE, reason, condition.until)
    told = f"unknown: {outcome.reason}" if outcome.kind is Kind.UNKNOWN else outcome.reason
    wait = _wait(rules, spent, chance, outcome.retry_after)
    if spent <= len(rules.schedule):
        return Again(wait, told), condition
    if outcome.unreachable:
        wait = SUSPENDED_FOR * (1 + rules.jitter * chance)
        suspended = _stands(condition, Standing.SUSPENDED, outcome.reason, now + micros(wait))
        return Again(wait, told, charged=False), suspended
    return Dead(f"attempts exhausted ({spent}): {told}"), condition


def _shown(rules: Rules, condition: Condition, outcome: Outcome, now: int) -> Condition:
    """What the attempt has shown about the peer: nothing, if the trouble was ours, or it was not asked."""
    if outcome.kind in (Kind.INFRA, Kind.MISCONFIGURED) or not outcome.asked:
        return condition
    standing, reason, until = condition.standing, condition.reason, condition.until
    lifted = {
        Standing.ACTIVE: not outcome.breaks,
        Standing.THROTTLED: until <= now,
        Standing.SUSPENDED: not outcome.unreachable,
    }
    if lifted.get(standing):
        standing, reason, until = Standing.ACTIVE, "", 0
    shown = Condition(
        standing,
        reason,
        until,
        unreachable=_days(rules, condition, now) if outcome.unreachable else (),
        learned=condition.learned if outcome.learned is None else outcome.learned,
        sent_at=condition.sent_at,
    )
    return _tripped(rules, condition, shown, outcome, now) if outcome.breaks else shown


def _days(rules: Rules, condition: Condition, now: int) -> tuple[int, ...]:
    """The days without an answer: no more of them than anybody will count."""
    most = GONE_AFTER if rules.gone_after is None else rules.gone_after
    return tuple(sorted({*condition.unreachable, now // DAY})[-most:])


def _tripped(rules: Rules, before: Condition, shown: Condition, outcome: Outcome, now: int) -> Condition:
    """The breaker opens after so many failures in a row, and stays open longer each time."""
    if before.breaker == "open":
        return msgspec.structs.replace(shown, failures=before.failures, breaker="open")
    failures = before.failures + 1
    if failures < rules.breaker and before.breaker == "closed":
        return msgspec.structs.replace(shown, failures=failures)
    wait = min(rules.cooldown * 2.0 ** min(max(failures - rules.breaker, 0), 20), LONGEST_WAIT)
    return msgspec.structs.replace(
        shown,
        failures=failures,
        breaker="open",
        until=max(shown.until, now + micros(wait)),
        reason=shown.reason or outcome.reason,
    )


def _stands(condition: Condition, standing: Standing, reason: str, until: int) -> Condition:
    """A peer that is disabled or gone stays so, whatever a late answer says."""
    final = (Standing.GONE,) if standing is Standing.GONE else (Standing.DISABLED, Standing.GONE)
    if condition.standing in final:
        return condition
    return msgspec.structs.replace(condition, standing=standing, reason=reason, until=max(condition.until, until))


def _wait(rules: Rules, spent: int, chance: float, retry_after: float | None) -> float:
    """The schedule, or what the peer asked for if that is longer; stretched by chance, never shortened."""
    steps = rules.schedule or (LEAST_THROTTLE,)
    scheduled = steps[min(max(spent, 1), len(steps)) - 1]
    return max(scheduled, min(retry_after or 0.0, LONGEST_WAIT)) * (1 + rules.jitter * chance)
