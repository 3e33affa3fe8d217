"""The orders in which steps can be taken. No time limit decides anything: a step comes back, or is seen to wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .party import Connection, Party, Step

LOOK = 0.002
"""How long to look for an answer before asking whom the statement waits for; it decides nothing but speed."""

Choice = Callable[[list[Party], list[Party]], Party | None]
"""Who takes the next step, of those who can and beside those who wait; nobody, to give the schedule up."""


class Took(NamedTuple):
    """One line of a schedule: who did what, and for whom it had to wait."""

    party: str
    label: str
    waited_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        waited = f" (waits for {' and '.join(self.waited_for)})" if self.waited_for else ""
        return f"{self.party}: {self.label}{waited}"


@dataclass
class Trace:
    """What happened in one schedule."""

    taken: list[Took] = field(default_factory=list)
    answers: dict[str, list[str]] = field(default_factory=dict)
    blocked_by: set[tuple[str, str]] = field(default_factory=set)
    deadlocks: int = 0
    whole: bool = True
    """False when it was given up because an equal schedule has been run."""

    @property
    def choices(self) -> list[str]:
        """The schedule as the parties in the order in which they took their steps."""
        return [took.party for took in self.taken]

    def __str__(self) -> str:
        return "\n".join(f"    {took}" for took in self.taken)


def run(parties: list[Party], observer: Connection, choose: Choice) -> Trace:
    """Take steps as chosen until every party has finished, or until nothing is chosen."""
    trace = Trace()
    waiting: list[Party] = []
    while True:
        waiting = _calm(parties, observer, trace, waiting)
        able = [party for party in parties if party.pending is not None and not party.in_flight]
        if not able and not waiting:
            trace.answers = {party.name: party.answer or [] for party in parties}
            return trace
        if not able:
            # PostgreSQL would end one of them by and by; the last to wait is the one that notices first.
            trace.deadlocks += 1
            observer.execute("SELECT pg_cancel_backend($1)", [waiting[-1].pid])
            trace.taken.append(Took(waiting[-1].name, "deadlock"))
            while not waiting[-1].came_back(LOOK):
                pass
            continue
        chosen = choose(able, waiting)
        if chosen is None:
            trace.whole = False
            _abandon(parties, observer)
            return trace
        assert chosen.pending is not None
        trace.taken.append(Took(chosen.name, chosen.pending.label))
        chosen.take()


def _calm(parties: list[Party], observer: Connection, trace: Trace, waiting: list[Party]) -> list[Party]:
    """Wait until every step that was taken has come back or is seen to wait for another party; those that wait."""
    names = {party.pid: party.name for party in parties}
    while True:
        moved = False
        for party in [party for party in parties if party.in_flight]:
            if party.came_back(LOOK if party not in waiting else LOOK / 4):
                party.resume()
                waiting = [other for other in waiting if other is not party]
                moved = True
                continue
            [(pids,)] = observer.execute("SELECT pg_blocking_pids($1)", [party.pid]).fetchall()
            party.waits_for = sorted(names[pid] for pid in set(pids) if pid in names)
            if party.waits_for and party not in waiting:
                waiting = [*waiting, party]
                _note(trace, party)
        flying = [party for party in parties if party.in_flight]
        if not moved and all(party.waits_for for party in flying):
            return waiting


def _note(trace: Trace, party: Party) -> None:
    trace.blocked_by.update((party.name, other) for other in party.waits_for)
    for index in range(len(trace.taken) - 1, -1, -1):
        if trace.taken[index].party == party.name:
            trace.taken[index] = trace.taken[index]._replace(waited_for=tuple(party.waits_for))
            return


def _abandon(parties: list[Party], observer: Connection) -> None:
    """Drop a schedule in the middle."""
    for party in parties:
        if party.in_flight:
            observer.execute("SELECT pg_cancel_backend($1)", [party.pid])
            while not party.came_back(LOOK):
                pass
            party.resume()
    for party in parties:
        party.stop()


def independent(one: Party, other: Party, waiting: list[Party]) -> bool:
    """Whether it makes no difference which of the two takes its next step first.

    A statement sees what is committed, and waits for locks. So two statements matter to each other only if both lock or
    draw, and the end of a transaction matters to those who read or lock what it has written. Where a third party waits,
    an end may let it go on, and everything matters.
    """
    mine, theirs = one.pending, other.pending
    assert mine is not None
    assert theirs is not None
    if waiting and (mine.ends or theirs.ends):
        return False
    if mine.statement is not None and theirs.statement is not None and mine.touches.collides(theirs.touches):
        return False
    return not _informs(one, mine, theirs) and not _informs(other, theirs, mine)


def _informs(one: Party, mine: Step, theirs: Step) -> bool:
    if mine.statement is None:
        matters = one.held.informs if mine.label == "commit" else one.held.frees
        return theirs.statement is not None and matters(theirs.touches)
    return mine.alone and mine.touches.informs(theirs.touches)


def every(attempt: Callable[[Choice], Trace], limit: int | None = None) -> Iterator[Trace]:
    """Run every schedule that can make a difference (sleep sets: of equal ones only the first is run to its end)."""
    stack: list[tuple[list[str], frozenset[str]]] = [([], frozenset())]
    whole = 0
    while stack and (limit is None or whole < limit):
        prefix, sleeping = stack.pop()
        trace = attempt(_follow(prefix, sleeping, stack))
        if trace.whole:
            whole += 1
            yield trace


def _follow(prefix: list[str], sleeping: frozenset[str], stack: list[tuple[list[str], frozenset[str]]]) -> Choice:
    """Take the steps of a prefix, then always the first that is not asleep, noting the others for later."""
    done: list[str] = []
    asleep = sleeping

    def choose(able: list[Party], waiting: list[Party]) -> Party | None:
        nonlocal asleep
        known = {party.name: party for party in able}
        if len(done) < len(prefix):
            done.append(prefix[len(done)])
            return known[done[-1]]
        awake = [party for party in able if party.name not in asleep]
        if not awake:
            return None
        passed = set(asleep)
        branches = []
        for party in awake:
            still = frozenset(name for name in passed if independent(known[name], party, waiting))
            branches.append(([*done, party.name], still))
            passed.add(party.name)
        asleep = branches[0][1]
        stack.extend(reversed(branches[1:]))
        done.append(awake[0].name)
        return awake[0]

    return choose


def scripted(scenes: list[tuple[str, str]]) -> Choice:
    """Take a party's steps until it has taken the named one, or has to wait; then the next scene. "end" is its end."""
    left = list(scenes)

    def choose(able: list[Party], waiting: list[Party]) -> Party:
        known = {party.name: party for party in able}
        while left and left[0][0] not in known:
            left.pop(0)
        if not left:
            return able[0]
        name, until = left[0]
        party = known[name]
        if party.pending is not None and party.pending.label == until:
            left.pop(0)
        return party

    return choose


