"""DBOS: a queue of workflows that have no steps, polled ten times a second."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.protocol import handler, paced, say, serve, timed, wait_for_the_start

CONCURRENCY = 100
POLL = 0.1
BATCH = 100
WANTED: Any = {"workflow_name": "noop", "queue_name": "bench"}


def launched(url: str, mark: Any = None) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})

    @DBOS.workflow(name="noop")
    def noop(i: int) -> None:
        mark(i)

    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)


def leave() -> None:
    """At once: its threads would keep the process."""
    os._exit(0)


def prepare(url: str) -> None:
    launched(url)
    DBOS.destroy()
    say("prepared")
    leave()


def enqueue(url: str, seconds: float) -> None:
    client = DBOSClient(system_database_url=url)
    done = 0
    say("begin")
    for number in timed(seconds):
        client.enqueue(WANTED, number)
        done += 1
    say("end", count=done)
    leave()


def bulk(url: str, count: int) -> None:
    """A hundred in each transaction."""
    client = DBOSClient(system_database_url=url)
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
    say("begin")
    for first in range(0, count, BATCH):
        with engine.begin() as connection:
            for number in range(first, min(first + BATCH, count)):
                client.enqueue_in_transaction(connection, WANTED, number)
    say("end", count=count)
    leave()


def feed(url: str, count: int, rate: float, batch: int, stamps: str) -> None:
    client = DBOSClient(system_database_url=url)
    say("begin")
    for numbers in paced(count, rate, batch, stamps):
        for number in numbers:
            client.enqueue(WANTED, number)
    say("end", count=count)
    leave()


def work(url: str, marks: str, size: int, stamps: str | None = None) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    mark = handler(marks, size, stamps)
    wait_for_the_start()
    launched(url, mark)
    stopping.wait()
    DBOS.destroy(workflow_completion_timeout_sec=5)
    leave()


if __name__ == "__main__":
    serve({action.__name__: action for action in (prepare, enqueue, bulk, feed, work)})
