"""One world, its parties, and the verdict on what they did to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

from msgspec.structs import replace

from durably.core.moment import SECOND
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Queries

from .acts import Act, names
from .maker import Maker
from .party import Connection, Level, Party, Within, connect, run_alone
from .schedule import Choice, Trace, every, in_bursts, one_by_one, run, scripted, serial
from .settle import Settler
from .snapshot import TABLES, Snapshot, meaning, take, wrongs
from .worlds import World

TIDY = 500
"""After so many schedules their dead rows are swept up."""

Meaning = dict[str, Any]
Outcome = tuple[Meaning, list[list[str]]]
Attempt = Callable[[Choice], Trace]
Alter = Callable[[Queries], Queries]
Schedules = Callable[[Attempt], Iterator[Trace]]

# The clock stands still but for one microsecond per look, so that a schedule repeats to the last digit.
_CLOCK = """
CREATE SCHEMA isolation;
CREATE SEQUENCE isolation.clock;
SELECT setval('isolation.clock', 1700000000000000);
CREATE OR REPLACE FUNCTION durably.now() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT nextval('isolation.clock') $$;
"""


def _reset_function() -> str:
    lines = [f"DELETE FROM durably.{table};" for table in TABLES]
    lines += [
        f"INSERT INTO durably.{table} OVERRIDING SYSTEM VALUE SELECT * FROM isolation.{table};" for table in TABLES
    ]
    lines += [
        f"PERFORM setval('{name}', (SELECT value FROM isolation.numbers WHERE name = '{name}'));" for name in _NUMBERS
    ]
    body = "\n".join(lines)
    return f"CREATE FUNCTION isolation.reset() RETURNS void LANGUAGE plpgsql AS $$ BEGIN\n{body}\nEND $$"


_NUMBERS = ("isolation.clock", "durably.order_seq", "durably.token_seq")


@dataclass
class Verdict:
    """What is wrong with a schedule."""

    title: str
    trace: Trace
    problems: list[str]

    @property
    def effort(self) -> tuple[int, int]:
        """How hard it is to follow: the turns, then the steps."""
        return len(_turns(self.trace.choices)), len(self.trace.taken)

    def __str__(self) -> str:
        problems = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{self.title}\n{problems}\n  in this order:\n{self.trace}"


@dataclass
class Tally:
    """What was run for one pair."""

    title: str
    schedules: int = 0
    deadlocks: int = 0
    waits: int = 0
    failures: list[Verdict] = field(default_factory=list)


@dataclass(frozen=True)
class Cast:
    """Who is on stage: two acts, and maybe a caller whose transaction is open before they begin.

    A caller that is READ COMMITTED has done everything by then but to end. One of another level has only looked, and
    goes on with what it saw while the others change it.
    """

    one: Act
    other: Act
    caller: Act | None = None
    ends: Within = "commit"
    level: Level = "READ COMMITTED"

    @property
    def title(self) -> str:
        level = "" if self.level == "READ COMMITTED" else f" in {self.level}"
        third = f" | {self.caller.name}{level}, then {self.ends}" if self.caller is not None else ""
        return f"{self.one.name} | {self.other.name}{third}"


class Arena:
    """A world in a database, reset before every schedule."""

    def __init__(self, url: str, world: World, alter: Alter, thorough: bool) -> None:
        self.world = world
        self.thorough = thorough
        self.queries = alter(PostgresStore(url).queries)
        self.observer: Connection = connect(url, "observer")
        self.parties = {name: Party(url, self.queries, name) for name in ("one", "two", "caller")}
        self._attempts = 0
        self._settled: dict[str, list[str]] = {}
        self._build()

    def _build(self) -> None:
        self.observer.execute(_CLOCK)
        maker = Maker(self.observer, self.queries)
        self.world.build(maker)
        self.held = maker.held
        for table in TABLES:
            self.observer.execute(f"CREATE TABLE isolation.{table} AS SELECT * FROM durably.{table}".encode())
            self.observer.execute(f"ALTER TABLE durably.{table} SET (autovacuum_enabled = off)".encode())
        self.observer.execute("CREATE TABLE isolation.numbers (name text, value bigint)")
        for name in _NUMBERS:
            self.observer.execute(f"INSERT INTO isolation.numbers SELECT '{name}', last_value FROM {name}".encode())
        self.observer.execute(_reset_function().encode())

    def close(self) -> None:
        for party in self.parties.values():
            party.close()
        self.observer.close()

    def attempt(self, cast: Cast, choose: Choice) -> Trace:
        """Run one schedule from the beginning."""
        self._attempts += 1
        if self._attempts % TIDY == 0:
            self.observer.execute("VACUUM")
        self.observer.execute("SELECT isolation.reset()")
        self._find_places()
        on_stage = [self.parties["one"], self.parties["two"]]
        for party, act in zip(on_stage, (cast.one, cast.other), strict=True):
            party.begin(partial(act.start, self.held), None)
        if cast.caller is not None:
            party = self.parties["caller"]
            party.begin(partial(cast.caller.start, self.held), cast.ends, cast.level)
            if cast.level != "READ COMMITTED":
                party.look()
            else:
                while party.pending is not None and party.pending.statement is not None:
                    party.go()
            on_stage.append(party)
        return run(on_stage, self.observer, choose)

    def _find_places(self) -> None:
        """Whoever was told where its task is knows where it is now."""
        places: dict[str, Any] = dict(self.observer.execute("SELECT id::text, ctid FROM durably.tasks").fetchall())
        for name, task in self.held.items():
            if task.place is not None:
                self.held[name] = replace(task, place=places[task.id])

    def judge(self, cast: Cast) -> Judge:
        """Find out what the serial orders lead to."""
        return Judge(self, cast)

    def repeat(self, act: Act) -> list[str]:
        """Run an act again, alone."""
        program = act.start(self.held)
        try:
            op = next(program)
            while True:
                op = program.send(run_alone(self.observer, self.queries, op))
        except StopIteration as stop:
            answer: list[str] = stop.value
            return answer

    def pass_time(self, microseconds: int) -> None:
        self.observer.execute("SELECT setval('isolation.clock', last_value + $1) FROM isolation.clock", [microseconds])

    def settle(self, detailed: Meaning) -> list[str]:
        """Let everything end; equal states end equally, so each is tried once."""
        state = repr(detailed)
        if state not in self._settled:
            self._settled[state] = Settler(self.observer, self.queries, self.world.queues).settle()
        return self._settled[state]

    def look(self) -> Snapshot:
        return take(self.observer)


class Judge:
    """Knows what whole transactions, one after the other, would lead to."""

    def __init__(self, arena: Arena, cast: Cast) -> None:
        self._arena = arena
        self._cast = cast
        self._acts = [cast.one, cast.other]
        self._claims = all(act.claims for act in self._acts)
        self._strict = not any(act.loose for act in self._acts)
        self._short = any(act.short for act in self._acts)
        self._orders: list[list[str]] = []
        self._outcomes: list[Outcome] = []
        self._later: list[Outcome] = []
        self._known: list[Meaning] = []
        for trace in serial(lambda choose: arena.attempt(cast, choose)):
            shot = arena.look()
            self._orders.append(trace.choices)
            self._outcomes.append(self._outcome(shot, trace))
            self._known.append(meaning(shot, names, detailed=True))

    def check(self, trace: Trace) -> list[str]:
        """What is wrong with the state that a schedule has led to."""
        arena = self._arena
        shot = arena.look()
        problems = wrongs(shot, names) + self._waited_for_callers(trace)
        outcome = self._outcome(shot, trace)
        odd = self._strict and not problems and outcome not in self._outcomes
        if odd and self._short:
            outcome, shot = self._another_turn(trace)
            problems += wrongs(shot, names)
        state = meaning(shot, names, detailed=True)
        if arena.thorough or state not in self._known:
            problems += arena.settle(state)
        if odd and outcome not in self._outcomes and outcome not in self._later_outcomes():
            problems += self._difference(outcome)
        return problems

    def _outcome(self, shot: Snapshot, trace: Trace, more: tuple[list[str], list[str]] = ([], [])) -> Outcome:
        """The state and the answers; of two claims it does not matter who got what."""
        state = meaning(shot, names)
        answers = [sorted(trace.answers[name] + extra) for name, extra in zip(("one", "two"), more, strict=True)]
        if self._claims:
            answers = [sorted(answers[0] + answers[1])]
            holders = dict.fromkeys(("a", "b", "gone"), "someone")
            for table in ("tasks", "keys"):
                state[table] = [tuple(holders.get(part, part) for part in row) for row in state[table]]
        return state, answers

    def _another_turn(self, trace: Trace) -> tuple[Outcome, Snapshot]:
        """What it comes to when whoever may have fallen short tries again a little later."""
        self._arena.pass_time(5 * SECOND)
        one, two = (self._arena.repeat(act) if act.short else [] for act in self._acts)
        shot = self._arena.look()
        return self._outcome(shot, trace, (one, two)), shot

    def _later_outcomes(self) -> list[Outcome]:
        """What the serial orders come to after another turn."""
        if self._short and not self._later:
            for order in self._orders:
                trace = self._arena.attempt(self._cast, one_by_one(order))
                self._later.append(self._another_turn(trace)[0])
        return self._later

    def _waited_for_callers(self, trace: Trace) -> list[str]:
        """A caller's open transaction is waited for by those only who want the unique key that it takes."""
        patient = {name for name, act in zip(("one", "two"), self._acts, strict=True) if act.unique}
        waits = [who for who, whom in sorted(trace.blocked_by) if whom == "caller" and who not in patient]
        return [f"{who} waits for a caller's transaction" for who in waits]

    def _difference(self, outcome: Outcome) -> list[str]:
        lines = ["it ended as no serial order does:"]
        state, answers = outcome
        for order, (other, said) in zip(self._orders, self._outcomes, strict=True):
            lines.append(f"  unlike {' '.join(_turns(order))}:")
            if said != answers:
                lines.append(f"    answers {answers}, not {said}")
            for part, rows in state.items():
                lines += [f"    {part}: {row} is too much" for row in rows if row not in other[part]]
                lines += [f"    {part}: {row} is missing" for row in other[part] if row not in rows]
        return ["\n".join(lines)]


