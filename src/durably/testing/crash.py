"""`crash_everywhere`: play a scenario again and again, with a crash at another write each time, and tell what differs.

A crash takes everything that was in flight: the store's handle is dead, so that no cleanup writes, and only what was
committed is left. Then the leases run out, and a new process drains.
"""

from __future__ import annotations

import copy
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from durably.app import Durably
from durably.core.brief import brief
from durably.core.ids import Ids
from durably.core.moment import SECOND
from durably.observe.events import Event
from durably.stores.operations.claim import next_due
from durably.stores.operations.sweep import mark_dead
from durably.testing.clock import ManualClock
from durably.testing.power import Dead, MortalStore, Power

LEASE = 30.0
PATIENCE = 10_000
"""Rounds after which a scenario that never comes to rest is given up."""
SHOWN = 5


class Scenario:
    """What happens, and what comes of it. One object is made for each run.

    The object stands for the world outside: what it holds survives the crash, as a mail that was sent does. Tables of
    your own belong into the file `app.store.path`, of which the next process sees what was committed.
    """

    def declare(self, app: Durably) -> None:
        """Declare the tasks; every process does."""

    def prepare(self, app: Durably) -> None:
        """Make what the scenario begins with. There is no crash in here."""

    def act(self, app: Durably) -> None:
        """Do what enqueues the tasks. If the crash came before its end, the next process does it again."""

    def observe(self, app: Durably) -> Any:
        """What came of it, as something that can be compared: the same, whenever the crash came."""


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended. Tasks are told apart by name and arguments, since their ids are new in each run."""

    tasks: dict[str, int]
    """How many there are of each task with its end."""
    observed: Any
    executions: dict[str, int]
    """How often each task was run."""


class Crash(msgspec.Struct, frozen=True):
    """One run with a crash in it."""

    writes: int
    """How many writes had been committed."""
    moment: str
    differences: list[str]
    """What ended otherwise than without the crash: empty, if the crash did no harm."""
    repeats: list[str]
    """What was run more often than without the crash. At least once means that this can happen."""


class Report(msgspec.Struct, frozen=True):
    """What a scenario makes of a crash at every write."""

    baseline: Outcome
    """The run without a crash."""
    crashes: list[Crash]

    @property
    def harmful(self) -> list[Crash]:
        """The crashes that made a difference."""
        return [crash for crash in self.crashes if crash.differences]

    def check(self) -> None:
        """Raise an AssertionError that tells the story if any crash made a difference."""
        if self.harmful:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        harmful = self.harmful
        if not harmful:
            return f"{len(self.crashes)} crashes, and none of them made a difference."
        told = [f"{len(harmful)} of {len(self.crashes)} crashes made a difference:"]
        for crash in harmful[:SHOWN]:
            told.append(f"  A crash {crash.moment} ({crash.writes} writes had been committed):")
            told += [f"    {line}" for line in [*crash.differences, *crash.repeats]]
        if len(harmful) > SHOWN:
            told.append(f"  ... and {len(harmful) - SHOWN} more.")
        return "\n".join(told)


def crash_everywhere(scenario: Callable[[], Scenario]) -> Report:
    """Play the scenario without a crash, then with one at each moment at which a process could die around a write.

    `scenario` makes a new one for each run: it is usually the class itself. Tasks run one after the other.
    """
    first = _play(scenario(), None)
    crashes = []
    for strike, moment in enumerate(first.moments):
        run = _play(scenario(), strike)
        writes = sum(passed.startswith("just after the write") for passed in first.moments[: strike + 1])
        crashes.append(
            Crash(
                writes,
                run.moment or moment,
                _differences(first.outcome, run.outcome),
                _repeats(first.outcome, run.outcome),
            )
        )
    return Report(first.outcome, crashes)


class _Run(msgspec.Struct, frozen=True):
    outcome: Outcome
    moments: list[str]
    moment: str | None


def _play(scenario: Scenario, strike: int | None) -> _Run:
    """One run: a process that may die, and if it does, another one."""
    with TemporaryDirectory(prefix="durably-crash-") as folder:
        clock, executions = ManualClock(), Counter[str]()
        power = Power(strike, Path(folder) / "after.db")
        process = _Process(scenario, Path(folder) / "before.db", clock, power, executions)
        survivor = process
        process.live(prepares=True)
        try:
            if power.struck is not None:
                clock.advance(LEASE + 1)
                survivor = _Process(scenario, Path(folder) / "after.db", clock, Power(None, Path(folder)), executions)
                survivor.app.store.run(mark_dead())
                survivor.live(prepares=False, acts=not process.acted)
            # A copy: once the dead process is buried, its `finally` blocks may still change what was observed.
            observed = copy.deepcopy(scenario.observe(survivor.app))
            outcome = Outcome(survivor.ends(), observed, dict(sorted(executions.items())))
        finally:
            power.bury()
            process.close()
            if survivor is not process:
                survivor.close()
        return _Run(outcome, power.moments, power.struck)


class _Process:
    """A process: a thread of its own, which stands still when it dies."""

    def __init__(
        self, scenario: Scenario, path: Path, clock: ManualClock, power: Power, executions: Counter[str]
    ) -> None:
        self.acted = False
        self._scenario = scenario
        self._clock = clock
        self._power = power
        self._executions = executions
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        source = random.Random(str(path.name))
        self.app = Durably(MortalStore(str(path), clock, power), clock=clock, ids=Ids(clock, source))
        self.app.migrate()
        self.app.events.subscribe(self._count)

    def live(self, *, prepares: bool, acts: bool = True) -> None:
        """Do everything that is to be done, until the end or until it dies."""
        self._thread = threading.Thread(target=self._life, args=(prepares, acts), name="durably-scenario")
        self._thread.start()
        self._power.over.wait()
        if self._error is not None:
            raise self._error

    def ends(self) -> dict[str, int]:
        """Every task with its end, and how many there are of each."""
        tasks = self.app.tasks.list(limit=2**31 - 1)
        return dict(sorted(Counter(f"{self._named(task.id)} {_end(task)}" for task in tasks).items()))

    def close(self) -> None:
        """Let the thread end, and close the store."""
        if self._thread is not None:
            self._thread.join()
        self.app.close()

    def _life(self, prepares: bool, acts: bool) -> None:
        try:
            self._scenario.declare(self.app)
            if prepares:
                self._scenario.prepare(self.app)
            self._power.on = True
            if acts:
                self._scenario.act(self.app)
            self.acted = True
            self._come_to_rest()
        except Dead:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._power.over.set()

    def _come_to_rest(self) -> None:
        """Run what is due, then what falls due later, until nothing is left to wait for."""
        for _ in range(PATIENCE):
            if self.app.tick(limit=1):
                continue
            soon = self.app.store.run(next_due(self.app.served_queues()))
            waits = [when for when in (soon.delayed, soon.turns) if when is not None]
            if not waits:
                return
            self._clock.advance(max(min(waits) - soon.now, 0) / SECOND)
        raise AssertionError(f"the scenario did not come to rest within {PATIENCE:,} rounds")

    def _count(self, event: Event) -> None:
        if event.kind == "started":
            self._executions[self._named(event.task)] += 1

    def _named(self, task_id: str) -> str:
        task = self.app.handle(task_id).info()
        given = task.arguments
        told = ", ".join(f"{name}={brief(value)}" for name, value in given.items()) if isinstance(given, dict) else "?"
        return f"{task.name}({told})"


def _end(task: Any) -> str:
    if task.state == "done":
        return f"is done with {brief(task.result)}"
    return f"is {task.state}: {task.reason}" if task.reason else f"is {task.state}"


def _differences(expected: Outcome, found: Outcome) -> list[str]:
    told = []
    for task in sorted({*expected.tasks, *found.tasks}):
        before, after = expected.tasks.get(task, 0), found.tasks.get(task, 0)
        if before != after:
            told.append(f"{_times(after)} instead of {_times(before)}: {task}")
    if expected.observed != found.observed:
        told.append(f"observed {brief(found.observed)} instead of {brief(expected.observed)}")
    return told


def _repeats(expected: Outcome, found: Outcome) -> list[str]:
    return [
        f"ran {_times(count)} instead of {_times(expected.executions.get(task, 0))}: {task}"
        for task, count in found.executions.items()
        if count > expected.executions.get(task, 0)
    ]


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
