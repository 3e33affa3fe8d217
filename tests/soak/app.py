"""The application of the soak. Its handlers write into the ledger what they do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from durably import DeadLetter, Durably, Event, Permanent, Retry, current
from tests.soak.ledger import Ledger, Line, line
from tests.soak.place import LEDGER, STORE

FAILING = Retry.constant(attempts=8, delay="50ms")
GIVING_UP = Retry.constant(attempts=3, delay="50ms")
TOLD = {"completed", "dead", "fenced", "crashed", "session_dead", "session_lost"}

app = Durably(STORE)
ledger = Ledger(LEDGER)


class Hiccup(Exception):
    """What a handler raises that will do better next time, or never."""


def tell(event: Event) -> None:
    """What a worker says that it did. It has been committed by then, so nobody waits for the disk."""
    if event.kind in TOLD:
        ledger.jot(line(event.kind, task=event.task, name=event.name, note=event.reason or ""))


app.events.subscribe(tell)


def about(what: str, label: str, number: int = 0, note: str = "") -> Line:
    """A line about the attempt that runs here."""
    me = current()
    return Line(
        what, time.monotonic(), os.getpid(), label, me.id, me.name, me.key, number, me.attempt, me.token, note=note
    )


@asynccontextmanager
async def attempt(label: str, number: int = 0) -> AsyncIterator[None]:
    """The begin and the end of an attempt, whatever the end is."""
    await ledger.awrite(about("began", label, number))
    try:
        yield
    except BaseException as error:
        ledger.jot(about("failed", label, number, repr(error)))
        raise
    await ledger.awrite(about("ran", label, number))


@app.task
async def plain(label: str, nap: float = 0.0) -> str:
    """Nothing special."""
    async with attempt(label):
        await asyncio.sleep(nap)
    return label


@app.task
async def stubborn(label: str, nap: float) -> str:
    """Writes its end without letting go of the loop, so that after a freeze it reports before anyone can stop it."""
    await ledger.awrite(about("began", label))
    await asyncio.sleep(nap)
    ledger.write(about("ran", label))
    return label


@app.task
def threaded(label: str) -> str:
    """The same in a thread."""
    ledger.write(about("began", label))
    ledger.write(about("ran", label))
    return label


@app.task(retry=FAILING)
async def keyed(label: str, number: int, fails: int) -> None:
    """One of a line of tasks that must run in order, even when one of them fails."""
    async with attempt(label, number):
        if current().attempt <= fails:
            raise Hiccup(f"attempt {current().attempt}")


@app.task(retry=FAILING)
async def retried(label: str, fails: int) -> None:
    """Fails so many times."""
    async with attempt(label):
        if current().attempt <= fails:
            raise Hiccup(f"attempt {current().attempt}")


@app.task(on_dead="mourn")
async def hopeless(label: str) -> None:
    """Knows that it cannot be done."""
    async with attempt(label):
        raise Permanent("it cannot be done")


@app.task(retry=GIVING_UP, on_dead="mourn")
async def exhausting(label: str) -> None:
    """Fails until it is given up."""
    async with attempt(label):
        raise Hiccup(f"attempt {current().attempt}")


@app.task
async def mourn(letter: DeadLetter) -> None:
    """Told of a dead letter."""
    async with attempt(f"mourn/{letter.id}"):
        pass


@app.task
async def poison(label: str) -> None:
    """Kills its process, every time."""
    async with attempt(label):
        os._exit(9)


@app.task(at_most_once=True)
async def once(label: str, nap: float) -> None:
    """Must never begin twice."""
    async with attempt(label):
        await asyncio.sleep(nap)


@app.task
async def parent(label: str) -> None:
    """Has a successor, which exists if and only if this is done."""
    async with attempt(label):
        current().then(child.call(f"{label}/child"))


@app.task
async def child(label: str) -> None:
    """The successor."""
    async with attempt(label):
        pass