def one_by_one(names: list[str]) -> Choice:
    """Take steps in the given order of names."""
    left = iter(names)

    def choose(able: list[Party], waiting: list[Party]) -> Party:
        name = next(left)
        return next(party for party in able if party.name == name)

    return choose


def in_bursts(source: random.Random) -> Choice:
    """Take a few steps of one party, then a few of another, at random."""
    current: list[str] = []

    def choose(able: list[Party], waiting: list[Party]) -> Party:
        stays = [party for party in able if party.name in current]
        chosen = stays[0] if stays and source.random() < 0.7 else source.choice(able)
        current[:] = [chosen.name]
        return chosen

    return choose


def serial(attempt: Callable[[Choice], Trace]) -> Iterator[Trace]:
    """Run every order of whole transactions."""
    stack: list[list[str]] = [[]]
    while stack:
        prefix = stack.pop()
        done: list[str] = []

        def choose(
            able: list[Party], waiting: list[Party], prefix: list[str] = prefix, done: list[str] = done
        ) -> Party:
            inside = [party for party in able if party.mid_transaction]
            if inside:
                return inside[0]
            if len(done) < len(prefix):
                chosen = next(party for party in able if party.name == prefix[len(done)])
            else:
                chosen = able[0]
                stack.extend([*done, party.name] for party in able[1:])
            done.append(chosen.name)
            return chosen

        yield attempt(choose)
