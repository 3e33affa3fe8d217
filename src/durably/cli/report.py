"""Destinations and deliveries in words: how a peer stands, what waits for it, and who got a message."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from durably.app import Durably
from durably.cli.detail import sentence
from durably.cli.output import answer
from durably.cli.table import table
from durably.cli.words import counted, exact, printable, rate, relative
from durably.client.info import AttemptInfo, TaskInfo
from durably.core.delivery import DAY, Condition, Standing
from durably.core.moment import as_datetime, micros, spoken
from durably.core.task import State
from durably.errors import UnknownTask

if TYPE_CHECKING:
    from durably.deliveries.deliveries import DeliveryInfo
    from durably.deliveries.destinations import DestinationInfo

MOMENTS = ("until", "probe_until", "sent_at")
OUTCOMES = {
    State.DONE: "delivered",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.LEASED: "under way",
}
MOST_WAITS = 8
"""A schedule with more waits than this is shortened."""
NO_ANSWER = "unknown: "
"""How the reason of an attempt begins whose answer never came."""


class Waiting(NamedTuple):
    """A delivery that has not ended, and the attempts that failed so far."""

    task: TaskInfo
    attempts: Sequence[AttemptInfo] = ()


class Reported(NamedTuple):
    """A delivery of a message; if it did not arrive, with what is known about why."""

    delivery: DeliveryInfo
    condition: Condition | None = None
    attempts: Sequence[AttemptInfo] = ()


def as_data(peer: DestinationInfo) -> dict[str, Any]:
    """A destination for programs: every field, moments as ISO times."""
    condition = msgspec.structs.asdict(peer.condition)
    moments = {name: as_datetime(condition[name]) if condition[name] else None for name in MOMENTS}
    days = [as_datetime(day * DAY).date() for day in peer.condition.unreachable]
    return {
        **msgspec.structs.asdict(peer),
        "rules": msgspec.structs.asdict(peer.rules),
        "condition": {**condition, **moments, "unreachable": days},
    }


def as_table(peers: Sequence[DestinationInfo]) -> str:
    """Destinations, one per line."""
    rows = [(one.name, one.channel, _standing(one.condition), _until(one.condition), _reason(one)) for one in peers]
    return table(("NAME", "CHANNEL", "STANDING", "NEXT TRY", "REASON"), rows, whole=("NAME", "STANDING", "NEXT TRY"))


def as_text(peer: DestinationInfo, waiting: Sequence[Waiting], *, more: bool, secrets: Sequence[str] = ()) -> str:
    """A destination for people: its rules, how it stands, and what waits."""
    head = f"{printable(peer.name)}  {printable(peer.channel)}  {_standing(peer.condition)}"
    told = [head, facts(peer, secrets), "", sentence(standing(peer))]
    if not waiting:
        return "\n".join([*told, "", "Nothing waits for it."])
    shown = f"the first {len(waiting)}" if more else f"{counted(len(waiting), 'message')}, the oldest first"
    told += ["", f"Waiting for it, {shown}:", "", _waiting_table(waiting, peer.condition)]
    return "\n".join(told)


def facts(peer: DestinationInfo, secrets: Sequence[str] = ()) -> str:
    """What was chosen for a destination, one line for each option."""
    return "\n".join(f"  {name:<12} {value}" for name, value in _facts(peer, secrets))


def _facts(peer: DestinationInfo, secrets: Sequence[str]) -> Iterator[tuple[str, str]]:
    rules = peer.rules
    yield "address", printable(peer.address)
    yield "password" if peer.channel == "smtp" else "signed", "yes" if peer.signed else "no"
    for place, secret in enumerate(secrets):
        yield "old secret" if place else "secret", printable(secret)
    yield "order", rules.order
    if rules.order == "fifo":
        yield "policy", rules.policy
    else:
        yield "concurrency", str(rules.concurrency)
    if rules.rate is not None:
        yield "rate", rate(rules.rate)
    yield "schedule", _waits(rules.schedule) or "none: one attempt only"
    yield "jitter", f"up to {rules.jitter:.0%} later"
    yield "timeout", _spoken(rules.timeout)
    yield "expires", _spoken(rules.expires)
    yield "breaker", f"after {counted(rules.breaker, 'failure')} in a row"
    yield "cooldown", f"{_spoken(rules.cooldown)} at first"
    yield "gone", "never" if rules.gone_after is None else f"after {counted(rules.gone_after, 'day')} without an answer"
    if rules.fallback is not None:
        yield "fallback", printable(rules.fallback)
    if peer.condition.learned is not None:
        yield "learned", printable(peer.condition.learned)


def _waits(schedule: Sequence[float]) -> str:
    """The waits; of many, the first ones and the last."""
    told = [*map(_spoken, schedule)]
    if len(told) <= MOST_WAITS:
        return ", ".join(told)
    return f"{', '.join(told[:3])}, ... {told[-1]} ({len(told)} waits)"


def standing(peer: DestinationInfo) -> str:
    """How a destination stands, and what that means, in a sentence or two."""
    condition = peer.condition
    resume = f"`durably destinations resume {quote(peer.name)}`"
    because = f": {condition.reason}" if condition.reason else ""
    match condition.standing:
        case Standing.GONE:
            return f"It is gone{because}. What waits becomes dead letters; {resume} gives it another chance."
        case Standing.DISABLED:
            return f"It is disabled{because}. Everything waits until {resume}."
        case Standing.THROTTLED | Standing.SUSPENDED as found:
            return f"It is {found}{because}. {_next(condition)}{_days(condition)}"
    failed = f"after {counted(condition.failures, 'failure')} in a row"
    if condition.breaker == "half-open":
        probe = f"task {condition.probe} tries whether the peer is back"
        return f"Its breaker is half-open {failed}{because}; {probe}.{_days(condition)}"
    if condition.breaker == "open":
        return f"Its breaker is open {failed}{because}. {_next(condition)}{_days(condition)}"
    if condition.failures:
        last = "attempt" if condition.failures == 1 else f"{condition.failures} attempts"
        return f"It is active; its last {last} failed.{_days(condition)}"
    return "It is active."


def _next(condition: Condition) -> str:
    if _is_ahead(condition.until):
        return f"The next try is at {exact(as_datetime(condition.until))}."
    return "The next try is due."


def _days(condition: Condition) -> str:
    """Since when nobody answers, which ends in `gone`."""
    days = len(condition.unreachable)
    return f" Nobody answered on {days} different days." if days > 1 else ""


def _standing(condition: Condition) -> str:
    if condition.standing is Standing.ACTIVE and condition.breaker != "closed":
        return f"breaker {condition.breaker}"
    return str(condition.standing)


def _until(condition: Condition) -> str:
    """When a destination that is not as it should be is tried again."""
    match condition.standing:
        case Standing.GONE:
            return "never"
        case Standing.DISABLED:
            return "once resumed"
    if condition.standing is Standing.ACTIVE and condition.breaker == "closed":
        return ""
    return relative(as_datetime(condition.until)) if _is_ahead(condition.until) else "due"


def _reason(peer: DestinationInfo) -> str:
    return "" if _standing(peer.condition) == Standing.ACTIVE else peer.condition.reason


def _is_ahead(moment: int) -> bool:
    return bool(moment) and relative(as_datetime(moment)).startswith("in ")


def _spoken(seconds: float) -> str:
    return spoken(micros(seconds))


def _waiting_table(waiting: Sequence[Waiting], condition: Condition) -> str:
    rows = [
        (
            one.task.id,
            OUTCOMES.get(State(one.task.state), "waiting") + _mark(one.task, one.attempts),
            one.task.spent,
            next_try(one.task, condition),
            one.attempts[-1].message if one.attempts else "",
        )
        for one in waiting
    ]
    headings = ("ID", "STATE", "TRIES", "NEXT TRY", "LAST FAILURE")
    return table(headings, rows, whole=("STATE", "TRIES", "NEXT TRY"))


def outcome(one: Waiting) -> str:
    """What became of the first message that waited, after it was tried."""
    info = one.task
    why = info.reason or (one.attempts[-1].message if one.attempts else "")
    because = f": {why}" if why and info.state != State.DONE else ""
    return f"its first message is {_outcome(info)}{_mark(info, one.attempts)}{because}"


def next_try(task: TaskInfo, condition: Condition | None) -> str:
    """When a delivery that has not ended is tried again."""
    if task.state == State.LEASED:
        return "now"
    if condition is not None and condition.standing in (Standing.GONE, Standing.DISABLED):
        return _until(condition)
    until = as_datetime(0 if condition is None else condition.until)
    words = relative(max(until, task.due_at or until))
    return words if words.startswith("in ") else "in its turn"


def may_have_arrived(task: TaskInfo, attempts: Sequence[AttemptInfo]) -> bool:
    """Whether an attempt that did not count may have reached the peer: its answer never came, or its process died."""
    if task.state == State.DONE:
        return isinstance(task.result, dict) and task.result.get("possible_duplicate") is True
    return task.crashes > 0 or any(attempt.message.startswith(NO_ANSWER) for attempt in attempts)


def _mark(task: TaskInfo, attempts: Sequence[AttemptInfo]) -> str:
    if not may_have_arrived(task, attempts):
        return ""
    return ", maybe twice" if task.state == State.DONE else ", may have arrived"


def report(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations report`."""
    message = _message_id(options.message)
    found = app.deliveries.report(message)
    if not found:
        where = f"it is in another store or in another namespace than {app.namespace!r}"
        raise UnknownTask(f"there is no message {message}: its retention has passed, or {where}")
    reported = [_explained(app, one) for one in found]
    answer(options, report_data(message, reported), report_text(message, reported))
    return 0


