"""What the parties do: small programs over the store's operations, as a worker, a scanner or a client runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from durably.core.change import Applied, Change, Verdict
from durably.core.ids import derived
from durably.core.lifecycle import complete, expire, fail, lapse, release, snooze
from durably.core.retry import Retry
from durably.core.task import Draft, Failure, State, Task
from durably.stores.operations import control, sweep
from durably.stores.operations.accept import Accepted, accept, request_cancel
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import apply_cancel_requests, cancel_now, commit, commit_and_go_on, set_progress
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.settle import Onward

from .party import Program

ROOT = str(UUID(int=0x0190_0000_0000_7000_8000_000000000000))
BATCH = 100
RETRY = Retry.constant(attempts=3, delay="30s")
FAILURE = Failure("builtins.ValueError", "no")

Held = dict[str, Task]
"""The tasks of a world by name, as those see them who hold them."""

names: dict[str, str] = {}
"""What a task is called, by its id."""


def id_of(name: str) -> str:
    """The id of the task of that name, always the same."""
    task = derived(ROOT, 0, name, None)
    names[task] = name
    return task


def draft(name: str, queue: str = "q", **options: Any) -> Draft:
    """A task of that name."""
    return Draft(id_of(name), "work", queue, b"{}", **options)


def called(ids: Iterable[str]) -> list[str]:
    """The names of tasks, sorted."""
    return sorted(names.get(task, task) for task in ids)


@dataclass(frozen=True)
class Act:
    """Something that a party does in a world."""

    name: str
    start: Callable[[Held], Program]
    claims: bool = False
    short: bool = False
    """It skips what others have locked or changed meanwhile; run again, it does the rest."""
    loose: bool = False
    """What it picks depends on what others have locked, so no serial order need pick the same."""
    unique: bool = False
    """It takes a unique key, and so may have to wait for a caller who takes the same."""


def accepts(*drafts: Draft, again: bool = False) -> Act:
    def start(held: Held) -> Program:
        answers = yield accept(drafts, again)
        return [_accepted(answer) for answer in answers]

    title = f"accept {' '.join(called(one.id for one in drafts))}{' again' * again}"
    return Act(title, start, unique=any(one.unique_scope is not None for one in drafts))


def _accepted(answer: Any) -> str:
    if isinstance(answer, Accepted):
        return f"{names[answer.id]}{' existed' * answer.existing}"
    return type(answer).__name__


def accepts_and_cancels(one: Draft, *others: str) -> Act:
    """A caller's transaction: a new task, and requests to cancel others."""

    def start(held: Held) -> Program:
        yield accept([one])
        if others:
            yield request_cancel([id_of(name) for name in others], "no longer wanted")
        return []

    return Act(f"accept {names[one.id]}" + "".join(f", ask to cancel {other}" for other in others), start)


def claims(session: str, queues: list[str], room: int = BATCH, *, alone: bool = False) -> Act:
    def start(held: Held) -> Program:
        answer = None if alone else (yield claim_plain(session, queues, room))
        if answer is None:
            answer = yield claim(session, queues, room, alone=alone)
        return called(task.id for task in answer.tasks) if answer.live else ["session not live"]

    extra = f" {room}" * (room < BATCH) + " alone" * alone
    return Act(f"claim {session}{extra}", start, claims=True, short=True, loose=room < BATCH)


def polls_elsewhere(session: str) -> Act:
    """A claim for other queues: it admits what waits everywhere, and leases nothing."""
    return replace(claims(session, ["elsewhere"]), name=f"poll {session} elsewhere", claims=False)


def arrives_and_claims(session: str, queues: list[str]) -> Act:
    """A worker that has just started."""

    def start(held: Held) -> Program:
        yield sweep.open_session(session, 3_600_000_000, "here", 2, "{}")
        answer = (yield claim_plain(session, queues, BATCH)) or (yield claim(session, queues, BATCH))
        return called(task.id for task in answer.tasks)

    return Act(f"arrive and claim {session}", start)


def gives_back(session: str) -> Act:
    """A worker that lost the answer to a claim gives back whatever it is said to hold."""

    def start(held: Held) -> Program:
        tasks = yield sweep.held(session)
        verdicts = yield commit([release(task, started=False) for task in tasks])
        return sorted(_told(verdicts))

    return Act(f"give back {session}", start)


def reports(what: str, name: str, decide: Callable[[Task], Change]) -> Act:
    """A worker's report, decided again when only something beside the lease has changed."""

    def start(held: Held) -> Program:
        task = held[name]
        while True:
            verdicts = yield commit([decide(task)])
            [verdict] = verdicts
            if isinstance(verdict, Applied):
                return [str(verdict.change.state)]
            current = verdict.current
            if current is None or current.token != task.token:
                return ["fenced"]
            if current.state != State.LEASED:
                return ["landed"] if current.ended else ["fenced"]
            task = current

    return Act(f"{what} {name}", start)


def completes(name: str) -> Act:
    return reports("complete", name, lambda task: complete(task, b"ok"))


def goes_on(name: str, session: str, queues: list[str]) -> Act:
    """A worker reports that one of a key or a line is done, and takes the next one if nobody else waits."""

    def start(held: Held) -> Program:
        onward = Onward(session, queues, {"work"}, BATCH)
        committed = yield commit_and_go_on([complete(held[name], b"ok")], onward)
        [verdict] = committed.verdicts
        told = [str(verdict.change.state) if isinstance(verdict, Applied) else "fenced"]
        return told + called(task.id for task in committed.went.tasks) if committed.went else told

    return Act(f"complete {name} and go on", start, short=True)


