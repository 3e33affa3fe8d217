"""What one task costs at each hop, on PostgreSQL: `python -m bench.anatomy` measures it and draws the picture.

The program is sampled in its own processor time: every sample is charged to the hop of the innermost frame that belongs
to one. The server says itself how long it took over each statement.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from bench.charts import Bar, bars, figure
from bench.contenders import ROOT
from bench.stage import SETTINGS
from durably.app import Durably
from durably.bench.program import CONCURRENCY, Task, opened, variant
from durably.stores.postgres.pieces import dialect
from durably.stores.statement import load
from durably.testing.servers import PostgresServer

TICK = 0.001
LINE = "@@ "
TELLING = {"log_min_duration_statement": 0, "log_parameter_max_length": 0, "log_line_prefix": LINE}
SPOKEN = re.compile(rf"^{LINE}LOG:  duration: ([\d.]+) ms  (?:(?:execute|parse|bind) [^:]+|statement): ", re.MULTILINE)


class Hop(NamedTuple):
    """A stretch of a task's way, and the source files in which it is."""

    name: str
    files: tuple[str, ...]


ENQUEUE = (
    Hop("arguments: encode and check", ("core/codec.py",)),
    Hop("a new id", ("core/ids.py",)),
    Hop("the draft", ("client/definition.py", "client/engine.py")),
    Hop("coalescing with other callers", ("client/intake.py",)),
    Hop("the statement, there and back", ("stores/",)),
    Hop("events", ("observe/", "bench/program.py")),
)
DRAIN = (
    Hop("claim: rows become tasks", ("stores/operations/quick.py", "worker/claims.py", "stores/operations/claim.py")),
    Hop("arguments: decode", ("core/codec.py",)),
    Hop("timeout: arm and disarm", ("worker/deadlines.py",)),
    Hop(
        "attempt: begin, call, end", ("worker/running.py", "worker/steps.py", "worker/execute.py", "worker/context.py")
    ),
    Hop("decide and report", ("worker/report.py", "core/lifecycle.py", "core/retry.py", "worker/relay.py")),
    Hop("keys: who is next", ("worker/chains.py", "stores/operations/settle.py", "stores/operations/keys.py")),
    Hop("commit: changes become arrays", ("stores/operations/commit.py", "stores/postgres/arrays.py")),
    Hop("statements, there and back", ("stores/",)),
    Hop("events, and the handler", ("observe/", "bench/program.py")),
)
REST = "the event loop, and the rest"


class Part(NamedTuple):
    """What a hop costs, in microseconds per task."""

    name: str
    cost: float
    kind: str
    """ours for the program, ceiling for the server."""


class Anatomy(NamedTuple):
    """One way of a task, taken apart."""

    name: str
    title: str
    rate: float
    parts: list[Part]


class Sampler:
    """Counts where the program is, a thousand times in each second of its processor time."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._hops = hops
        self._seen: Counter[str] = Counter()

    def _note(self, _: int, frame: FrameType | None) -> None:
        self._seen[self._hop(frame)] += 1

    def _hop(self, frame: FrameType | None) -> str:
        while frame is not None:
            _, found, place = frame.f_code.co_filename.rpartition("/durably/")
            if found:
                for hop in self._hops:
                    if place.startswith(hop.files):
                        return hop.name
            frame = frame.f_back
        return REST

    @contextmanager
    def running(self) -> Iterator[None]:
        before = signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def parts(self, tasks: int) -> list[Part]:
        """The processor time that was spent, divided as the samples were."""
        each = self.seconds * 1e6 / tasks / max(self._seen.total(), 1)
        named = [*(hop.name for hop in self._hops), REST]
        return [Part(name, self._seen[name] * each, "ours") for name in named]


class Log:
    """What the server writes about its statements."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names = {
            _flat(queries.text(name)): name for queries in [load(dialect("durably"))] for name in queries.names
        }
        self._read = 0

    def skip(self) -> None:
        """Forget what was written so far."""
        self._read = self._file.stat().st_size

    def parts(self, tasks: int) -> list[Part]:
        """The time of each statement since then; of those that matter."""
        text = self._file.read_bytes()[self._read :].decode("utf-8", "replace")
        _, *pieces = SPOKEN.split(text)
        spent: Counter[str] = Counter()
        for took, said in zip(pieces[::2], pieces[1::2], strict=True):
            statement = _flat(said.split(f"\n{LINE}")[0])
            spent[self._names.get(statement, statement.partition(" ")[0].lower())] += round(float(took) * 1000)
        costs = [Part(f"server: {name}", micros / tasks, "ceiling") for name, micros in spent.most_common()]
        return [part for part in costs if part.cost >= 0.05]


