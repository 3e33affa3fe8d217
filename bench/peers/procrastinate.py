"""procrastinate with psycopg, many jobs at once, and jobs deferred in batches."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

CONCURRENCY = 50


def opened(url: str, mark: Any = None) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))

    @app.task(name="noop", retry=RetryStrategy(max_attempts=8))
    async def noop(i: int) -> None:
        mark(i)

    return app, noop


async def _many(noop: Any, numbers: Sequence[int]) -> None:
    await noop.batch_defer_async(*({"i": number} for number in numbers))


async def prepare(url: str) -> None:
    app, _ = opened(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    say("prepared")


async def enqueue(url: str, seconds: float) -> None:
    app, noop = opened(url)
    async with app.open_async():
        done = 0
        say("begin")
        for number in timed(seconds):
            await noop.defer_async(i=number)
            done += 1
        say("end", count=done)


async def callers(url: str, seconds: float, callers: int) -> None:
    app, noop = opened(url)
    async with app.open_async():
        say("begin")
        numbers = timed(seconds)

        async def call() -> int:
            done = 0
            for number in numbers:
                await noop.defer_async(i=number)
                done += 1
            return done

        say("end", count=sum(await asyncio.gather(*(call() for _ in range(callers)))))


async def bulk(url: str, count: int) -> None:
    app, noop = opened(url)
    async with app.open_async():
        say("begin")
        for first in range(0, count, 1000):
            await _many(noop, range(first, min(first + 1000, count)))
        say("end", count=count)


async def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    app, noop = opened(url)
    async with app.open_async():
        say("begin")
        for numbers in paced(count, rate, batch, stamps):
            await _many(noop, numbers)
        say("end", count=count)


async def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    app, _ = opened(url, handler(marks, size, stamps))
    async with app.open_async():
        wait_for_the_start()
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, shutdown_graceful_timeout=10)
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.cancel)
        await asyncio.wait({worker})


def run(action: Any) -> Any:
    return lambda **parameters: asyncio.run(action(**parameters))


if __name__ == "__main__":
    serve({action.__name__: run(action) for action in (prepare, enqueue, callers, bulk, feed, work)})
