"""Every rule about what becomes of a task. Pure functions, named for the event that happened.

Nothing here reads a clock, draws a random number or touches a store: all of that comes in as an argument.
"""

from __future__ import annotations

import msgspec

from durably.core.change import Change
from durably.core.ids import derived
from durably.core.moment import micros
from durably.core.retry import Retry
from durably.core.task import (
    DEFAULT_NAMESPACE,
    Attempt,
    Draft,
    Failure,
    Options,
    Policy,
    State,
    Task,
    clean,
    full_queue,
    unpack_options,
)

DEFAULT_RETENTION = 7 * 86400.0
_KEPT = micros(DEFAULT_RETENTION)
_DONE = State.DONE
CRASH_BASE = 5.0
CRASH_FACTOR = 4.0


def complete(
    task: Task, result: bytes | None, retention: float | None = None, spawned: tuple[Draft, ...] = (), ran: int = 0
) -> Change:
    """The handler returned. A cancel request that came too late changes nothing: the work is done."""
    return Change(
        task,
        _DONE,
        task.spent,
        task.crashes,
        result=result,
        spawned=spawned,
        keep_for=_KEPT if retention is None else micros(retention),
        started_ago=ran,
    )


def complete_anew(change: Change, task: Task) -> Change:
    """The same success, of a task about which something else was written meanwhile."""
    return msgspec.structs.replace(change, task=task, spent=task.spent, crashes=task.crashes)


def fail(task: Task, failure: Failure, retry: Retry, jitter: float, *, ran: int = 0, outcome: str = "failed") -> Change:
    """The attempt failed: try again later, or give up."""
    attempt = Attempt(task.attempt, outcome, failure, task.session, task.token, ran)
    if task.cancel is not None:
        return _ended(task, State.CANCELLED, task.cancel, attempt)
    if failure.permanent:
        return _given_up(task, f"{'permanent: ' if failure.certain else ''}{_brief(failure)}", attempt)
    if task.once:
        return _given_up(task, f"at most once: {_brief(failure)}", attempt)
    if task.spent >= retry.attempts:
        return _given_up(task, f"attempts exhausted ({task.spent}): {_brief(failure)}", attempt)
    wait = retry.delay(task.spent, jitter, at_least=failure.retry_after)
    return _waits(task, micros(wait), attempt=attempt, rejoin=task.policy == Policy.OVERTAKE)


def snooze(task: Task, delay: float) -> Change:
    """The handler asked to be run later: no attempt is charged."""
    if task.cancel is not None:
        return _ended(task, State.CANCELLED, task.cancel)
    return _waits(task, micros(delay), spent=max(task.spent - 1, 0))


def discard(task: Task, reason: str) -> Change:
    """The handler found the task pointless."""
    return _ended(task, State.CANCELLED, f"discarded: {reason}" if reason else "discarded")


def release(task: Task, *, started: bool) -> Change:
    """A worker that shuts down gives the task back: the attempt is refunded, and it runs again at once."""
    if task.cancel is not None:
        return _ended(task, State.CANCELLED, task.cancel)
    if task.once and started:
        return _given_up(task, "at most once: the worker shut down while it ran, so it may have run", None)
    return _waits(task, 0, spent=max(task.spent - 1, 0))


def put_back(task: Task, delay: float) -> Change:
    """The worker does not know this task's name: give it back uncharged, for one that does."""
    if task.cancel is not None:
        return _ended(task, State.CANCELLED, task.cancel)
    return _waits(task, micros(delay), spent=max(task.spent - 1, 0))


def lapse(task: Task) -> Change:
    """The session that held the task is dead.

    A crash charges everyone who was in flight, so it convicts no one: only a task that ran alone can be made a dead
    letter by it, and the last life is always lived alone.
    """
    options = _options(task)
    crashes = task.crashes + 1
    failure = Failure("durably.Crashed", f"the worker died while it ran (session {task.session})")
    attempt = Attempt(task.attempt, "crashed", failure, task.session, task.token)
    if task.cancel is not None:
        return _ended(task, State.CANCELLED, task.cancel, attempt, crashes=crashes)
    if task.once:
        return _given_up(task, "at most once: the worker died while it ran, so it may have run", attempt, crashes)
    if task.alone and crashes >= options.crash_cap:
        return _given_up(task, f"killed its process {crashes} times; the last time it ran alone", attempt, crashes)
    wait = 0.0 if crashes < 2 else CRASH_BASE * CRASH_FACTOR ** min(crashes - 2, 5)
    return _waits(
        task,
        micros(wait),
        attempt=attempt,
        crashes=crashes,
        alone=crashes >= options.crash_cap - 1,
        rejoin=task.policy == Policy.OVERTAKE,
    )


