"""Celery with a Redis broker: one process of its pool, and much prefetched, as its guide says for short tasks."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

PREFETCH = 128


def opened(url: str, mark: Any = None) -> tuple[Celery, Any]:
    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=PREFETCH, broker_connection_retry=False)

    @app.task(name="noop", max_retries=8)
    def noop(i: int) -> None:
        mark(i)

    return app, noop


def prepare(url: str) -> None:
    say("prepared")


def enqueue(url: str, seconds: float) -> None:
    app, noop = opened(url)
    with app.producer_or_acquire() as producer:
        done = 0
        say("begin")
        for number in timed(seconds):
            noop.apply_async(kwargs={"i": number}, producer=producer)
            done += 1
        say("end", count=done)


def bulk(url: str, count: int) -> None:
    app, noop = opened(url)
    with app.producer_or_acquire() as producer:
        say("begin")
        for number in range(count):
            noop.apply_async(kwargs={"i": number}, producer=producer)
        say("end", count=count)


def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    app, noop = opened(url)
    with app.producer_or_acquire() as producer:
        say("begin")
        for numbers in paced(count, rate, batch, stamps):
            for number in numbers:
                noop.apply_async(kwargs={"i": number}, producer=producer)
        say("end", count=count)


def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    app, _ = opened(url, handler(marks, size, stamps))
    wait_for_the_start()
    quiet = ["--loglevel=CRITICAL", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", "--pool=prefork", "--concurrency=1", *quiet])


if __name__ == "__main__":
    serve({action.__name__: action for action in (prepare, enqueue, bulk, feed, work)})