def _flat(text: str) -> str:
    return " ".join(text.split())


def enqueued(app: Durably, task: Task, log: Log, count: int) -> Anatomy:
    """One by one."""
    app.queues.list()
    log.skip()
    sampler = Sampler(ENQUEUE)
    began = time.perf_counter()
    with sampler.running():
        for number in range(count):
            task.enqueue(number)
    took = time.perf_counter() - began
    spent = [*sampler.parts(count), *log.parts(count)]
    waited = Part("waiting for each other, and the network", took * 1e6 / count - sum(p.cost for p in spent), "peer")
    return Anatomy("enqueue", "Enqueue one by one", count / took, [*spent, waited])


class Drain(NamedTuple):
    """A way to drain."""

    name: str
    title: str
    kind: str = "noop"
    ahead: int = 1


DRAINS = (
    Drain("drain", "Drain with one worker process"),
    Drain("keys", "Drain with 1,000 ordering keys, one task per commit", "keys"),
    Drain("ahead", "Drain with 1,000 ordering keys, running ahead by ten", "keys", 10),
)


async def drained(app: Durably, one: Drain, ended: asyncio.Event, log: Log, count: int) -> Anatomy:
    """By one worker."""
    log.skip()
    worker = app.worker(concurrency=CONCURRENCY, ahead=one.ahead)
    sampler = Sampler(DRAIN)
    began = time.perf_counter()
    with sampler.running():
        serving = asyncio.create_task(worker.run())
        await ended.wait()
        took = time.perf_counter() - began
        worker.stop()
        await serving
    await app.aclose()
    return Anatomy(one.name, one.title, count / took, [*sampler.parts(count), *log.parts(count)])


def enqueue_anatomy(server: PostgresServer, tasks: int) -> Anatomy:
    """In a database of its own."""
    with opened(server.create_database("enqueue"), "durably") as (app, declared):
        app.migrate()
        return enqueued(app, declared["noop"], Log(server.folder / "log"), tasks)


def drain_anatomy(server: PostgresServer, one: Drain, tasks: int) -> Anatomy:
    """The same for tasks that are there already."""
    ended = asyncio.Event()
    left = tasks

    def mark(_: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ended.set()

    with opened(server.create_database(one.name), "durably", mark) as (app, declared):
        app.migrate()
        app.enqueue_many(variant(declared, one.kind, number).call(number) for number in range(tasks))
        return asyncio.run(drained(app, one, ended, Log(server.folder / "log"), tasks))


def measured(tasks: int) -> list[Anatomy]:
    """All ways, on a server of their own."""
    with PostgresServer(18, settings={**SETTINGS, **TELLING}) as server:
        return [enqueue_anatomy(server, tasks // 10), *(drain_anatomy(server, one, tasks) for one in DRAINS)]


def report(anatomies: Sequence[Anatomy]) -> str:
    """The page, without the pictures."""
    lines = [
        "# What one task costs",
        "",
        "Written by `make anatomy`. The program is sampled in its own processor time, and PostgreSQL tells how long it",
        "took over each statement; both run at the same time, on different processors if there are two. Microseconds",
        "per task, on one machine on one day. [Measure](../how-to/measure.md) says how to measure your own store.",
    ]
    for one in anatomies:
        lines += ["", f"## {one.title}", "", f"![{one.title}]({file_name(one)})", "", f"{one.rate:,.0f} tasks/s.", ""]
        lines += ["| | µs/task |", "|---|---|"]
        lines += [f"| {part.name} | {figure(part.cost)} |" for part in one.parts]
        for kind, name in (("ours", "the program"), ("ceiling", "the server")):
            total = sum(part.cost for part in one.parts if part.kind == kind)
            lines.append(f"| **{name}** | **{figure(total)}** |")
    return "\n".join([*lines, ""])


def file_name(one: Anatomy) -> str:
    return f"anatomy.{one.name}.svg"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.anatomy", description=__doc__)
    parser.add_argument(
        "--tasks", type=int, default=200_000, help="so many are drained, and a tenth enqueued one by one"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks", help="where the report goes")
    options = parser.parse_args()
    anatomies = measured(options.tasks)
    options.out.mkdir(parents=True, exist_ok=True)
    for one in anatomies:
        rows = [Bar(part.name, part.cost, part.kind, "") for part in one.parts if part.cost >= 0.01]
        (options.out / file_name(one)).write_text(bars(one.title, "microseconds per task", rows), "utf-8")
    text = report(anatomies)
    (options.out / "anatomy.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