def _explained(app: Durably, delivery: DeliveryInfo) -> Reported:
    """A delivery; what did not arrive with the attempts that failed, and what still may with how the peer stands."""
    if delivery.info is None or delivery.info.state == State.DONE:
        return Reported(delivery)
    attempts = app.handle(delivery.task).attempts() if delivery.info.attempt else ()
    if delivery.info.finished_at is not None:
        return Reported(delivery, None, attempts)
    try:
        condition = app.deliveries.destinations.get(delivery.destination).condition
    except UnknownTask:
        return Reported(delivery, None, attempts)
    return Reported(delivery, condition, attempts)


def _message_id(given: str) -> str:
    try:
        return str(UUID(given))
    except ValueError:
        example = "01890a5d-ac96-774b-bcce-b302099a8057"
        raise UnknownTask(f"{given!r} is not the id of a message; ids look like {example}") from None


def report_data(message: str, found: Sequence[Reported]) -> dict[str, Any]:
    """A report for programs."""
    return {"message": message, "deliveries": [_reported(one) for one in found]}


def _reported(one: Reported) -> dict[str, Any]:
    info = one.delivery.info
    return {
        "destination": one.delivery.destination,
        "task": one.delivery.task,
        "outcome": _outcome(info),
        "possible_duplicate": info is not None and may_have_arrived(info, one.attempts),
        "reason": _why(one) or None,
        "standing": None if one.condition is None else one.condition.standing,
        "info": info,
    }


