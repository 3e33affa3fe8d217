"""huey on SQLite: a consumer with threads, as its documentation recommends for short tasks."""

from __future__ import annotations

from typing import Any

from huey import SqliteHuey
from huey.consumer import Consumer

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

THREADS = 2


def opened(url: str) -> Any:
    """The queue, with every commit on disk."""
    return SqliteHuey(
        "bench", filename=url.removeprefix("sqlite:///"), fsync=True, results=False, journal_mode="wal", timeout=30
    )


def declared(huey: Any, mark: Any = None) -> Any:
    @huey.task(name="noop", retries=8)
    def noop(i: int) -> None:
        mark(i)

    return noop


def prepare(url: str) -> None:
    opened(url)
    say("prepared")


def enqueue(url: str, seconds: float) -> None:
    noop = declared(opened(url))
    done = 0
    say("begin")
    for number in timed(seconds):
        noop(number)
        done += 1
    say("end", count=done)


def bulk(url: str, count: int) -> None:
    noop = declared(opened(url))
    say("begin")
    for number in range(count):
        noop(number)
    say("end", count=count)


def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    noop = declared(opened(url))
    say("begin")
    for numbers in paced(count, rate, batch, stamps):
        for number in numbers:
            noop(number)
    say("end", count=count)


def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    huey = opened(url)
    declared(huey, handler(marks, size, stamps))
    consumer = Consumer(huey, workers=THREADS, periodic=False)
    wait_for_the_start()
    consumer.run()


if __name__ == "__main__":
    serve({action.__name__: action for action in (prepare, enqueue, bulk, feed, work)})
