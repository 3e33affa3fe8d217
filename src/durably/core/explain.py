"""`why`: one sentence about why a task is where it is, with the evidence. Pure: the facts come from the store."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from durably.core.limits import Gate, allowance
from durably.core.moment import as_datetime, spoken
from durably.core.task import AttemptRow, State, Task, split_queue


class KeyFacts(msgspec.Struct, frozen=True):
    """An ordering key as its row describes it."""

    queue: str
    key: str
    state: str
    ready_at: int
    priority: int
    session: str | None
    token: int
    head: str | None
    reason: str | None
    waiting: int


class SessionFacts(msgspec.Struct, frozen=True):
    """A worker's session: what it serves, and until when it is believed to live."""

    id: str
    state: str
    started_at: int
    beat_at: int
    expires_at: int
    host: str
    pid: int
    queues: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    concurrency: int = 0
    lease: float = 0.0
    stuck: int = 0

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> SessionFacts:
        """From a row whose last column is the session's own description in JSON."""
        *fixed, info = row
        try:
            told = msgspec.json.decode(info, type=dict[str, Any])
            return msgspec.convert({**told, **dict(zip(cls.__struct_fields__, fixed, strict=False))}, cls, strict=False)
        except (msgspec.MsgspecError, RecursionError):
            return cls(*fixed)

    @property
    def where(self) -> str:
        """How a person would find it."""
        return f"{self.host}, process {self.pid}"


class Evidence(msgspec.Struct, frozen=True):
    """Everything that decides why a task is where it is."""

    task: Task
    now: int
    queue_state: str
    queue_cutoff: int | None
    sessions: list[SessionFacts]
    limits: list[Gate]
    in_use: dict[str, int]
    key: KeyFacts | None
    head: Task | None
    line_ready_at: int | None
    ahead: int
    attempts: list[AttemptRow]


_STATES = frozenset(member.value for member in State)


class Why(msgspec.Struct, frozen=True):
    """The answer: a code for programs, a sentence for people, and what it rests on."""

    code: str
    sentence: str
    evidence: dict[str, Any]


def explain(facts: Evidence) -> Why:
    """Why the task is not running, or not done."""
    task = facts.task
    if task.state not in _STATES:
        sentence = f"It is in a state that does not exist ({task.state!r}): something other than Durably wrote its row."
        return Why("unknown_state", sentence, {"state": task.state})
    match state := State(task.state):
        case State.DONE | State.DEAD | State.CANCELLED:
            return _ended(facts)
        case State.LEASED:
            return _running(facts)
        case State.DELAYED:
            return _delayed(facts)
        case State.READY:
            return _held_up(facts) or _next_in_line(facts)
        case State.BLOCKED if task.key is not None:
            return _in_key(facts)
        case State.BLOCKED:
            return _in_group(facts)
        case _:
            assert_never(state)


def _at(when: int, now: int) -> str:
    text = as_datetime(when).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{text} ({'in ' + spoken(when - now) if when > now else spoken(now - when) + ' ago'})"


def _ended(facts: Evidence) -> Why:
    task = facts.task
    when = _at(task.finished_at or 0, facts.now)
    if task.state == State.DONE:
        tries = "at the first attempt" if task.attempt == 1 else f"at attempt {task.attempt}"
        return Why("done", f"It is done: it finished {when}, {tries}.", {"finished_at": task.finished_at})
    last = facts.attempts[-1] if facts.attempts else None
    told = {"reason": task.reason, "attempts": len(facts.attempts), "finished_at": task.finished_at}
    if last is not None:
        told |= {"last_error": last.message, "last_error_kind": last.kind}
    if task.state == State.DEAD:
        advice = f"`durably dead replay {task.id}` gives it a new cycle"
        return Why("dead", f"It is a dead letter since {when}: {task.reason}. {advice}.", told)
    return Why("cancelled", f"It was cancelled {when}: {task.reason}.", told)


def _session(facts: Evidence, session: str | None) -> SessionFacts | None:
    return next((known for known in facts.sessions if known.id == session), None)


