"""Engines with one rule broken each: what a bug could look like, as small as it can be."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from durably.core import lifecycle
from durably.core.change import Change
from durably.core.limits import Allowance
from durably.core.moment import SECOND, HostClock
from durably.core.task import Draft, State, Task
from durably.errors import StoreUnavailable
from durably.stores.operations import accept, claim, commit, handover
from durably.stores.operations.desk import Lane
from durably.stores.statement import Queries, Query, Steps
from durably.testing.simulation.database import TimedStore
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.world import Tamper, World
from durably.worker import running, scanners
from durably.worker.claims import Claims
from durably.worker.report import Report, Reporter
from durably.worker.session import Session

Break = Callable[[pytest.MonkeyPatch], Tamper | None]
Concerns = Callable[[Scenario], bool]


class Mutant(msgspec.Struct, frozen=True):
    """A broken engine: what is wrong with it, how it is broken, and some words of the complaint that must come."""

    name: str
    breaks: Break
    complaint: str
    concerns: Concerns
    """Which scenarios have anything to do with it; the others are not worth playing."""


MUTANTS: list[Mutant] = []


def _every(_: Scenario) -> bool:
    return True


def _ends(scenario: Scenario, *endings: str) -> bool:
    return any(step.ending in endings for play in scenario.plays for step in play.steps)


def mutant(name: str, complaint: str, concerns: Concerns = _every) -> Callable[[Break], Break]:
    """Add a broken engine to the list."""

    def add(breaks: Break) -> Break:
        MUTANTS.append(Mutant(name, breaks, complaint, concerns))
        return breaks

    return add


def rewritten(*changes: tuple[str, str, str]) -> Tamper:
    """A store some of whose queries say something else: (query, what it says, what it says instead)."""

    def tamper(store: TimedStore) -> None:
        known = store.queries
        queries = {name: known(name).query for name in known.names}
        for name, old, new in changes:
            parts = tuple(part._replace(text=part.text.replace(old, new)) for part in queries[name].parts)
            assert parts != queries[name].parts, f"{name} does not say {old!r}"
            queries[name] = Query(name, parts)
        store.queries = Queries(queries)

    return tamper


def _queries(name: str, complaint: str, *changes: tuple[str, str, str], concerns: Concerns = _every) -> None:
    mutant(name, complaint, concerns)(lambda _: rewritten(*changes))


def _plain(scenario: Scenario) -> bool:
    """Whether nothing hangs on the tasks, and someone may come too late."""
    options = {name for play in scenario.plays for name in play.options}
    slow = scenario.weather.pause + scenario.weather.late > 0.02 and len(scenario.crews) > 1
    return slow and not options & {"key", "limit", "unique"}


_queries(
    "a completion checks the id only",
    "token",
    ("finish_tasks", "version = ?", "? IS NOT NULL"),
    ("finish_alike_tasks", "version = ?", "version IS NOT NULL AND ? IS NOT NULL"),
    ("finish_alike_tasks", "token = ?", "token IS NOT NULL AND ? IS NOT NULL"),
    concerns=_plain,
)
_queries(
    "an end checks the id only",
    "token",
    ("end_tasks", "version = ?", "? IS NOT NULL"),
    ("end_alike_tasks", "version = ?", "version IS NOT NULL AND ? IS NOT NULL"),
)
_queries("a task can be given back by anyone", "", ("release_tasks", "version = ?", "? IS NOT NULL"))
_queries("the last comes first in a key", "ahead of it", ("heads", "ORDER BY f.seq", "ORDER BY f.seq DESC"))
_queries("permits are not counted", "are allowed", ("count_permits", "GROUP BY", "AND false GROUP BY"))
_queries("a lease is over after its last beat", "before its lease was over", ("mark_dead", "expires_at <", "beat_at <"))
_queries(
    "the reaper takes from everyone",
    "from a session that lives",
    ("lapsed", "NOT EXISTS (SELECT 1 FROM durably_sessions s WHERE s.id = t.session AND s.state = 'live')", "true"),
)
_queries("tokens do not rise", "given out before", ("claim_ready", "value + 1", "value + 0"))
_queries(
    "a task falls due a second early",
    "before it was due",
    ("due", "ready_at <= ?", f"ready_at <= ? + {SECOND}"),
    ("promote", "ready_at <= ?", f"ready_at <= ? + {SECOND}"),
)
_queries(
    "a task on its last crash life runs beside others",
    "last crash life",
    ("claim_ready", "f.alone = ?", "? IS NOT NULL"),
)
_queries(
    "an attempt is counted at its end",
    "is not a new one",
    ("claim_ready", "attempt = attempt + 1, spent = spent + 1", "attempt = attempt, spent = spent"),
)


def _limits(scenario: Scenario) -> bool:
    """Whether a limit is changed while something runs."""
    return any(order.kind == "limit" for order in scenario.orders)


@mutant("permits are handed over whatever the limit is by now", "commit_and_go_on", concerns=_limits)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "allowance", lambda gate, in_use, now, room: Allowance(room, 0))


@mutant("a key is free again as soon as its head is claimed", "without holding its lease")
def _(_: pytest.MonkeyPatch) -> Tamper:
    return rewritten(("lease_keys_of", "SET state = 'leased'", "SET state = 'ready'"))


@mutant("a key is not given back", "key")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "give_back_keys", lambda *_: iter(()))


@mutant("a crash is not charged", "not charged")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def lapse(task: Task) -> Change:
        change = lifecycle.lapse(task)
        return change if change.ends else msgspec.structs.replace(change, crashes=task.crashes)

    monkeypatch.setattr(scanners, "lapse", lapse)


@mutant("a crash is refunded", "not charged")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def lapse(task: Task) -> Change:
        change = lifecycle.lapse(task)
        return change if change.ends else msgspec.structs.replace(change, spent=task.spent - 1)

    monkeypatch.setattr(scanners, "lapse", lapse)


@mutant("what runs at most once is tried again after a crash", "at most once")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def lapse(task: Task) -> Change:
        return msgspec.structs.replace(lifecycle.lapse(msgspec.structs.replace(task, once=False)), task=task)

    monkeypatch.setattr(scanners, "lapse", lapse)


@mutant("a killer is never convicted", "times, and", lambda scenario: _ends(scenario, "kill"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def lapse(task: Task) -> Change:
        return msgspec.structs.replace(lifecycle.lapse(msgspec.structs.replace(task, alone=False)), alone=False)

    monkeypatch.setattr(scanners, "lapse", lapse)


@mutant(
    "a handler can snooze a cancellation away",
    "asked to stop",
    lambda scenario: any(step.regretted and step.ending == "snooze" for play in scenario.plays for step in play.steps),
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lifecycle.snooze

    def snooze(task: Task, delay: float) -> Change:
        return honest(msgspec.structs.replace(task, cancel=None), delay)

    monkeypatch.setattr(lifecycle, "snooze", snooze)


@mutant("a unique key is free after a failure", "is free although")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = commit._follow

    def follow(q: Queries, changes: Sequence[Change]) -> Steps[None]:
        yield from honest(q, changes)
        failed = [change.task.id for change in changes if change.attempt is not None and not change.ends]
        if failed:
            yield q("free_unique", failed, ["live", "waiting"])

    monkeypatch.setattr(commit, "_follow", follow)


@mutant("failed attempts are not kept", "attempt")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = commit._follow

    def follow(q: Queries, changes: Sequence[Change]) -> Steps[None]:
        yield from honest(q, [msgspec.structs.replace(change, attempt=None) for change in changes])

    monkeypatch.setattr(commit, "_follow", follow)


@mutant("an expired task is run", "expired")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "overdue", lambda task, now: False)


@mutant("a paused queue is served", "although its queue is")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def lanes(queues: Sequence[str], settings: str | None) -> dict[str, Lane]:
        found = honest(queues, settings)
        return {queue: found.get(queue, Lane(queue, 2**62, False)) for queue in queues}

    honest = claim._lanes
    monkeypatch.setattr(claim, "_lanes", lanes)


@mutant("a worker judges as soon as it has booted", "only just opened")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "may_judge", lambda self, now: True)


@mutant(
    "a worker judges as soon as the store is back",
    "only because the store was away",
    lambda scenario: scenario.fair and bool(scenario.outages) and len(scenario.crews) > 1,
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "acknowledge", lambda self, sent, now: setattr(self, "_acknowledged", sent))


@mutant(
    "a handler begins although the lease may be over",
    "without holding its lease",
    lambda scenario: scenario.weather.pause > 0 and len(scenario.crews) > 1 and not scenario.jumps,
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "may_start", lambda self, now: True)


@mutant("a worker trusts that a claim without an answer did nothing", "does not come to an end")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "doubtful", lambda self, session, now: False)


@mutant("a worker gives back what it runs, too, when it clears up a doubt", "where it still runs")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Claims.orphans

    async def orphans(self: Claims, session: Session, known: set[str], now: float) -> list[Task] | None:
        return await honest(self, session, set(), now)

    monkeypatch.setattr(Claims, "orphans", orphans)


@mutant("a worker waits for a notification and never polls", "does not come to an end")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "pause", lambda self, poll: 1e6)


@mutant("each process trusts a clock of its own", "")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = World.process

    def process(self: World, name: str, *, mortal: bool = False) -> Process:
        made, wrong = honest(self, name, mortal=mortal), random.Random(name).uniform(-5, 5)
        made.clock = HostClock(lambda: self.wall() + wrong, self.loop.time)
        return made

    monkeypatch.setattr(World, "process", process)


class Apart:
    """Commits what follows from a change in a transaction of its own, after the change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: State) -> None:
        self._state = state
        self._drafts: dict[Reporter, list[Draft]] = {}
        self._decided, self._settle = Reporter._decided, Reporter._settle
        monkeypatch.setattr(Reporter, "_decided", lambda reporter, *given: self.decided(reporter, *given))
        monkeypatch.setattr(Reporter, "_settle", lambda reporter, batch, **given: self.settle(reporter, batch, **given))

    def decided(self, reporter: Reporter, report: Report, task: Task) -> Change:
        change = self._decided(reporter, report, task)
        if change.state != self._state:
            return change
        self._drafts.setdefault(reporter, []).extend(change.spawned)
        return msgspec.structs.replace(change, spawned=())

    async def settle(self, reporter: Reporter, batch: list[Report], **given: Any) -> None:
        await self._settle(reporter, batch, **given)
        drafts = self._drafts.pop(reporter, [])
        if drafts:
            with contextlib.suppress(StoreUnavailable):
                commit: Any = reporter._commit
                await commit.__self__._store.arun(accept.accept(drafts))


@mutant(
    "successors are committed after the completion",
    "successors",
    lambda scenario: any(play.then is not None for play in scenario.plays),
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    Apart(monkeypatch, State.DONE)


@mutant(
    "the dead-letter hook is committed after the death",
    "hook",
    lambda scenario: (
        _ends(scenario, "permanent") and any(play.options.get("on_dead") is not None for play in scenario.plays)
    ),
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    Apart(monkeypatch, State.DEAD)
