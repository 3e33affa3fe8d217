"""Durably as a measured program that posts webhooks: `python -m bench.hooks ACTION`.

Delivery number n * destinations + d brings message n to destination d; the receiver marks what arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from durably.app import Durably
from durably.bench import protocol
from durably.bench.program import counts, prepare
from durably.bench.protocol import say
from durably.deliveries.audience import Peer
from durably.deliveries.client import Client
from durably.deliveries.guard import Guard
from durably.deliveries.http import Webhook
from durably.observe.events import Event
from durably.worker.interpreter import settle_in

CONCURRENCY = 500
PAYLOAD = "x" * 200
KEY = b64encode(bytes(32)).decode()


@contextlib.contextmanager
def opened(url: str, schema: str) -> Iterator[Durably]:
    """The application, observed."""
    seen = 0

    def observe(event: Event) -> None:
        nonlocal seen
        seen += 1

    with Durably(url, schema=schema, secrets_key=KEY) as app:
        app.deliveries.channels["webhook"] = Webhook(Client(Guard(http=True, allow=["127.0.0.0/8"])))
        app.events.subscribe(observe)
        yield app


def publish(url: str, schema: str, messages: int, addresses: list[str], order: Any) -> None:
    """Every message to every address."""
    with opened(url, schema) as app:
        app.deliveries.destinations.defaults(order=order, timeout=5, schedule=["1h"] * 5)
        audience = [Peer(f"peer-{number}", address) for number, address in enumerate(addresses)]
        say("begin")
        for number in range(messages):
            app.deliveries.publish("bench", {"number": number, "data": PAYLOAD}, audience)
        say("end", count=messages * len(addresses))


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
    protocol.serve({function.__name__: function for function in (prepare, publish, work, counts)})
