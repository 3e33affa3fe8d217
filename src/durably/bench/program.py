"""Durably as a measured program: `python -m durably.bench.program ACTION`. Its tasks do nothing but mark themselves.

It runs as it comes: fenced, history kept, a timeout armed, retries declared, and every event observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from durably.app import Durably
from durably.bench import protocol
from durably.bench.protocol import say
from durably.client.definition import Bound, Definition
from durably.core.options import CallOptions
from durably.core.retry import Retry
from durably.observe.events import Event
from durably.worker.interpreter import settle_in

CONCURRENCY = 2000
AHEAD = "DURABLY_BENCH_AHEAD"
"""The variable that says how many tasks of a key to take with one lease."""
KEYS = 1000
RETRY = Retry.exponential(attempts=8)
Task = Definition[[int], None]


def declared(app: Durably, mark: protocol.Handler) -> dict[str, Task]:
    """The two kinds of task: a coroutine, and a plain function that runs in a thread."""

    @app.task(name="noop", retry=RETRY, timeout="30s")
    async def noop(i: int) -> None:
        mark(i)

    @app.task(name="plain", retry=RETRY, timeout="30s")
    def plain(i: int) -> None:
        mark(i)

    return {"noop": noop, "plain": plain}


@contextlib.contextmanager
def opened(url: str, schema: str, mark: protocol.Handler = lambda i: None) -> Iterator[tuple[Durably, dict[str, Task]]]:
    """The application, observed."""
    seen: Counter[str] = Counter()

    def observe(event: Event) -> None:
        seen[event.kind] += 1

    with Durably(url, schema=schema) as app:
        app.events.subscribe(observe)
        yield app, declared(app, mark)


def options(kind: str, number: int) -> CallOptions:
    """What one task of this kind is enqueued with."""
    match kind:
        case "keys":
            return {"key": f"key-{number % KEYS}"}
        case "delayed":
            return {"delay": "1d"}
        case "features":
            return {
                "unique": f"task-{number}",
                "priority": number % 10,
                "expires": "1h",
                "tags": ["bench", f"tenth-{number % 10}"],
            }
        case _:
            return {}


def variant(tasks: dict[str, Task], kind: str, number: int) -> Task | Bound[[int], None]:
    task = tasks["plain" if kind == "threads" else "noop"]
    chosen = options(kind, number)
    return task.using(**chosen) if chosen else task


def prepare(url: str, schema: str) -> None:
    """Make the tables."""
    with opened(url, schema) as (app, _):
        app.migrate()
    say("prepared")


def enqueue(url: str, schema: str, seconds: float) -> None:
    """One by one."""
    with opened(url, schema) as (app, tasks):
        app.queues.list()
        done = 0
        say("begin")
        for number in protocol.timed(seconds):
            tasks["noop"].enqueue(number)
            done += 1
        say("end", count=done)


def callers(url: str, schema: str, seconds: float, callers: int) -> None:
    """So many coroutines, each of which waits for its own enqueue."""
    asyncio.run(_callers(url, schema, seconds, callers))


async def _callers(url: str, schema: str, seconds: float, callers: int) -> None:
    with opened(url, schema) as (app, tasks):
        await app.queues.alist()
        say("begin")
        numbers = protocol.timed(seconds)

        async def call() -> int:
            done = 0
            for number in numbers:
                await tasks["noop"].aenqueue(number)
                done += 1
            return done

        say("end", count=sum(await asyncio.gather(*(call() for _ in range(callers)))))
        await app.aclose()


def bulk(url: str, schema: str, count: int, start: int = 0, kind: str = "noop") -> None:
    """Many at once."""
    with opened(url, schema) as (app, tasks):
        app.queues.list()
        say("begin")
        app.enqueue_many(variant(tasks, kind, number).call(number) for number in range(start, start + count))
        say("end", count=count)


def feed(url: str, schema: str, count: int, rate: float, batch: int, stamps: str) -> None:
    """At a given rate."""
    with opened(url, schema) as (app, tasks):
        task = tasks["noop"]
        app.queues.list()
        say("begin")
        for numbers in protocol.paced(count, rate, batch, stamps):
            _add(app, task, numbers)
        say("end", count=count)


def _add(app: Durably, task: Task, numbers: Iterable[int]) -> None:
    first, *more = numbers
    if more:
        app.enqueue_many(task.call(number) for number in (first, *more))
    else:
        task.enqueue(first)


def transactions(url: str, schema: str, seconds: float, connections: int) -> None:
    """So many connections, each of which enqueues in transactions of its own."""
    asyncio.run(_transactions(url, schema, seconds, connections))


async def _transactions(url: str, schema: str, seconds: float, connections: int) -> None:
    import psycopg

    with opened(url, schema) as (_, tasks):
        async with contextlib.AsyncExitStack() as stack:
            opening = [psycopg.AsyncConnection.connect(url) for _ in range(connections)]
            clients = [await stack.enter_async_context(await one) for one in opening]
            say("begin")
            numbers = protocol.timed(seconds)

            async def call(client: Any) -> int:
                bound = tasks["noop"].using(within=client)
                done = 0
                for number in numbers:
                    async with client.transaction():
                        await bound.aenqueue(number)
                    done += 1
                return done

            say("end", count=sum(await asyncio.gather(*map(call, clients))))


def work(url: str, schema: str, marks: str, size: int, stamps: str | None = None) -> None:
    """Work until told to stop."""
    asyncio.run(_work(url, schema, protocol.handler(marks, size, stamps)))


async def _work(url: str, schema: str, mark: protocol.Handler) -> None:
    with opened(url, schema, mark) as (app, _):
        worker = app.worker(concurrency=CONCURRENCY, ahead=int(os.environ.get(AHEAD, "1")))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        settle_in(threaded=worker.threaded)
        protocol.wait_for_the_start()
        await worker.run()
        await app.aclose()


def counts(url: str, schema: str) -> None:
    """How many tasks are in which state."""
    with opened(url, schema) as (app, _):
        found: Counter[str] = Counter()
        for queue in app.queues.list():
            found.update({str(state): count for state, count in queue.counts.items()})
        say("counts", **found)


def pause(url: str, schema: str) -> None:
    """Let nothing start."""
    with opened(url, schema) as (app, _):
        app.queues.pause("default")
        time.sleep(0.1)
    say("paused")


def resume(url: str, schema: str) -> None:
    """Let things start again."""
    with opened(url, schema) as (app, _):
        app.queues.resume("default")
    say("resumed")


if __name__ == "__main__":
    protocol.serve(
        {
            function.__name__: function
            for function in (prepare, enqueue, callers, bulk, feed, transactions, work, counts, pause, resume)
        }
    )