def report_text(message: str, found: Sequence[Reported]) -> str:
    """A report for people."""
    rows = [_row(one) for one in found]
    arrived = sum(one.delivery.info is not None and one.delivery.info.state == State.DONE for one in found)
    head = f"Message {message}: delivered to {arrived:,} of {counted(len(found), 'destination')}."
    headings = ("DESTINATION", "OUTCOME", "TRIES", "WHEN", "REASON")
    told = [head, "", table(headings, rows, whole=("DESTINATION", "OUTCOME", "TRIES", "WHEN"))]
    if any(_reported(one)["possible_duplicate"] for one in found):
        told += ["", "In doubt, an attempt had no answer or its process died; every try has the same message id."]
    return "\n".join(told)


def _row(one: Reported) -> tuple[object, ...]:
    info = one.delivery.info
    if info is None:
        return (one.delivery.destination, _outcome(info), None, "", _why(one))
    when = next_try(info, one.condition) if info.finished_at is None else relative(info.finished_at)
    outcome = _outcome(info) + _mark(info, one.attempts)
    return (one.delivery.destination, outcome, info.spent, when, _why(one))


def _outcome(info: TaskInfo | None) -> str:
    return "forgotten" if info is None else OUTCOMES.get(State(info.state), "waiting")


def _why(one: Reported) -> str:
    """Why it has not arrived."""
    info, condition = one.delivery.info, one.condition
    if info is None:
        return "its retention has passed"
    if info.finished_at is not None:
        return info.reason or ""
    if condition is None:
        return "the destination is not known any more"
    if _standing(condition) != Standing.ACTIVE:
        return f"{_standing(condition)}: {condition.reason}"
    return one.attempts[-1].message if one.attempts else ""
