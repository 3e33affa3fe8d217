"""The application that crash tests run in processes of their own. It keeps a ledger outside the store."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from durably import Durably, Retry, current

app = Durably(os.environ["DURABLY_STORE"])
LEDGER = os.environ["LEDGER"]


def note(*words: object) -> None:
    """Append a line to the ledger in one write, which outlives the process and does not mix with others' lines."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


@app.task(retry=Retry.never())
async def hold(number: int) -> int:
    """The first attempt never returns; the second one does."""
    note("start", number, current().attempt, os.getpid())
    if current().attempt == 1:
        await asyncio.Event().wait()
    note("end", number, current().attempt, os.getpid())
    return number


@app.task(retry=Retry.never())
async def nap(number: int) -> None:
    """Sleeps until its neighbour's crash ends it, and is short once it is left alone."""
    note("start", number, current().attempt, os.getpid())
    if current().attempt < 3:
        await asyncio.Event().wait()


@app.task(retry=Retry.never())
async def kill(wait_for: int) -> None:
    """Kills its process once everyone else has begun."""
    note("kill", current().attempt, os.getpid())
    if current().attempt < 3:
        while len([line for line in lines() if line[0] == "start"]) < wait_for * current().attempt:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the ledger is a file: nobody can signal
    os._exit(9)


@app.task
async def count(number: int) -> None:
    """Leaves one line."""
    note("count", number)


@app.task
async def nothing(number: int) -> None:
    """Costs nothing but its handling."""


def lines() -> list[list[str]]:
    """The ledger so far."""
    path = Path(LEDGER)
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
