"""Everything that a soak does to its processes and its store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from tests.soak.crew import LEASE, Member
from tests.soak.ledger import Line
from tests.soak.stage import Stage
from tests.soak.world import PostgresWorld
from tests.support.proxy import ANYTHING, COMMIT

PEACE = LEASE + 2.0
BEYOND = LEASE * 1.75
"""Long enough for a lease to run out and for others to notice."""


class Fault(msgspec.Struct):
    """Something that was done."""

    kind: str
    began: float
    ended: float = 0.0
    interrupted: tuple[Line, ...] = ()
    """The attempts that ran in the process that was killed or frozen."""
    count: int = 0
    """Connections or replies that it met, or calls that it made fail."""


class Faults:
    """What can be done, and what has been done."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance = stage.chance
        self.done: list[Fault] = []

    def round(self) -> list[Callable[[], None]]:
        """Every kind of fault at least once, in some order."""
        faults: list[Callable[[], None]] = [self.kill_worker] * 4 + [self.freeze_worker] * 2
        faults += [self.kill_in_peace, self.kill_producer]
        if isinstance(self._stage.world, PostgresWorld):
            faults += [self.restart, self.cut, self.cut, self.delay, self.silence, self.lose_replies, self.lose_replies]
        else:
            faults += [self.fill_disk, self.fill_disk]
        self._chance.shuffle(faults)
        return faults

    def kill_worker(self) -> None:
        """Kill -9 when a handler has just begun, or has just done its work and is about to return."""
        victim = self._someone("worker")
        with self._noted("worker killed") as fault:
            self._stage.reported(victim, self._chance.choice(["began", "ran"]))
            victim.kill()
            fault.began = time.monotonic()
            fault.interrupted = self._interrupted(victim)

    def kill_in_peace(self) -> None:
        """The same with nothing else going wrong before or after, so that the time of recovery is its own."""
        self._stage.wait(PEACE)
        self.kill_worker()
        self._stage.wait(PEACE)

    def kill_producer(self) -> None:
        """Kill -9 when a task was just offered, and nobody knows whether it was accepted."""
        victim = self._someone("producer")
        with self._noted("producer killed"):
            self._stage.reported(victim, "offered")
            victim.kill()

    def freeze_worker(self) -> None:
        """Stop it in the middle of its work until others have taken that over; then it wakes up and wants to go on."""
        victim = self._someone("worker")
        with self._noted("worker frozen") as fault:
            self._stage.reported(victim, self._chance.choice(["began", "ran", "ran"]))
            victim.freeze()
            fault.interrupted = self._interrupted(victim)
            self._stage.wait(BEYOND)
            victim.thaw()

    def fill_disk(self) -> None:
        """No file grows any more; in the middle of it, perhaps, a worker dies."""
        with self._noted("disk full") as fault:
            before = len(self._stage.lines)
            self._stage.crew.fill_disk()
            self._stage.wait(self._chance.uniform(1.0, BEYOND))
            if self._chance.random() < 0.5:
                self._someone("worker").kill()
            self._stage.wait(0.5)
            self._stage.crew.free_disk()
            fault.count = sum(
                line.what in ("unsure", "rolled back") and bool(line.note) for line in self._stage.lines[before:]
            )

    def restart(self) -> None:
        """PostgreSQL crashes and comes back."""
        with self._noted("server crashed"), self._world.server.outage("immediate"):
            self._stage.wait(self._chance.uniform(0.0, 1.5))

    def cut(self) -> None:
        """Connections are reset."""
        with self._noted("connections cut") as fault:
            fault.count = self._world.proxy.cut(self._chance.choice([0.3, 1.0]), self._chance)

    def delay(self) -> None:
        """Everything is slow."""
        with self._noted("connections delayed") as fault:
            fault.count = self._world.proxy.links
            self._world.proxy.latency = self._chance.uniform(0.02, 0.2)
            self._stage.wait(2.0)
            self._world.proxy.latency = 0.0

    def silence(self) -> None:
        """Nothing arrives, and nothing says so; beyond the lease. Then all of it arrives late, or never."""
        with self._noted("connections silent") as fault:
            fault.count = self._world.proxy.silence(self._chance.choice([0.5, 1.0]), self._chance)
            self._stage.wait(BEYOND)
            self._world.proxy.speak(cut=self._chance.random() < 0.5)

    def lose_replies(self) -> None:
        """The server commits, and nobody learns that."""
        proxy = self._world.proxy
        with self._noted("replies lost") as fault:
            before = proxy.lost.total()
            for tags in (COMMIT, ANYTHING):
                proxy.lose_replies(8, tags)
                self._stage.wait(1.0)
            proxy.lose_replies(0)
            fault.count = proxy.lost.total() - before

    @property
    def _world(self) -> PostgresWorld:
        assert isinstance(self._stage.world, PostgresWorld)
        return self._stage.world

    def _someone(self, role: str) -> Member:
        """One of them, who is at work if possible."""
        self._stage.until(lambda: bool(self._stage.crew.members(role)))
        members = self._stage.crew.members(role)
        busy = [member for member in members if self._stage.running.get(member.pid)]
        return self._chance.choice(busy or members)

    def _interrupted(self, member: Member) -> tuple[Line, ...]:
        """The attempts that ran in a process that can write nothing more for now."""
        self._stage.read(member.pid)
        return tuple(self._stage.running.get(member.pid, {}).values())

    @contextmanager
    def _noted(self, kind: str) -> Iterator[Fault]:
        fault = Fault(kind, time.monotonic())
        self.done.append(fault)
        yield fault
        fault.ended = time.monotonic()
