"""What a measured program says and marks. Only the standard library is needed, so that peers can use it as well.

A program is called with an action; the first line of its input holds the parameters, as JSON. It answers in JSON lines.
What is clocked stands between `begin` and `end`, and whoever started the program holds the clock. A worker says
`ready`, waits for a second line, and works until its input is closed.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

STAMP = 8
"""Bytes of a moment in a file of stamps."""

Handler = Callable[[int], None]


def serve(actions: Mapping[str, Callable[..., None]]) -> None:
    """Do what the command line and the first line of the input say."""
    actions[sys.argv[1]](**json.loads(sys.stdin.readline()))


def say(event: str, **facts: Any) -> None:
    """Tell whoever started this program."""
    print(json.dumps({"event": event, **facts}), flush=True)


def wait_for_the_start() -> None:
    """Say that everything is ready, and wait for the word; when the input is closed, this process gets a SIGTERM."""
    say("ready")
    sys.stdin.readline()
    threading.Thread(target=_leave_with_the_input, daemon=True).start()


def _leave_with_the_input() -> None:
    # Not through sys.stdin, whose lock a forked child would inherit held.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def mapped(path: str, size: int) -> mmap.mmap:
    """A file of so many bytes, shared with whoever else maps it."""
    with open(path, "a+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def handler(marks: str, size: int, stamps: str | None = None) -> Handler:
    """What every measured task does: count one more run of task `i`, and with `stamps` note when it began."""
    counts = mapped(marks, size)

    def mark(i: int) -> None:
        counts[i] += 1

    if stamps is None:
        return mark
    moments = memoryview(mapped(stamps, size * STAMP)).cast("d")

    def stamp(i: int) -> None:
        moments[i] = time.monotonic()
        counts[i] += 1

    return stamp


def paced(count: int, rate: float, batch: int, stamps: str) -> Iterator[range]:
    """The numbers of the tasks in batches, each when it is due; the moment at which each was handed out is noted."""
    moments = memoryview(mapped(stamps, count * STAMP)).cast("d")
    began = time.monotonic()
    for first in range(0, count, batch):
        numbers = range(first, min(first + batch, count))
        time.sleep(max(0.0, began + first / rate - time.monotonic()))
        now = time.monotonic()
        for number in numbers:
            moments[number] = now
        yield numbers


def timed(seconds: float) -> Iterator[int]:
    """Rising numbers until the time is over."""
    until = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < until, itertools.count())


def stamps_of(path: Path) -> memoryview[float]:
    """The moments in a file of stamps."""
    return memoryview(path.read_bytes()).cast("d")
