"""The stage: does one thing to a store and to the model, and holds the one to the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import pytest

from durably.core import lifecycle
from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.ids import Ids, derived
from durably.core.retry import Retry
from durably.core.task import Failure, Task
from durably.errors import Conflict, NotAllowed, UnknownTask
from durably.stores.operations.accept import Accepted, request_cancel
from durably.stores.operations.commit import apply_cancel_requests, cancel_now, set_progress
from durably.stores.operations.control import (
    dead_ids,
    pause_key,
    purge,
    replay,
    resume_key,
    set_limit,
    set_queue,
    skip_key,
)
from durably.stores.operations.sweep import (
    beat,
    bury,
    close_session,
    due,
    expired,
    held,
    lapsed,
    mark_dead,
    promote,
    prune,
)
from durably.testing.world import LEASE, World
from tests.model.compare import EVERYTHING, Comparison
from tests.model.entry import Entry
from tests.model.model import SECOND, Answer, Given, Model, Wanted
from tests.model.wishes import (
    QUEUES,
    Claims,
    Completes,
    Discards,
    Fails,
    Leaves,
    Outcome,
    Snoozes,
    Stops,
    child_of,
    draft_of,
)

SEEN = 60
BURST = 2.0
TICK = 0.000_001

T = TypeVar("T")


class Look(NamedTuple):
    """A task as someone saw it, and the revision that it then had in the model."""

    task: Task
    revision: int


class Report(NamedTuple):
    """What someone decided about a task that they saw, for the store and for the model."""

    look: Look
    change: Change
    believe: Callable[[Entry], object]
    children: tuple[Wanted, ...] = ()


class Stage:
    """A store, its model, and what has been seen and said so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.world.ids = Ids(world.clock, random.Random(1))
        self.model = Model(world.clock.now())
        self.comparison = Comparison(world, self.model)
        self.names: list[str] = []
        self.asked: list[Wanted] = []
        self.looks: list[Look] = []
        self.changes: list[Change] = []
        self._rows: dict[str, Task] = {}

    def compare(self) -> dict[str, Task]:
        """Hold every row to the model, and remember a few of them as someone may."""
        rows = self._rows = self.comparison.check()
        fresh = [self.look(row) for row in _by_id(rows) if not row.ended]
        self.looks += [look for look in fresh if look not in self.looks][-6:]
        del self.looks[:-SEEN]
        return rows

    def look(self, task: Task) -> Look:
        return Look(task, self.model.entries[task.id].revision)

    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.model.now = self.world.clock.now()

    # Callers

    def enqueue(self, *several: dict[str, Any]) -> None:
        """Accept new tasks in one transaction."""
        self.advance(TICK)
        new = []
        for wish in several:
            task = self.world.ids.task(wish["key"] or wish["unique"])
            payload = b'{"number":%d}' % len(self.asked)
            new.append(Wanted(id=task, name="work", payload=payload, **wish))
            self.asked.append(new[-1])
        self.accept(new)

    def accept(self, wanted: Sequence[Wanted], again: bool = False) -> None:
        answers = self.world.accept(*(draft_of(each) for each in wanted), again=again)
        for each, answer in zip(wanted, answers, strict=True):
            expected = self.model.accept(each)
            match answer:
                case Accepted():
                    told = Answer("existing" if answer.existing else "accepted", answer.id)
                case Conflict():
                    told = Answer("conflict", expected.task if expected.task in str(answer) else "another")
            assert told == expected, f"the answer to {each} was {told}, not {expected}"
        self.compare()

    def ask_again(self, which: int) -> None:
        """A caller that did not get its answer asks again under the same id; the task may have gone far since."""
        wanted = one_of([each for each in self.asked if each.id in self.model.entries], which)
        if wanted is not None:
            self.accept([wanted], again=which % 2 == 0)

    # Workers

    def open(self, lease: int = LEASE) -> str:
        name = self.world.session(lease=lease)
        self.names.append(name)
        self.model.open(name, lease)
        return name

    def live(self) -> list[str]:
        return [name for name, session in self.model.sessions.items() if session.live]

    def beat(self, name: str) -> None:
        assert self.world.run(beat(name, LEASE)) == self.model.beat(name, LEASE), f"the beat of {name}"

    def close(self, name: str) -> None:
        self.world.run(close_session(name))
        self.model.close(name)

    def ask_what_is_held(self, name: str) -> None:
        found = [task.id for task in self.world.run(held(name))]
        assert sorted(found) == sorted(self.model.held(name)), f"{name} holds {found}"

    def claim(self, name: str, how: Claims) -> bool:
        """Claim; whether a task on its last life waits for a process of its own."""
        claim = self.world.claim_all(name, how.room, how.queues, alone=how.alone)
        order = [(-task.priority, task.ready_at) for task in claim.tasks]
        assert order == sorted(order), f"the tasks should start in another order: {claim.tasks}"
        given = [Given(task.id, task.token) for task in claim.tasks]
        self.model.claim(name, how.queues, how.room, how.alone, given, claim.live)
        rows = self.compare()
        for task in claim.tasks:
            row = rows[task.id]
            assert (row.version, row.attempt, row.state) == (task.version, task.attempt, task.state), f"{row} {task}"
            self.looks.append(self.look(task))
        return claim.alone_waiting

    def running(self) -> list[Look]:
        """Every task that is leased, as the last comparison found it."""
        return [self.look(row) for row in _by_id(self._rows) if row.state == "leased"]

    def leases_seen(self, which: int) -> list[Look]:
        """The leases that were seen of late, whether they still hold or not."""
        return [look for look in self.looks_seen(which) if look.task.state == "leased"]

    def looks_seen(self, which: int) -> list[Look]:
        """What was seen of late; mostly of tasks that still have something to lose."""
        live = [look for look in self.looks if look.task.id in self.model.entries]
        live = [look for look in live if not self.model.entries[look.task.id].ended]
        return live if which % 4 else self.looks

    def decided(self, look: Look, how: Outcome) -> Report:
        """What an outcome means for the store, and what for the model."""
        task, model = look.task, self.model
        match how:
            case Completes():
                return self._completion(look, how.child)
            case Fails():
                message = f"attempt {task.attempt} broke"
                failure = Failure("Boom", message, permanent=how.permanent)
                change = lifecycle.fail(task, failure, Retry.after(*how.delays) if how.delays else Retry.never(), 0.0)
                waits = [delay * SECOND for delay in how.delays]
                return Report(look, change, lambda entry: model.fail(entry, message, how.permanent, waits))
            case Snoozes():
                change = lifecycle.snooze(task, how.wait)
                return Report(look, change, lambda entry: model.snooze(entry, how.wait * SECOND))
            case Leaves():
                change = lifecycle.release(task, started=how.started)
                return Report(look, change, lambda entry: model.release(entry, how.started))
            case Discards():
                return Report(
                    look, lifecycle.discard(task, "pointless"), lambda entry: model.discard(entry, "pointless")
                )
            case Stops():
                return Report(look, lifecycle.stop(task), model.stop)

    def _completion(self, look: Look, child: bool) -> Report:
        task = look.task
        result = b'"%d"' % task.token
        children = (child_of(derived(task.id, task.attempt, 0, "k1")),) if child else ()
        known = self.model.entries.get(task.id)
        keep = None if known is None or known.keep is None else known.keep / SECOND
        spawned = tuple(draft_of(each) for each in children)
        change = lifecycle.complete(task, result, retention=keep, spawned=spawned)
        return Report(look, change, lambda entry: self.model.complete(entry, result), children)

    def commit(self, *reports: Report) -> None:
        """What was decided on the present state must land whole, and anything else must change nothing."""
        if not reports:
            return
        verdicts = self.world.commit(*(report.change for report in reports))
        children: list[Wanted] = []
        for report, verdict in zip(reports, verdicts, strict=True):
            entry = self.model.entries.get(report.look.task.id)
            if entry is not None and entry.revision == report.look.revision and not entry.ended:
                assert isinstance(verdict, Applied), f"{report.change} was decided on the present, and is {verdict}"
                report.believe(entry)
                children += report.children
                self.changes.append(report.change)
            else:
                self._check_stale(verdict)
        # Within one commit, what goes back to wait comes before what is new.
        for child in children:
            self.model.accept(child)
        self.compare()

    def commit_again(self, which: int) -> None:
        """The first commit landed, and the answer was lost."""
        change = one_of(self.changes, which)
        if change is not None:
            [verdict] = self.world.commit(change)
            self._check_stale(verdict)
            self.compare()

    def _check_stale(self, verdict: Verdict) -> None:
        assert isinstance(verdict, Stale), f"{verdict.change} was decided on the past, and has been applied"
        entry = self.model.entries.get(verdict.change.task.id)
        if entry is None:
            assert verdict.current is None, f"{verdict.current} is forgotten, and comes back"
        else:
            assert verdict.current is not None, f"{entry} is known, and was not found"
            assert (verdict.current.state, verdict.current.attempt) == (entry.state, entry.attempt)

    def tell_progress(self, look: Look | None) -> None:
        if look is None:
            return
        entry = self.model.entries.get(look.task.id)
        holds = entry is not None and entry.state == "leased" and entry.token == look.task.token
        assert self.world.run(set_progress(look.task.id, look.task.token, "half", None)) == holds
        if holds:
            self.comparison.forget(look.task.id)
        self.compare()

    # Background work

    def mark_dead(self) -> None:
        found = set(self.world.run(mark_dead()))
        assert found == self.model.mark_dead(), f"declared dead: {found}"
        self.comparison.check_sessions()

    def lapse(self) -> None:
        tasks = self.world.run(lapsed(EVERYTHING, []))
        found = sorted(task.id for task in tasks)
        assert found == sorted(self.model.lapsed()), f"lapsed are {found}"
        self.commit(*(Report(self.look(task), lifecycle.lapse(task), self.model.lapse) for task in tasks))

    def lapse_late(self, which: int) -> None:
        """A reaper that was slow: what it saw has been settled since, or it is the first after all."""
        look = one_of([look for look in self.leases_seen(which) if look.task.session not in self.live()], which)
        if look is not None:
            self.commit(Report(look, lifecycle.lapse(look.task), self.model.lapse))

    def bury(self) -> None:
        assert self.world.run(bury()) == self.model.bury()
        self.comparison.check_sessions()

    def promote(self) -> None:
        ids = self.world.run(due(EVERYTHING, []))
        assert sorted(ids) == sorted(self.model.due()), f"due are {ids}"
        self._promote(ids)

    def promote_by_an_old_list(self) -> None:
        """What is not due, or no longer delayed, is left alone."""
        live = [entry for entry in self.model.entries.values() if not entry.ended]
        self._promote([entry.id for entry in sorted(live, key=lambda entry: (entry.ready_at, entry.place))])

    def _promote(self, ids: list[str]) -> None:
        moved = self.world.run(promote(ids)) if ids else []
        assert sorted(moved) == sorted(self.model.promote()), f"promoted {moved}"
        self.compare()

    def expire(self) -> None:
        tasks = self.world.run(expired(EVERYTHING, []))
        found = {task.id for task in tasks}
        assert found == self.model.expired(), f"expired are {found}"
        self.commit(*(Report(self.look(task), lifecycle.expire(task), self.model.expire) for task in tasks))

    def prune(self) -> None:
        """Unique keys whose period is over may go with the tasks, or earlier: nobody can tell."""
        assert self.world.run(prune(EVERYTHING)) >= self.model.prune()
        self.compare()

    # People

    def ids(self, which: int, count: int) -> list[str]:
        """So many of the tasks that are known, beginning anywhere."""
        return _part(list(self.model.entries), which, count)

    def live_ids(self, which: int, count: int) -> list[str]:
        """So many tasks that have not ended, or now and then of any."""
        live = [entry.id for entry in self.model.entries.values() if not entry.ended]
        return _part(live, which, count) if which % 4 else self.ids(which, count)

    def cancel(self, ids: list[str]) -> None:
        verdicts = self.world.run(cancel_now(ids, "no more"))
        applied = {verdict.change.task.id for verdict in verdicts if isinstance(verdict, Applied)}
        wanted = {task for task in ids if self.model.cancel(self.model.entries[task], "no more")}
        assert applied == wanted, f"cancelled {applied}, not {wanted}"
        self.compare()

    def cancel_late(self, which: int) -> None:
        """Someone looked, and decided; meanwhile the task went on."""
        look = one_of(self.looks_seen(which), which)
        if look is not None:
            change = lifecycle.cancel(look.task, "late")
            self.commit(Report(look, change, lambda entry: self.model.cancel(entry, "late")))

    def request_cancel(self, ids: list[str], reason: str) -> None:
        self.world.run(request_cancel(ids, reason))
        self.model.requests += [(task, reason) for task in ids]

    def settle_requests(self) -> None:
        verdicts = self.world.run(apply_cancel_requests())
        applied = {verdict.change.task.id for verdict in verdicts if isinstance(verdict, Applied)}
        assert applied == self.model.settle_requests(), f"carried out: {applied}"
        self.compare()

    def replay(self, which: int, count: int) -> None:
        """What is not dead is left alone. What was accepted in one moment has no order, so one of it is enough."""
        moments: dict[int, str] = {}
        for task in self._dead() + self.ids(which, 1):
            moments.setdefault(self.model.entries[task].created_at, task)
        ids = _part(list(moments.values()), which, count)
        assert set(self.world.run(replay(ids))) == self.model.replay(ids)
        self.compare()

    def purge(self, which: int) -> None:
        """What is not dead is left alone."""
        ids = _part(self._dead(), which, 1) + self.ids(which, 1)
        assert set(self.world.run(purge(ids))) == self.model.purge(ids)
        self.compare()

    def _dead(self) -> list[str]:
        found: list[str] = []
        for space in ("default", "tenant"):
            found += self.world.run(dead_ids(None, None, None, None, EVERYTHING, space))
        wanted = [entry.id for entry in self.model.entries.values() if entry.state == "dead"]
        assert sorted(found) == sorted(wanted), f"the dead letters are {found}"
        return found

    def set_queue(self, queue: str, state: Literal["active", "paused", "draining"]) -> None:
        self.world.run(set_queue(queue, state))
        self.model.set_queue(queue, state)

    def set_limit(self, gate: str, concurrency: int | None, rate: float | None) -> None:
        self.world.run(set_limit(gate, concurrency, rate, BURST))
        self.model.set_limit(gate, concurrency, rate, BURST)

    def waiting_lines(self) -> list[tuple[str, str]]:
        """The keys in which someone waits, those that are paused first."""
        waiting = [entry for entry in self.model.entries.values() if entry.state == "blocked"]
        return [*self.model.pauses, *(entry.line for entry in waiting if entry.line is not None)]

    def pause_key(self, line: tuple[str, str]) -> None:
        assert self.world.run(pause_key(*line, "maintenance")) == self.model.pause_key(line)
        self.compare()

    def resume_key(self, line: tuple[str, str]) -> None:
        if line in self.model.pauses:
            self.world.run(resume_key(*line))
            self.model.resume_key(line)
        else:
            with pytest.raises((UnknownTask, NotAllowed)):
                self.world.run(resume_key(*line))
        self.compare()

    def skip_key(self, line: tuple[str, str]) -> None:
        if line in self.model.pauses:
            self.world.run(skip_key(*line, "by hand"))
            self.model.skip_key(line, "by hand")
        else:
            with pytest.raises((UnknownTask, NotAllowed)):
                self.world.run(skip_key(*line, "by hand"))
        self.compare()

    # The end

    def drain(self) -> None:
        """Open every queue, lift every limit, let nobody crash: whatever was accepted must come to its end."""
        for queue in QUEUES:
            self.set_queue(queue, "active")
        for gate in list(self.model.limits):
            self.set_limit(gate, None, None)
        rounds = len(self.model.entries) * 2 + 20
        while rounds and any(not entry.ended for entry in self.model.entries.values()):
            rounds -= 1
            self.advance(31)
            self.mark_dead()
            self.lapse()
            self.promote()
            for line in list(self.model.pauses):
                self.resume_key(line)
            here = self.open()
            if self.claim(here, Claims(100)):
                self.claim(here, Claims(100, alone=True))
            ours = [look for look in self.running() if look.task.session in self.live()]
            self.commit(*(self.decided(look, Completes()) for look in ours))
        # A key that has nobody left is dropped by the next claim that looks at it, once its wait is over.
        self.advance(61)
        self.claim(self.open(), Claims(100))
        self.comparison.check_rest()


def one_of(choices: Sequence[T], which: int) -> T | None:
    """One of them, if there is one."""
    return choices[which % len(choices)] if choices else None


def _part(choices: Sequence[str], which: int, count: int) -> list[str]:
    """So many of them, beginning anywhere."""
    if not choices:
        return []
    start = which % len(choices)
    return [*choices[start:], *choices[:start]][:count]


def _by_id(rows: dict[str, Task]) -> list[Task]:
    """In an order that is the same on every store."""
    return [rows[task] for task in sorted(rows)]
