"""Measurements of deliveries: webhooks to a receiver on this machine."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.contenders import ROOT, Entry
from bench.stage import Place, Stage
from durably.bench.drain import Crew, Drained
from durably.bench.marks import Marks, insist
from durably.bench.process import Contender, Failed, clocked, started, told

PEERS = 1000
DEAD = 100
RECEIVER = Contender("receiver", (sys.executable, "-m", "bench.raw.hooks"), {"PYTHONPATH": str(ROOT)})


class Post(NamedTuple):
    """What is to be delivered."""

    messages: int
    addresses: list[str]
    living: int
    """So many of the addresses, the last ones, belong to somebody who answers."""

    @property
    def deliverable(self) -> int:
        return self.messages * self.living


def hooks(stage: Stage, entry: Entry, messages: int, order: str, dead: int = 0) -> Drained:
    """Publish so many messages to a thousand peers, and let a worker deliver them."""
    total = messages * PEERS
    with (
        stage.place(entry) as place,
        receiving(RECEIVER, total, destinations=PEERS) as (marks, port),
        _refusing() as closed,
    ):
        post = Post(messages, _addresses(port, closed, dead), PEERS - dead)
        clocked(entry.contender, "publish", url=place.url, messages=messages, addresses=post.addresses, order=order)
        stage.settle(place)
        given = {"messages": messages, "addresses": post.addresses} if entry.kind != "ours" else {}
        return delivered(entry, place, marks, total, post.deliverable, given)


def delivered(
    entry: Entry, place: Place, marks: Marks, total: int, deliverable: int, given: Mapping[str, Any]
) -> Drained:
    """Let one worker deliver; the last so many of all of them can be delivered."""
    everyone = range(total)
    with started(entry.contender, "work", url=place.url, **given) as program:
        program.expect("ready")
        crew = Crew([program], marks, place.server)
        crew.go()
        found = crew.watch(everyone, deliverable)
        crew.leave()
        ran = marks.ran(everyone)
    insist(ran._replace(never=ran.never[total - deliverable :]))
    if entry.kind == "ours":
        done = told(entry.contender, "counts", "counts", url=place.url).get("done", 0)
        if done != deliverable:
            raise Failed(f"the store says that {done:,} were delivered, and {deliverable:,} arrived")
    return found


def _addresses(port: int, closed: int, dead: int) -> list[str]:
    """Of those who are dead, every second one is silent, and nobody listens at the others."""
    return [
        f"http://127.0.0.1:{port}/hooks/{number}"
        if number >= dead
        else (f"http://127.0.0.1:{port}/silent/{number}" if number % 2 else f"http://127.0.0.1:{closed}/hooks/{number}")
        for number in range(PEERS)
    ]


@contextlib.contextmanager
def receiving(receiver: Contender, size: int, **given: Any) -> Iterator[tuple[Marks, int]]:
    """Somebody who marks what arrives, and the port."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="durably-bench-")))
        marks = Marks(folder, 1, size)
        stack.callback(marks.close)
        program = stack.enter_context(started(receiver, "receive", marks=str(marks.paths[0]), size=size, **given))
        port = program.expect("listening").facts["port"]
        program.expect("ready")
        program.write("go")
        yield marks, port


@contextlib.contextmanager
def _refusing() -> Iterator[int]:
    """A port that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
