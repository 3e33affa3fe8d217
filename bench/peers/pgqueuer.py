"""pgqueuer on asyncpg and uvloop, with large batches: what its documentation recommends for throughput."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

BATCH = 1000
POOL = 4


def payload(number: int) -> bytes:
    return json.dumps({"i": number}).encode()


async def _many(queries: Queries, numbers: Sequence[int]) -> None:
    await queries.enqueue(["noop"] * len(numbers), [payload(number) for number in numbers], [0] * len(numbers))


async def prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()
    say("prepared")


async def enqueue(url: str, seconds: float) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    done = 0
    say("begin")
    for number in timed(seconds):
        await queries.enqueue("noop", payload(number))
        done += 1
    say("end", count=done)


async def callers(url: str, seconds: float, callers: int) -> None:
    queries = Queries(AsyncpgPoolDriver(await asyncpg.create_pool(url, min_size=16, max_size=16)))
    say("begin")
    numbers = timed(seconds)

    async def call() -> int:
        done = 0
        for number in numbers:
            await queries.enqueue("noop", payload(number))
            done += 1
        return done

    say("end", count=sum(await asyncio.gather(*(call() for _ in range(callers)))))


async def bulk(url: str, count: int) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    say("begin")
    for first in range(0, count, 1000):
        await _many(queries, range(first, min(first + 1000, count)))
    say("end", count=count)


async def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    say("begin")
    for numbers in paced(count, rate, batch, stamps):
        await _many(queries, numbers)
    say("end", count=count)


async def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    mark = handler(marks, size, stamps)
    async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:
        queue = PgQueuer.from_asyncpg_pool(pool)

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None:
            mark(json.loads(job.payload)["i"])

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
        wait_for_the_start()
        await queue.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=1))


def run(action: Any) -> Any:
    return lambda **parameters: uvloop.run(action(**parameters))


if __name__ == "__main__":
    serve({action.__name__: run(action) for action in (prepare, enqueue, callers, bulk, feed, work)})