def _turns(choices: list[str]) -> list[str]:
    return [who for index, who in enumerate(choices) if index == 0 or choices[index - 1] != who]


@contextmanager
def arena(url: str, world: World, alter: Alter = lambda queries: queries, *, thorough: bool = True) -> Iterator[Arena]:
    """A world to try pairs in; `alter` may break a query, to see whether that is noticed.

    With `thorough`, a state that some serial order leads to as well is settled too.
    """
    made = Arena(url, world, alter, thorough)
    try:
        yield made
    finally:
        made.close()


def pairs(world: World) -> list[Cast]:
    """Every act with every act, itself too."""
    return [Cast(one, other) for one, other in combinations_with_replacement(world.acts, 2)]


def a_round(world: World, source: random.Random) -> list[Cast]:
    """A sample of pairs in which every act meets two others."""
    acts = source.sample(world.acts, len(world.acts))
    return [Cast(one, other) for one, other in zip(acts, [*acts[1:], acts[0]], strict=True)]


def with_callers(world: World, casts: list[Cast], level: Level = "READ COMMITTED") -> list[Cast]:
    """The pairs, each beside every caller's open transaction, whichever way that ends."""
    ends: list[Within] = ["commit", "roll back"]
    return [
        Cast(cast.one, cast.other, caller, end, level) for cast in casts for caller in world.callers for end in ends
    ]


