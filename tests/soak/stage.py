"""The stage of a soak: the crew, the ledger as far as it has been read, and waiting for something to happen there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.crew import Crew, Member
from tests.soak.ledger import Line, Tail
from tests.soak.world import World

BEHIND, CAUGHT_UP = 1200, 600
TURN = 0.004
DUTY = 0.25
"""How often dead processes are replaced, and the brake and the display are looked after."""


class Stage:
    """What the faults act on."""

    def __init__(self, world: World, crew: Crew, folder: Path, seed: int, show: Callable[[Stage], None]) -> None:
        self.world = world
        self.crew = crew
        self.chance = random.Random(seed)
        self.lines: list[Line] = []
        self.running: dict[int, dict[str, Line]] = {}
        """The attempts that have begun, and of which nobody has said yet that their end is recorded, by process."""
        self.accepted: set[str] = set()
        """The labels of tasks that were surely accepted."""
        self._begun: set[str] = set()
        self._tail = Tail(folder / "ledger")
        self._brake = folder / "brake"
        self._show = show
        self._next_duty = 0.0
        self._last_news = time.monotonic()

    @property
    def behind(self) -> int:
        """How many accepted tasks have not begun yet."""
        return len(self.accepted) - len(self._begun & self.accepted)

    @property
    def quiet_for(self) -> float:
        """Seconds since anyone wrote anything."""
        return time.monotonic() - self._last_news

    def read(self, pid: int | None = None) -> list[Line]:
        """What is new in the ledger, of all or of one process."""
        fresh = self._tail.read(pid)
        if fresh:
            self._last_news = time.monotonic()
        self.lines += fresh
        for line in fresh:
            match line.what:
                case "accepted":
                    self.accepted.update(line.labels)
                case "began":
                    self._begun.add(line.label)
                    self.running.setdefault(line.pid, {})[line.task] = line
                case "completed" | "fenced" | "failed":
                    self.running.setdefault(line.pid, {}).pop(line.task, None)
                case "session_lost":
                    self.running.pop(line.pid, None)
        return fresh

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something, and look after everyone meanwhile."""
        while not happened():
            self._look_after()
            time.sleep(TURN)

    def reported(self, member: Member, what: str, patience: float = 5.0) -> None:
        """Wait for the moment at which a process writes such a line; one that has nothing to do is not waited for."""
        end = time.monotonic() + patience
        self.read(member.pid)
        while time.monotonic() < end and member.process.poll() is None:
            if any(line.what == what for line in self.read(member.pid)):
                return
            time.sleep(0.001)

    def _look_after(self) -> None:
        if time.monotonic() < self._next_duty:
            return
        self._next_duty = time.monotonic() + DUTY
        self.read()
        self.crew.tend()
        if self.behind > BEHIND:
            self._brake.touch()
        elif self.behind < CAUGHT_UP:
            self._brake.unlink(missing_ok=True)
        self._show(self)