def _running(facts: Evidence) -> Why:
    task = facts.task
    told: dict[str, Any] = {"session": task.session, "token": task.token, "attempt": task.attempt}
    owner = _session(facts, task.session)
    if owner is None or owner.state != "live":
        sentence = f"Its worker died (session {task.session}); the next sweep of any live worker takes it back."
        return Why("orphaned", sentence, told)
    told |= {"lease_until": owner.expires_at, "host": owner.host, "pid": owner.pid, "started_at": task.started_at}
    if owner.expires_at < facts.now:
        sentence = (
            f"Its worker ({owner.where}) has not been heard of since {_at(owner.beat_at, facts.now)}; "
            "its lease is over, and the next sweep of any live worker takes the task back."
        )
        return Why("lease_over", sentence, told)
    since = f" since {_at(task.started_at, facts.now)}" if task.started_at else ""
    held = f"session {task.session} ({owner.where}) until {_at(owner.expires_at, facts.now)}"
    why = Why("running", f"It is running{since}, attempt {task.attempt}, leased by {held}.", told)
    if facts.head is not None and facts.head.id != task.id:
        sentence = (
            f"It was leased together with {facts.head.id}, which is ahead of it in its key, by {held}; "
            "it runs after that one, and may have begun."
        )
        why = Why("following", sentence, told | {"head": facts.head.id})
    if task.cancel is not None:
        asked = f"{why.sentence} It was asked to stop: {task.cancel}."
        return Why("stopping", asked, why.evidence | {"cancel": task.cancel})
    return why


def _delayed(facts: Evidence) -> Why:
    task = facts.task
    told: dict[str, Any] = {"due_at": task.ready_at}
    last = facts.attempts[-1] if facts.attempts else None
    if task.ready_at <= facts.now:
        held = _held_up(facts)
        if held is not None:
            return held
        return Why("due", f"It fell due {_at(task.ready_at, facts.now)} and is about to be promoted.", told)
    if last is not None:
        sentence = (
            f"It waits for its next attempt until {_at(task.ready_at, facts.now)}: attempt {last.attempt} "
            f"{last.outcome} with {last.kind}: {_line(last.message)}."
        )
        return Why("retry", sentence, told | {"last_error": last.message, "last_error_kind": last.kind})
    return Why("not_due", f"It is not due until {_at(task.ready_at, facts.now)}.", told)


def _line(text: str) -> str:
    return (text.splitlines() or [""])[0].rstrip(".")


def _held_up(facts: Evidence) -> Why | None:
    """What keeps a whole queue, or everyone who could run this task, from doing so."""
    task = facts.task
    namespace, queue = split_queue(task.queue)
    named = f"queue {queue!r}" if namespace == "default" else f"queue {queue!r} of namespace {namespace!r}"
    if facts.queue_state == "paused":
        return Why(
            "queue_paused",
            f"The {named} is paused; `durably queues resume {task.queue}` opens it.",
            {"queue": task.queue, "queue_state": "paused"},
        )
    if facts.queue_cutoff is not None and task.created_at > facts.queue_cutoff:
        sentence = (
            f"The {named} is draining since {_at(facts.queue_cutoff, facts.now)} and this task came later; "
            f"`durably queues resume {task.queue}` opens it."
        )
        return Why("queue_draining", sentence, {"queue": task.queue, "cutoff": facts.queue_cutoff})
    live = [session for session in facts.sessions if session.state == "live" and session.expires_at >= facts.now]
    serving = [session for session in live if task.queue in session.queues]
    told = {"live_workers": len(live), "serving_queue": len(serving)}
    if not live:
        return Why("no_worker", "No live worker: start one with `durably worker module:app`.", told)
    if not serving:
        served = sorted({name for session in live for name in session.queues})
        sentence = f"No live worker serves the {named}; the {len(live)} that live serve {', '.join(served)}."
        return Why("queue_not_served", sentence, told | {"served": served})
    if not any(task.name in session.names for session in serving):
        sentence = (
            f"No live worker knows a task named {task.name!r}: {len(serving)} serve the {named}, but their code "
            "does not declare it."
        )
        return Why("unknown_name", sentence, told)
    for gate in facts.limits:
        shut = _shut(gate, facts)
        if shut is not None:
            return shut
    if task.alone:
        sentence = (
            f"It must run alone, since its process died {task.crashes} times: "
            "a worker takes it once it has nothing else in flight."
        )
        return Why("runs_alone", sentence, {"crashes": task.crashes})
    return None


