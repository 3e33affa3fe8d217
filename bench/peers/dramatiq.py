"""Dramatiq with a Redis broker: one worker with its usual eight threads."""

from __future__ import annotations

import signal
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

THREADS = 8


def opened(url: str, mark: Any = None) -> tuple[Any, Any]:
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop", max_retries=8)
    def noop(i: int) -> None:
        mark(i)

    return broker, noop


def prepare(url: str) -> None:
    say("prepared")


def enqueue(url: str, seconds: float) -> None:
    _, noop = opened(url)
    done = 0
    say("begin")
    for number in timed(seconds):
        noop.send(i=number)
        done += 1
    say("end", count=done)


def bulk(url: str, count: int) -> None:
    _, noop = opened(url)
    say("begin")
    for number in range(count):
        noop.send(i=number)
    say("end", count=count)


def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    _, noop = opened(url)
    say("begin")
    for numbers in paced(count, rate, batch, stamps):
        for number in numbers:
            noop.send(i=number)
    say("end", count=count)


def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    broker, _ = opened(url, handler(marks, size, stamps))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    wait_for_the_start()
    worker.start()
    stopping.wait()
    worker.stop()


if __name__ == "__main__":
    serve({action.__name__: action for action in (prepare, enqueue, bulk, feed, work)})
