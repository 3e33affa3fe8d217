"""What is measured, and how: one function per measurement, each on a fresh place."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import psycopg

from bench.contenders import Entry
from bench.delivering import DEAD, hooks
from bench.mailing import mails
from bench.stage import Place, Stage
from durably.bench.drain import Crew, Drained, crew, drain, finish
from durably.bench.latency import latency
from durably.bench.marks import insist
from durably.bench.process import Failed, clocked, told
from durably.bench.program import AHEAD

NOBODY_SLEEPS = """
CREATE FUNCTION durably.nobody_sleeps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER nobody_sleeps BEFORE INSERT ON durably.sleepers FOR EACH ROW EXECUTE FUNCTION durably.nobody_sleeps();
"""

LATE = 0.2
"""The share of the batches under a held xmin that counts: those at the end."""

Values = dict[str, float]
Earlier = Callable[[str, str], float | None]
"""What was measured before: the value of a measurement for a contender."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    rounds: int
    seconds: float
    """Of every enqueueing."""
    tasks: int
    """In every drain and every bulk."""
    crowd: int
    """Delayed tasks that stand beside the others."""
    held: float
    """Seconds under a held xmin."""
    growth: tuple[int, ...]
    sample: int
    """Tasks that are drained to see how fast it goes: as many of a large backlog as of a small one."""
    low: float
    """Tasks per second at low load."""
    waits: int
    """Tasks whose latency is measured."""


QUICK = Sizes(1, 0.5, 12_000, 50_000, 3.0, (10_000, 100_000), 10_000, 50.0, 120)
FULL = Sizes(3, 5.0, 150_000, 1_000_000, 300.0, (10_000, 100_000, 1_000_000, 5_000_000), 10_000, 50.0, 1_000)


Measure = Callable[[Stage, Entry, Sizes, Earlier], Values]


@dataclass(frozen=True)
class Measurement:
    """One table of the report."""

    name: str
    """The store, and what is measured there."""
    title: str
    unit: str
    measure: Measure
    long: bool = False
    """Whether it takes minutes, and looks at one run from its beginning to its end: then one round is enough."""
    turns: int = 1
    """Into how many short turns a round is divided for us and the bare databases, which are close to each other."""

    @property
    def side(self) -> str:
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        return self.name.partition(".")[2]

    @property
    def value(self) -> str:
        """The value that contenders are compared by."""
        return "p50" if self.unit == "ms" else "rate"


def _values(drained: Drained) -> Values:
    return {name: value for name, value in drained._asdict().items() if value is not None}


def _tasks(entry: Entry, sizes: Sizes) -> int:
    return max(100, int(sizes.tasks * entry.share))


def _insist_on_all(entry: Entry, place: Place, count: int) -> None:
    """What Durably says of them, besides what they say themselves."""
    if entry.kind == "ours":
        counts = told(entry.contender, "counts", "counts", url=place.url)
        if counts.get("done", 0) != count:
            raise Failed(f"the store says that {counts.get('done', 0):,} tasks are done, and {count:,} ran")


def _finished(entry: Entry, place: Place, count: int) -> None:
    """Let what was enqueued run, since only what ran was really there."""
    finish(entry.contender, place.url, count)
    _insist_on_all(entry, place, count)


def _drained(stage: Stage, entry: Entry, place: Place, count: int, processes: int = 1) -> Values:
    stage.settle(place)
    found = drain(entry.contender, place.url, count, processes=processes, server=place.server)
    _insist_on_all(entry, place, count)
    return _values(found)


