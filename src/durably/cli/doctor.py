"""`durably doctor`: is the database fit, do workers live, and does anything wait for a person."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from durably.app import Durably
from durably.cli.connect import on_store
from durably.cli.grammar import Commands, Parser, command
from durably.cli.output import answer
from durably.cli.sessions import lives
from durably.cli.words import counted, printable
from durably.core.explain import SessionFacts
from durably.core.task import State
from durably.errors import StoreUnavailable
from durably.stores.protocol import Finding

MANY = 1000


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "doctor",
        "examine the store and the workers; exit code 1 if something is wrong",
        ["durably doctor", "durably doctor --json --store postgresql://app@db/shop"],
    )
    on_store(parser, doctor, any_schema=True)


def doctor(app: Durably, options: argparse.Namespace) -> int:
    """`durably doctor`."""
    findings = examined(app)
    healthy = all(finding.level != "error" for finding in findings)
    data = {"store": app.store.address, "healthy": healthy, "findings": findings}
    answer(options, data, "\n".join([app.store.address, "", *map(_told, findings), "", _verdict(findings)]))
    return 0 if healthy else 1


def examined(app: Durably) -> list[Finding]:
    """What the store says of itself; then, if it can be used, what the tasks and workers say of theirs."""
    try:
        findings = app.store.examine()
        return findings if app.store.pending() else [*findings, *_work(app)]
    except StoreUnavailable as error:
        return [Finding("connection", "error", str(error), "check the address, and that the server runs")]


def _work(app: Durably) -> Iterator[Finding]:
    sessions = app.sessions.list()
    live = [session for session in sessions if lives(session)]
    yield _workers(live)
    yield from _orphans(app, sessions, live)
    yield from stuck(live)
    yield from _waiting(app, live)
    yield from _paused(app)
    yield _dead_letters(app)


def _workers(live: list[SessionFacts]) -> Finding:
    if not live:
        return Finding("workers", "ok", "none is running", "start one with `durably worker module:app`")
    slots = sum(session.concurrency for session in live)
    return Finding("workers", "ok", f"{counted(len(live), 'worker')} with {counted(slots, 'slot')}")


def _orphans(app: Durably, sessions: list[SessionFacts], live: list[SessionFacts]) -> Iterator[Finding]:
    """Tasks that are leased to a worker that is gone: any live worker takes them back, but one must live."""
    alive = {session.id for session in live}
    orphans = [task for task in app.tasks.list(state=State.LEASED.value, limit=MANY) if task.session not in alive]
    if not orphans:
        return
    holders = [session.where for session in sessions if session.id in {task.session for task in orphans}]
    detail = f"{counted(len(orphans), 'task')} leased to a worker that is gone ({'; '.join(holders) or 'not known'})"
    if live:
        yield Finding("leases", "warning", detail, "wait: a live worker takes them back within a lease")
    else:
        yield Finding("leases", "error", detail, "start a worker: it takes them back and runs them again")


def stuck(live: list[SessionFacts]) -> Iterator[Finding]:
    """Slots whose handler was timed out and has not returned."""
    for session in live:
        if session.stuck:
            share = f"{session.stuck} of {counted(session.concurrency, 'slot')} stuck"
            detail = f"{share} at {session.where}: what they run was timed out, but goes on"
            advice = f"find out what hangs (`py-spy dump --pid {session.pid}`), or restart that process"
            yield Finding("stuck", "warning", detail, advice)


def _waiting(app: Durably, live: list[SessionFacts]) -> Iterator[Finding]:
    """Tasks that could run and that nobody serves."""
    served = {queue for session in live for queue in session.queues}
    for queue in app.queues.list():
        waiting = queue.counts.get(State.READY, 0) + queue.counts.get(State.BLOCKED, 0)
        if waiting and queue.state == "active" and queue.name not in served:
            nobody = "no live worker serves it" if live else "no worker is running"
            detail = f"{counted(waiting, 'task')} in queue {queue.name!r} could run, but {nobody}"
            yield Finding("waiting", "error", detail, f"`durably worker module:app --queues {queue.name}`")


def _paused(app: Durably) -> Iterator[Finding]:
    for queue in app.queues.list():
        if queue.state != "active":
            advice = f"`durably queues resume {queue.name}` opens it"
            yield Finding("queues", "warning", f"queue {queue.name!r} is {queue.state}", advice)
    paused = app.keys.list(state="paused", limit=MANY)
    if paused:
        first = f"{paused[0].queue} {paused[0].key}"
        detail = f"{counted(len(paused), 'ordering key')} paused, the first is {paused[0].key!r}"
        yield Finding("keys", "warning", detail, f"`durably keys show {first}`, then `keys resume` or `keys skip`")


def _dead_letters(app: Durably) -> Finding:
    dead = sum(queue.counts.get(State.DEAD, 0) for queue in app.queues.list())
    if not dead:
        return Finding("dead", "ok", "no dead letters")
    return Finding("dead", "warning", counted(dead, "dead letter"), "`durably dead list`, then replay or purge")


def _told(finding: Finding) -> str:
    line = f"{finding.level:<8} {finding.check:<12} {printable(finding.detail)}"
    return f"{line}\n{'':21} -> {printable(finding.advice)}" if finding.advice else line


def _verdict(findings: list[Finding]) -> str:
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if not errors and not warnings:
        return "All is well."
    return f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."
