"""The demo's application: a shop with six kinds of work, each of which notes in the ledger what it does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durably import Durably, Permanent, Retry, current
from durably.demo.ledger import Entry, Ledger

STORE = os.environ.get("DURABLY_DEMO_STORE", "sqlite:///durably-demo.db")
LEDGER = Path(os.environ.get("DURABLY_DEMO_LEDGER", "durably-demo.ledger"))
RELEASE = int(os.environ.get("DURABLY_DEMO_RELEASE", "1"))
"""Release 1 has a bug in `read_invoice`, which release 2 corrects."""

app = Durably(STORE)
ledger = Ledger(LEDGER)


@contextmanager
def noted(step: int = 0) -> Iterator[None]:
    """Write into the ledger that an attempt began, and how it ended; one that is killed cannot."""
    here = current()
    facts = (here.id, here.name, here.key, step, here.attempt, here.token, os.getpid())
    ledger.write(Entry("began", *facts))
    try:
        yield
    except BaseException:
        ledger.write(Entry("failed", *facts))
        raise
    ledger.write(Entry("ran", *facts))


@app.task(queue="orders")
async def ship(order: int) -> str:
    """Enqueued within the transaction that stores the order."""
    with noted():
        await asyncio.sleep(0.02)
    return f"order {order} is on its way"


@app.task(queue="mail")
async def send_mail(order: int) -> None:
    """Asynchronous work: it waits for others most of the time."""
    with noted():
        await asyncio.sleep(0.05)


@app.task(queue="images")
def make_thumbnail(order: int) -> None:
    """Blocking work: a plain function runs in a thread."""
    with noted():
        time.sleep(0.3)


@app.task(queue="accounts")
async def book(account: str, step: int) -> None:
    """Enqueued with key=account: one at a time and in order for each account, accounts side by side."""
    with noted(step):
        await asyncio.sleep(0.01)


@app.task(queue="partners", retry=Retry.after("500ms", "1500ms", "4s", jitter=0.2))
async def call_partner(order: int) -> None:
    """The partner is down for the first two attempts."""
    with noted():
        await asyncio.sleep(0.02)
        if current().attempt <= 2:
            raise ConnectionError("the partner answers 503, try again later")


@app.task(queue="invoices")
async def read_invoice(number: int, total: str) -> float:
    """Trying again cannot help when the text is not a number."""
    with noted():
        try:
            return float(total if RELEASE == 1 else total.replace(",", "."))
        except ValueError as error:
            raise Permanent(f"invoice {number}: {total!r} is not a number") from error