def runs_ahead(session: str, queues: list[str], *reported: str, going: tuple[str, ...] = ()) -> Act:
    """A worker reports the first ones of a key that it holds, while it goes on with others; once more if it must."""

    def start(held: Held) -> Program:
        tasks = [held[name] for name in reported]
        leased = {(task.queue, task.key or ""): [id_of(name) for name in going] for task in tasks}
        onward = Onward(session, queues, {"work"}, 0, going=leased)
        told: list[str] = []
        while tasks:
            committed = yield commit_and_go_on([complete(task, b"ok") for task in tasks], onward)
            told += _told(committed.verdicts)
            stale = [verdict.current for verdict in committed.verdicts if not isinstance(verdict, Applied)]
            mine = {task.id: task for task in stale if task is not None and task.state == State.LEASED}
            tasks = [mine[task.id] for task in tasks if task.id in mine and mine[task.id].token == task.token]
        return sorted(told)

    return Act(f"complete {' '.join(reported)}{''.join(f', run {name}' for name in going)}", start)


def fails(name: str) -> Act:
    return reports("fail", name, lambda task: fail(task, FAILURE, RETRY, 0.0))


def gives_up(name: str) -> Act:
    return reports("give up", name, lambda task: fail(task, FAILURE, Retry.never(), 0.0))


def snoozes(name: str) -> Act:
    return reports("snooze", name, lambda task: snooze(task, 60.0))


def releases(name: str) -> Act:
    return reports("release", name, lambda task: release(task, started=True))


def cancels(*wanted: str) -> Act:
    def start(held: Held) -> Program:
        answers: list[str] = []
        left = [id_of(name) for name in wanted]
        while left:
            verdicts = yield cancel_now(left, "cancelled")
            answers += _told(verdicts)
            left = [verdict.change.task.id for verdict in verdicts if not isinstance(verdict, Applied)]
        return sorted(answers)

    return Act(f"cancel {' '.join(wanted)}", start)


def _told(verdicts: list[Verdict]) -> list[str]:
    return [
        f"{names[verdict.change.task.id]} {verdict.change.state}"
        for verdict in verdicts
        if isinstance(verdict, Applied)
    ]


def applies_requests() -> Act:
    def start(held: Held) -> Program:
        verdicts = yield apply_cancel_requests()
        return sorted(_told(verdicts))

    return Act("apply cancel requests", start, short=True)


def promotes() -> Act:
    def start(held: Held) -> Program:
        ids = yield sweep.due(BATCH, [])
        moved = yield sweep.promote(ids)
        return called(moved)

    return Act("promote", start, short=True)


def reaps() -> Act:
    """A round of the reaper."""

    def start(held: Held) -> Program:
        dead = yield sweep.mark_dead()
        tasks = yield sweep.lapsed(BATCH, [])
        verdicts = yield commit([lapse(task) for task in tasks])
        yield sweep.bury()
        return sorted([*dead, *_told(verdicts)])

    return Act("reap", start, short=True)


def expires() -> Act:
    def start(held: Held) -> Program:
        tasks = yield sweep.expired(BATCH, [])
        verdicts = yield commit([expire(task) for task in tasks])
        return sorted(_told(verdicts))

    return Act("expire", start, short=True)


def buries() -> Act:
    def start(held: Held) -> Program:
        yield sweep.bury()
        return []

    return Act("bury", start, short=True)


def beats(session: str) -> Act:
    def start(held: Held) -> Program:
        alive = yield sweep.beat(session, 3_600_000_000)
        return ["alive" if alive else "lost"]

    return Act(f"beat {session}", start)


def closes(session: str) -> Act:
    def start(held: Held) -> Program:
        yield sweep.close_session(session)
        return []

    return Act(f"close {session}", start)


def prunes() -> Act:
    def start(held: Held) -> Program:
        yield sweep.prune(BATCH)
        return []

    return Act("prune", start, short=True)


def replays(*wanted: str) -> Act:
    def start(held: Held) -> Program:
        ids = yield control.replay([id_of(name) for name in wanted])
        return called(ids)

    return Act(f"replay {' '.join(wanted)}", start)


def purges(*wanted: str) -> Act:
    def start(held: Held) -> Program:
        ids = yield control.purge([id_of(name) for name in wanted])
        return called(ids)

    return Act(f"purge {' '.join(wanted)}", start)


def pauses(queue: str, key: str) -> Act:
    def start(held: Held) -> Program:
        paused = yield control.pause_key(queue, key, "by hand")
        return ["paused" if paused else "not paused"]

    return Act(f"pause {key}", start)


def resumes(queue: str, key: str) -> Act:
    def start(held: Held) -> Program:
        head = yield control.resume_key(queue, key)
        return called([head.id])

    return Act(f"resume {key}", start)


def skips(queue: str, key: str) -> Act:
    def start(held: Held) -> Program:
        head = yield control.skip_key(queue, key, "no use")
        return called([head.id])

    return Act(f"skip {key}", start)


def sets_queue(queue: str, state: Any) -> Act:
    def start(held: Held) -> Program:
        yield control.set_queue(queue, state)
        return []

    return Act(f"set queue {queue} {state}", start)


def limits(gate: str, concurrency: int | None, rate: float | None = None) -> Act:
    def start(held: Held) -> Program:
        yield control.set_limit(gate, concurrency, rate, 1.0)
        return []

    return Act(f"limit {gate} to {concurrency if rate is None else rate}", start)


def notes_progress(name: str) -> Act:
    def start(held: Held) -> Program:
        noted = yield set_progress(id_of(name), held[name].token, "half", b"here")
        return ["noted" if noted else "lost"]

    return Act(f"progress {name}", start)