def enqueue(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """One by one; then all of them must run."""
    with stage.place(entry) as place:
        count, took = clocked(entry.contender, "enqueue", url=place.url, seconds=sizes.seconds)
        _finished(entry, place, count)
    return {"rate": count / took}


def callers(number: int) -> Measure:
    """From so many coroutines of one process."""

    def measure(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
        with stage.place(entry) as place:
            count, took = clocked(entry.contender, "callers", url=place.url, seconds=sizes.seconds, callers=number)
            _finished(entry, place, count)
        found = {"rate": count / took}
        if entry.kind == "ours":
            found["alone"] = enqueue(stage, entry, sizes, earlier)["rate"]
        return found

    return measure


def bulk(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """Many at once; then all of them must run."""
    with stage.place(entry) as place:
        count, took = clocked(entry.contender, "bulk", url=place.url, count=_tasks(entry, sizes))
        _finished(entry, place, count)
    return {"rate": count / took}


def drains(processes: int) -> Measure:
    """With so many worker processes."""

    def measure(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
        count = _tasks(entry, sizes)
        with stage.place(entry) as place:
            clocked(entry.contender, "bulk", url=place.url, count=count)
            return _drained(stage, entry, place, count, processes)

    return measure


def kinds(kind: str) -> Measure:
    """Tasks of a special kind."""

    def measure(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
        count = _tasks(entry, sizes)
        with stage.place(entry) as place:
            clocked(entry.contender, "bulk", url=place.url, count=count, kind=kind)
            return _drained(stage, entry, place, count)

    return measure


def beside_plain(measure: Measure) -> Measure:
    """A drain, and right after it one of tasks that have nothing special about them."""

    def both(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
        found = measure(stage, entry, sizes, earlier)
        return {**found, "plain": drains(1)(stage, entry, sizes, earlier)["rate"]}

    return both


def ahead(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """Ordered tasks, ten of a key with one lease."""
    hasty = replace(entry.contender, environment={**entry.contender.environment, AHEAD: "10"})
    return kinds("keys")(stage, replace(entry, contender=hasty), sizes, earlier)


def delayed(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """Beside a crowd that is not due for a day."""
    count = _tasks(entry, sizes)
    with stage.place(entry, filled=sizes.crowd, kind="delayed") as place:
        clocked(entry.contender, "bulk", url=place.url, count=count)
        return _drained(stage, entry, place, count)


def low_load(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """One task at a time, with pauses."""
    with stage.place(entry) as place:
        return latency(entry.contender, place.url, sizes.waits, sizes.low)._asdict()


def half_load(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """At half the rate at which it drains, in batches every ten milliseconds."""
    most = earlier(f"{entry.side}.drain-1", entry.name)
    if most is None:
        raise Failed(f"it needs {entry.side}.drain-1 in the same run")
    rate = most / 2
    with stage.place(entry) as place:
        seconds = max(2.0, sizes.seconds)
        found = latency(entry.contender, place.url, int(rate * seconds), rate, max(1, round(rate / 100)))
    return {**found._asdict(), "load": rate}


def growth(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """The rate with ever more tasks in the table, and the worker's memory."""
    found: Values = {}
    for size in sizes.growth:
        with stage.place(entry, filled=size) as place:
            stage.settle(place)
            wanted = None if size <= sizes.sample else sizes.sample
            one = drain(entry.contender, place.url, size, wanted=wanted, server=place.server)
        found |= {f"rate {size}": one.rate, f"memory {size}": float(one.memory or 0)}
    return {"rate": found[f"rate {sizes.growth[-1]}"], **found}


def transactions(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """Sixteen connections enqueue in their own transactions while a worker runs: with notifications, and without."""
    return {"rate": _transactions(stage, entry, sizes, True), "silent": _transactions(stage, entry, sizes, False)}


def _transactions(stage: Stage, entry: Entry, sizes: Sizes, notify: bool) -> float:
    most = 1_000_000
    with stage.place(entry) as place:
        if not notify:
            _silence(place.url)
        with crew(entry.contender, place.url, most) as workers:
            workers.go()
            count, took = clocked(
                entry.contender, "transactions", url=place.url, seconds=max(2.0, sizes.seconds), connections=16
            )
            workers.finish(range(count))
        _insist_on_all(entry, place, count)
    return count / took


def _silence(url: str) -> None:
    """Let nobody be noted as asleep: so nobody is notified, and the workers poll."""
    with psycopg.connect(url) as connection:
        connection.execute(NOBODY_SLEEPS)


def xmin(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """One worker all the time; batch after batch is enqueued while the queue is paused, then drained.

    The first batch is drained before another transaction holds back the horizon of what can be vacuumed. Of the others
    the last ones count, and of these the middle: any one may share the processor with a vacuum that can remove nothing.
    """
    batch = _tasks(entry, sizes)
    with stage.place(entry) as place, crew(entry.contender, place.url, 200 * batch, server=place.server) as workers:
        workers.go()
        free = _cycle(entry, place, workers, range(batch)).rate
        rates: list[float] = []
        with _holding(place.url):
            until = time.monotonic() + sizes.held
            while time.monotonic() < until or not rates:
                first = (len(rates) + 1) * batch
                rates.append(_cycle(entry, place, workers, range(first, first + batch)).rate)
        count = (len(rates) + 1) * batch
        _insist_on_all(entry, place, count)
    return {"rate": statistics.median(rates[-math.ceil(len(rates) * LATE) :]), "free": free, "tasks": count}


def _cycle(entry: Entry, place: Place, workers: Crew, tasks: range) -> Drained:
    told(entry.contender, "pause", "paused", url=place.url)
    clocked(entry.contender, "bulk", url=place.url, count=len(tasks), start=tasks.start)
    told(entry.contender, "resume", "resumed", url=place.url)
    found = workers.watch(tasks, len(tasks))
    insist(workers.marks.ran(tasks))
    return found


@contextlib.contextmanager
def _holding(url: str) -> Iterator[None]:
    """A transaction that has seen everything as it is now, and stays open."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()


def deliveries(order: str, dead: int = 0) -> Measure:
    """Webhooks to a thousand peers, some of whom do not answer."""

    def measure(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
        return _values(hooks(stage, entry, max(3, sizes.tasks // 2500), order, dead))

    return measure


def mail(stage: Stage, entry: Entry, sizes: Sizes, earlier: Earlier) -> Values:
    """Mails to one recipient each."""
    return _values(mails(stage, entry, max(1_000, sizes.tasks // 5)))


def measurements() -> list[Measurement]:
    """All of them, in the order in which they run."""
    return [*_on("postgres"), *_on("sqlite")]


def _on(store: str) -> Iterator[Measurement]:
    def one(
        name: str, title: str, measure: Measure, unit: str = "tasks/s", long: bool = False, turns: int = 1
    ) -> Measurement:
        return Measurement(f"{store}.{name}", title, unit, measure, long, turns)

    yield one("enqueue", "Enqueue one by one", enqueue, turns=4)
    yield one("callers-64", "Enqueue from 64 concurrent callers", callers(64))
    yield one("callers-1000", "Enqueue from 1,000 concurrent callers", callers(1000))
    yield one("bulk", "Enqueue in bulk", bulk)
    yield one("drain-1", "Drain with one worker process", drains(1))
    yield one("drain-2", "Drain with two worker processes", drains(2))
    yield one("latency", "Latency at low load", low_load, "ms")
    yield one("latency-half", "Latency at half the drain rate", half_load, "ms")
    yield one("keys", "Drain with 1,000 ordering keys, one task per commit", beside_plain(kinds("keys")))
    yield one("ahead", "Drain with 1,000 ordering keys, running ahead by ten", beside_plain(ahead))
    yield one("threads", "Drain of plain functions, which run in threads", kinds("threads"))
    yield one("features", "Drain with every feature on", kinds("features"))
    yield one("delayed", "Drain beside a crowd of delayed tasks", beside_plain(delayed))
    if store == "postgres":
        yield one("transactions", "16 connections enqueue in their own transactions", transactions)
        yield one("xmin", "Drain while another transaction holds xmin", xmin, long=True)
        to = "Webhooks to 1,000 destinations"
        yield one("hooks", f"{to}, in any order", deliveries("unordered"), "deliveries/s")
        yield one("hooks-fifo", f"{to}, each in strict order", deliveries("fifo"), "deliveries/s")
        yield one("hooks-dead", f"{to}, a hundred of them dead", deliveries("unordered", DEAD), "deliveries/s")
        yield one("mails", "Mails through one transport, 20 at once", mail, "mails/s")
    yield one("growth", "Drain with ever more tasks in the table", growth)