def cancel(task: Task, reason: str) -> Change:
    """Someone wants it not to happen: what waits ends at once, what runs is asked to stop."""
    if task.state == State.LEASED:
        return Change(task, State.LEASED, task.spent, task.crashes, alone=task.alone, cancel=reason)
    return _ended(task, State.CANCELLED, reason)


def stop(task: Task) -> Change:
    """The handler of a cancelled task has stopped."""
    return _ended(task, State.CANCELLED, task.cancel or "cancelled")


def expire(task: Task) -> Change:
    """Its time ran out before it was run."""
    return _ended(task, State.CANCELLED, "expired")


def skip(task: Task, reason: str) -> Change:
    """An operator takes the head out of its key, so that the others can go on."""
    return _ended(task, State.CANCELLED, f"skipped: {reason}" if reason else "skipped")


def spoil(task: Task, failure: Failure) -> Change:
    """The row cannot be read: it becomes a dead letter of its own and harms nobody else."""
    attempt = Attempt(task.attempt, "spoiled", failure, task.session, task.token)
    return _ended(task, State.DEAD, f"permanent: {_brief(failure)}", attempt, hook=True)


def resume(task: Task) -> Change:
    """The head of a paused key may try again: a new cycle begins."""
    return _waits(task, 0, spent=0, crashes=0, alone=False)


def hurry(task: Task) -> Change:
    """What waits for its time is due now; its budget stays as it is."""
    if task.state == State.DELAYED:
        return Change(task, State.DELAYED, task.spent, task.crashes, alone=bool(task.alone))
    return _waits(task, 0)


def _waits(
    task: Task,
    due_in: int,
    *,
    attempt: Attempt | None = None,
    spent: int | None = None,
    crashes: int | None = None,
    alone: bool | None = None,
    rejoin: bool = False,
) -> Change:
    """It goes back to wait: in its key where it stands, behind the others of its key, or for itself."""
    holds_place = task.key is not None and not rejoin
    if holds_place or (due_in == 0 and (task.key is not None or task.gate is not None)):
        state = State.BLOCKED
    else:
        state = State.DELAYED if due_in > 0 else State.READY
    return Change(
        task,
        state,
        task.spent if spent is None else spent,
        task.crashes if crashes is None else crashes,
        alone=bool(task.alone) if alone is None else alone,
        due_in=due_in,
        rejoin=rejoin,
        attempt=attempt,
    )


def _given_up(task: Task, reason: str, attempt: Attempt | None, crashes: int | None = None) -> Change:
    """Nothing more to try: a dead letter, unless its key says that the others must wait for a person."""
    if task.key is not None and task.policy == Policy.PAUSE:
        return Change(
            task,
            State.BLOCKED,
            task.spent,
            task.crashes if crashes is None else crashes,
            alone=False,
            pause=True,
            reason=reason,
            attempt=attempt,
        )
    return _ended(task, State.DEAD, reason, attempt, crashes=crashes, hook=True)


def _ended(
    task: Task,
    state: State,
    reason: str,
    attempt: Attempt | None = None,
    *,
    crashes: int | None = None,
    hook: bool = False,
) -> Change:
    options = _options(task)
    keep = options.retention if state != State.DEAD else None
    if keep is None and state != State.DEAD:
        keep = DEFAULT_RETENTION
    why = clean(reason, 2_000)
    return Change(
        task,
        state,
        task.spent,
        task.crashes if crashes is None else crashes,
        reason=why,
        attempt=attempt,
        keep_for=None if keep is None else micros(keep),
        spawned=_hook(task, options, why) if hook else (),
        started_ago=attempt.started_ago if attempt is not None else 0,
    )


def _hook(task: Task, options: Options, reason: str) -> tuple[Draft, ...]:
    """The dead-letter hook is a task that commits with the death, so a crash cannot lose it."""
    if options.on_dead is None:
        return ()
    queue = options.on_dead_queue or full_queue(DEFAULT_NAMESPACE, "default")
    letter = {
        "letter": {"id": task.id, "name": task.name, "queue": task.queue, "reason": reason, "attempt": task.attempt}
    }
    return (Draft(derived(task.id, task.attempt, "dead", None), options.on_dead, queue, msgspec.json.encode(letter)),)


def _options(task: Task) -> Options:
    try:
        return unpack_options(task.options)
    except (msgspec.MsgspecError, RecursionError):
        return Options()


def _brief(failure: Failure) -> str:
    """The first line of what went wrong; what a handler said on purpose, or we did, needs no exception's name."""
    first = failure.message.splitlines()[0] if failure.message else ""
    if not first:
        return failure.kind
    return first if failure.kind.startswith("durably.") else f"{failure.kind}: {first}"
