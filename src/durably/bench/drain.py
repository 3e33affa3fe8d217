"""How fast workers empty a queue, and what that costs. The clock runs from the first mark to the last."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from durably.bench.marks import Marks, insist
from durably.bench.process import Contender, Failed, Program, started
from durably.bench.usage import peak_memory, processor_seconds

GLANCE = 0.004
STALLED = 20.0
"""Seconds without a single mark after which a drain counts as stuck."""
IN_FLIGHT = 10_000
"""Of a large backlog only so many tasks are looked at beside those that are wanted: to look at all of them takes the
processor, and the memory, from those that are measured."""
HEAD = 0.1
"""The share of the tasks after which the clock starts at the latest, even if a worker has not begun."""


class Server(NamedTuple):
    """The database server's side of the costs; without one there is nothing to ask."""

    pid: int | None = None
    written: Callable[[], int] | None = None
    """Bytes of log since it began."""


class Drained(NamedTuple):
    """One drain."""

    rate: float
    """Tasks per second."""
    worker_cpu: float | None
    """Microseconds of the workers' processors per task."""
    server_cpu: float | None
    """The same for the server."""
    log: float | None
    """Bytes that the server wrote to its log per task."""
    memory: int | None
    """The most bytes that one worker had in memory."""


class _Glance(NamedTuple):
    moment: float
    begun: int
    workers: float | None
    server: float | None


class Crew:
    """Worker processes that are ready, and the marks that they leave."""

    def __init__(self, programs: list[Program], marks: Marks, server: Server) -> None:
        self.programs = programs
        self.marks = marks
        self._server = server

    def go(self) -> None:
        for program in self.programs:
            program.write("go")

    def watch(self, tasks: range, wanted: int) -> Drained:
        """Clock the run of so many of these tasks; they are being worked on already."""
        first = self._await(tasks, lambda counts: all(counts) or sum(counts) >= HEAD * wanted)
        last = self._await(tasks, lambda counts: sum(counts) >= wanted)
        done = last.begun - first.begun
        if done <= 0:
            raise Failed(f"{last.begun:,} tasks were over before the clock ran: take more")
        return Drained(
            done / (last.moment - first.moment),
            _each(first.workers, last.workers, done),
            _each(first.server, last.server, done),
            None,
            max((peak_memory(program.pid) or 0 for program in self.programs), default=0) or None,
        )

    def finish(self, tasks: range) -> None:
        """Wait until every one of these tasks has begun, let the workers leave, and insist that each ran once."""
        self._await(tasks, lambda counts: sum(counts) >= len(tasks))
        self.leave()
        insist(self.marks.ran(tasks))

    def leave(self) -> None:
        """Wait until the workers have gone."""
        for program in self.programs:
            program.leave()

    def _await(self, tasks: range, reached: Callable[[list[int]], bool]) -> _Glance:
        before, since = -1, time.monotonic()
        while True:
            looked = time.monotonic()
            counts = self.marks.counts(tasks)
            if reached(counts):
                return self._glance(looked, sum(counts))
            if sum(counts) != before:
                before, since = sum(counts), looked
            elif looked - since > STALLED:
                raise Failed(f"nothing more ran after {before:,} of {len(tasks):,} tasks")
            for program in self.programs:
                program.check()
            time.sleep(max(GLANCE, 5 * (time.monotonic() - looked)))

    def _glance(self, moment: float, begun: int) -> _Glance:
        pid = self._server.pid
        workers = processor_seconds(*(program.pid for program in self.programs))
        return _Glance(moment, begun, workers, None if pid is None else processor_seconds(pid))


def _each(first: float | None, last: float | None, tasks: int) -> float | None:
    return None if first is None or last is None else (last - first) * 1e6 / tasks


@contextlib.contextmanager
def crew(contender: Contender, url: str, size: int, processes: int = 1, server: Server | None = None) -> Iterator[Crew]:
    """So many workers, ready to go; they leave at the end of the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="durably-bench-")))
        marks = Marks(folder, processes, size)
        stack.callback(marks.close)
        programs = [
            stack.enter_context(started(contender, "work", url=url, marks=str(path), size=size)) for path in marks.paths
        ]
        for program in programs:
            program.expect("ready")
        yield Crew(programs, marks, server or Server())


def finish(contender: Contender, url: str, count: int) -> None:
    """Let one worker run the tasks 0 to `count`, and insist that each runs once."""
    with crew(contender, url, count) as workers:
        workers.go()
        workers.finish(range(count))


def drain(
    contender: Contender,
    url: str,
    count: int,
    *,
    processes: int = 1,
    wanted: int | None = None,
    server: Server | None = None,
) -> Drained:
    """Let workers run the tasks 0 to `count`, all of them or as many of the first as are wanted, and check what ran."""
    server = server or Server()
    tasks = range(count)
    with crew(contender, url, count, processes, server) as workers:
        before = server.written() if server.written else None
        workers.go()
        drained = workers.watch(tasks if wanted is None else tasks[: wanted + IN_FLIGHT], wanted or count)
        workers.leave()
        ran = workers.marks.ran(tasks)
        after = server.written() if server.written else None
    insist(ran if wanted is None else ran._replace(never=[]))
    if before is not None and after is not None:
        drained = drained._replace(log=(after - before) / ran.once)
    return drained
