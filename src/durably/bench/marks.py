"""The marks that workers leave: one file per worker process, one byte per task."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from operator import add
from pathlib import Path
from typing import NamedTuple

from durably.bench.process import Failed
from durably.bench.protocol import mapped


class Ran(NamedTuple):
    """How often the tasks ran, and an example of each thing that should not be."""

    once: int
    never: list[int]
    again: list[int]


class Marks:
    """The files of all workers of one drain."""

    def __init__(self, folder: Path, workers: int, size: int) -> None:
        self.paths = [folder / f"marks-{number}" for number in range(workers)]
        self._maps: list[mmap.mmap] = [mapped(str(path), size) for path in self.paths]

    def counts(self, tasks: range) -> list[int]:
        """How many of these tasks each worker has begun."""
        return [len(tasks) - one[tasks.start : tasks.stop].count(0) for one in self._maps]

    def ran(self, tasks: range) -> Ran:
        """How often each of these tasks was begun, by whomever."""
        return tally([one[tasks.start : tasks.stop] for one in self._maps])

    def close(self) -> None:
        for one in self._maps:
            one.close()


def tally(marks: Sequence[bytes]) -> Ran:
    """What the marks of all workers add up to."""
    total = list(marks[0])
    for more in marks[1:]:
        total = list(map(add, total, more))
    never = [number for number, times in enumerate(total) if times == 0]
    again = [number for number, times in enumerate(total) if times > 1]
    return Ran(len(total) - len(never) - len(again), never, again)


def insist(ran: Ran) -> None:
    """Raise unless every task ran exactly once."""
    if ran.never:
        raise Failed(f"{len(ran.never):,} tasks never ran, the first is number {ran.never[0]}")
    if ran.again:
        raise Failed(f"{len(ran.again):,} tasks ran more than once, the first is number {ran.again[0]}")