def _shut(gate: Gate, facts: Evidence) -> Why | None:
    in_use = facts.in_use.get(gate.name, 0)
    allowed = allowance(gate, in_use, facts.now, 1)
    if allowed.count > 0:
        return None
    what = ("limit group " if gate.name.startswith("g:") else "queue ") + repr(gate.name[2:])
    told = {"limit": gate.name, "concurrency": gate.concurrency, "rate": gate.rate, "in_use": in_use}
    if gate.concurrency is not None and in_use >= gate.concurrency:
        sentence = f"The limit of the {what} is reached: {in_use} of {gate.concurrency} are running."
        return Why("limit_reached", sentence, told)
    sentence = f"The rate limit of the {what} is reached: the next start is possible in {spoken(allowed.wait)}."
    return Why("rate_limited", sentence, told)


def _next_in_line(facts: Evidence) -> Why:
    if facts.ahead:
        sentence = f"It is ready and waits for a free slot: {facts.ahead} ready tasks of its queue come before it."
        return Why("behind_others", sentence, {"ahead": facts.ahead})
    return Why("next", "It is ready and first in its queue: a worker takes it at its next claim.", {"ahead": 0})


def _in_key(facts: Evidence) -> Why:
    task, key, head = facts.task, facts.key, facts.head
    named = f"key {task.key!r}"
    told: dict[str, Any] = {"key": task.key}
    if key is not None and key.state == "paused":
        sentence = (
            f"Its {named} is paused: {_line(key.reason or 'by an operator')}. "
            f"`durably keys resume {task.queue} {task.key}` tries the head again, `durably keys skip` takes it out."
        )
        return Why("key_paused", sentence, told | {"head": head.id if head else None, "reason": key.reason})
    if head is not None and head.id != task.id:
        told |= {"head": head.id, "head_state": head.state, "head_attempt": head.attempt}
        doing = "which is running" if head.state == State.LEASED else "which is not done either"
        if key is not None and key.state == "ready" and key.ready_at > facts.now:
            doing = f"which waits for its next attempt until {_at(key.ready_at, facts.now)}"
        return Why("behind_head", f"It is behind task {head.id}, the head of its {named}, {doing}.", told)
    held = _held_up(facts)
    if held is not None:
        return held
    if key is not None and key.ready_at > facts.now:
        last = facts.attempts[-1] if facts.attempts else None
        after = f": attempt {last.attempt} {last.outcome} with {last.kind}: {_line(last.message)}" if last else ""
        sentence = (
            f"It is the head of its {named} and waits for its next attempt until {_at(key.ready_at, facts.now)}{after}."
        )
        return Why("retry", sentence, told | {"due_at": key.ready_at})
    return Why("next", f"It is the head of its {named}: a worker takes it at its next claim.", told)


def _in_group(facts: Evidence) -> Why:
    task = facts.task
    held = _held_up(facts)
    if held is not None:
        return held
    if facts.line_ready_at is not None and facts.line_ready_at > facts.now:
        sentence = (
            f"The limit group {task.gate!r} was full; it is looked at again at {_at(facts.line_ready_at, facts.now)}."
        )
        return Why("limit_reached", sentence, {"limit": f"g:{task.gate}"})
    sentence = f"It waits for its turn in the limit group {task.gate!r}: a worker takes it at one of its next claims."
    return Why("next", sentence, {"limit": f"g:{task.gate}"})
