"""Durably as a measured program that sends mail: `python -m bench.mails ACTION`.

Mail number n goes to n@bench.example; the receiver marks what arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from durably.app import Durably
from durably.bench import protocol
from durably.bench.program import counts, prepare
from durably.bench.protocol import say
from durably.observe.events import Event
from durably.worker.interpreter import settle_in

CONNECTIONS = 20
CONCURRENCY = 200
"""Mails under way: some are sent, while others are claimed or reported."""
CALLERS = 50
"""Coroutines that hand in mails."""
TEXT = "It is on its way. " * 12


@contextlib.contextmanager
def opened(url: str, schema: str) -> Iterator[Durably]:
    """The application, observed; it serves mail."""
    seen = 0

    def observe(event: Event) -> None:
        nonlocal seen
        seen += 1

    with Durably(url, schema=schema) as app:
        app.mail.sender = "Shop <shop@here.example>"
        app.mail.configure(connections=CONNECTIONS)
        app.events.subscribe(observe)
        yield app


def send(url: str, schema: str, count: int, port: int) -> None:
    """Accept so many mails to one recipient each."""
    asyncio.run(_send(url, schema, count, port))


async def _send(url: str, schema: str, count: int, port: int) -> None:
    with opened(url, schema) as app:
        await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", concurrency=CONCURRENCY)
        left = iter(range(count))

        async def call() -> None:
            for number in left:
                await app.mail.asend(to=f"{number}@bench.example", subject=f"Order {number}", text=TEXT)

        say("begin")
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        say("end", count=count)
        await app.aclose()


def work(url: str, schema: str, **_: Any) -> None:
    """Deliver until told to stop."""
    asyncio.run(_work(url, schema))


async def _work(url: str, schema: str) -> None:
    with opened(url, schema) as app:
        worker = app.worker(concurrency=CONCURRENCY, queues=["deliveries"])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        settle_in(threaded=app.store.threaded)
        protocol.wait_for_the_start()
        await worker.run()
        await app.aclose()


if __name__ == "__main__":
    protocol.serve({function.__name__: function for function in (prepare, send, work, counts)})
