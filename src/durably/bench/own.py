"""A user's own store, measured in the terms of the project's bench."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from durably.bench.drain import drain, finish
from durably.bench.latency import latency
from durably.bench.place import Place
from durably.bench.process import Contender, Failed, clocked, told

LOW_LOAD = 50.0
"""Tasks per second at which the latency is measured."""


class Figure(NamedTuple):
    """One thing that was measured."""

    name: str
    value: float
    unit: str


class Own:
    """Durably on one place; every method is one measurement, and lets run what it enqueued."""

    def __init__(self, place: Place, seconds: float, tasks: int) -> None:
        self._url = place.url
        self._seconds = seconds
        self._tasks = tasks
        self._ran = 0
        self._program = Contender(
            "durably", (sys.executable, "-m", "durably.bench.program"), parameters={"schema": place.schema}
        )

    def measure(self, telling: Callable[[str], None]) -> Iterator[Figure]:
        """Everything, one after the other; says what comes next."""
        told(self._program, "prepare", "prepared", url=self._url)
        telling("enqueue one by one")
        yield Figure("enqueue one by one", self._enqueued("enqueue"), "tasks/s")
        for callers in (64, 1000):
            name = f"enqueue from {callers:,} concurrent callers"
            telling(name)
            yield Figure(name, self._enqueued("callers", callers=callers), "tasks/s")
        telling("enqueue in bulk")
        count, took = clocked(self._program, "bulk", url=self._url, count=self._tasks)
        yield Figure("enqueue in bulk", count / took, "tasks/s")
        telling("drain with one worker process")
        yield from self._drained(1)
        telling("drain with two worker processes")
        clocked(self._program, "bulk", url=self._url, count=self._tasks)
        yield from self._drained(2)
        telling("latency at low load")
        yield from self._waited()
        self._check()

    def _enqueued(self, action: str, **parameters: int) -> float:
        count, took = clocked(self._program, action, url=self._url, seconds=self._seconds, **parameters)
        finish(self._program, self._url, count)
        self._ran += count
        return count / took

    def _drained(self, processes: int) -> Iterator[Figure]:
        found = drain(self._program, self._url, self._tasks, processes=processes)
        self._ran += self._tasks
        if processes > 1:
            yield Figure("drain with two worker processes", found.rate, "tasks/s")
            return
        yield Figure("drain with one worker process", found.rate, "tasks/s")
        if found.worker_cpu is not None:
            yield Figure("worker's processor time per task", found.worker_cpu, "µs")
        if found.memory is not None:
            yield Figure("worker's peak memory", found.memory / 2**20, "MiB")

    def _waited(self) -> Iterator[Figure]:
        count = max(20, int(self._seconds * LOW_LOAD))
        found = latency(self._program, self._url, count, LOW_LOAD)
        self._ran += count + 1
        yield Figure("latency at low load, p50", found.p50, "ms")
        yield Figure("latency at low load, p99", found.p99, "ms")

    def _check(self) -> None:
        """What the store says must be what ran."""
        done = told(self._program, "counts", "counts", url=self._url).get("done", 0)
        if done != self._ran:
            raise Failed(f"the store says that {done:,} tasks are done, and {self._ran:,} ran")