def trial(arena: Arena, cast: Cast, schedules: Schedules, *, until_one_fails: bool = False) -> Tally:
    """Run schedules of one cast and judge each."""
    tally = Tally(cast.title)
    judge = arena.judge(cast)
    for trace in schedules(lambda choose: arena.attempt(cast, choose)):
        tally.schedules += 1
        tally.deadlocks += trace.deadlocks
        tally.waits += bool(trace.blocked_by)
        problems = judge.check(trace)
        if problems:
            tally.failures.append(Verdict(f"{arena.world.name}: {cast.title}", trace, problems))
            if until_one_fails:
                break
    return tally


def all_of_them(attempt: Attempt) -> Iterator[Trace]:
    """Every schedule that can make a difference."""
    return every(attempt)


def some_of_them(source: random.Random, count: int) -> Schedules:
    """A sample of schedules."""

    def schedules(attempt: Attempt) -> Iterator[Trace]:
        for _ in range(count):
            yield attempt(in_bursts(source))

    return schedules


def this_one(*scenes: tuple[str, str]) -> Schedules:
    """One schedule, told in scenes: who goes on, and how far."""
    return lambda attempt: iter([attempt(scripted(list(scenes)))])


def cast(
    world: World,
    one: str,
    other: str,
    caller: str | None = None,
    ends: Within = "commit",
    level: Level = "READ COMMITTED",
) -> Cast:
    """The acts of a world by their names."""
    acts = {act.name: act for act in world.acts}
    callers = {act.name: act for act in world.callers}
    return Cast(acts[one], acts[other], None if caller is None else callers[caller], ends, level)
