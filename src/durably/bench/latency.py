"""How long a task waits: from the call that enqueues it until its handler begins."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from durably.bench.drain import STALLED
from durably.bench.marks import Marks, insist
from durably.bench.process import PATIENCE, Contender, Failed, clocked, started
from durably.bench.protocol import stamps_of

WARM_UP = 0.1
"""The share of the tasks at the beginning that does not count."""


class Latency(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float


def latency(contender: Contender, url: str, count: int, rate: float, batch: int = 1) -> Latency:
    """Feed so many tasks at a rate to one worker that has shown that it works; every one must run once.

    It shows that with a task of its own, which has the number of the first one.
    """
    with tempfile.TemporaryDirectory(prefix="durably-bench-") as name:
        folder = Path(name)
        marks = Marks(folder, 1, count)
        began, enqueued = folder / "began", folder / "enqueued"
        with started(contender, "work", url=url, marks=str(marks.paths[0]), size=count, stamps=str(began)) as worker:
            worker.expect("ready")
            worker.write("go")
            clocked(contender, "bulk", url=url, count=1)
            _await(marks, range(1))
            with started(
                contender, "feed", url=url, count=count, rate=rate, batch=batch, stamps=str(enqueued)
            ) as feeder:
                feeder.expect("begin")
                feeder.expect("end", PATIENCE + 10 * count / rate)
            _await(marks, range(count))
        insist(marks.ran(range(1, count)))
        marks.close()
        return spread([at - since for at, since in zip(stamps_of(began), stamps_of(enqueued), strict=True)])


def _await(marks: Marks, tasks: range) -> None:
    until = time.monotonic() + STALLED
    while (begun := marks.counts(tasks)[0]) < len(tasks):
        if time.monotonic() > until:
            raise Failed(f"{len(tasks) - begun:,} tasks of {len(tasks):,} never began")
        time.sleep(0.01)


def spread(seconds: list[float]) -> Latency:
    """The middle and the far end, without the first ones."""
    kept = seconds[int(len(seconds) * WARM_UP) :]
    cuts = statistics.quantiles(kept, n=100, method="inclusive")
    return Latency(1e3 * cuts[49], 1e3 * cuts[98])
