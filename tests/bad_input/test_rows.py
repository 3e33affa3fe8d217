"""A malformed row harms nobody but itself: neighbours run, the worker stays, and the commands have something to say."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import Any

import psycopg
import pytest

from durably import Durably, Retry, current
from durably.errors import DurablyError
from tests.bad_input.raw import Numbered, Raw
from tests.bad_input.rows import POSTGRES_ONLY, ROWS, SQLITE_ONLY, Plant
from tests.support.command import Durably as Command
from tests.support.command import Ran, in_process

SAFETY = 60
"""Seconds after which a neighbour that does not run is given up; no test depends on it."""


@pytest.fixture
def durably(capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(capsys)


def declared(url: str) -> Durably:
    app = Durably(url)

    @app.task(retry=Retry.constant(2, 0))
    async def work(number: int) -> Any:
        if number < 0:
            raise ValueError("below zero")
        return [number, current().details]

    return app


async def neighbours_run(app: Durably, rounds: int = 2) -> None:
    """Tasks of every kind run to their end beside the malformed row, and the worker is still there afterwards."""
    work = app.definitions["work"]
    worker = app.worker(concurrency=8, poll=0.02, lease=2, grace=1)
    serving = asyncio.create_task(worker.run())
    try:
        await _ended_well(work, serving, rounds)
    finally:
        worker.stop()
        await serving


async def _ended_well(work: Any, serving: asyncio.Task[None], rounds: int) -> None:
    for number in range(rounds):
        handles = [
            await work.aenqueue(number),
            await work.using(key="neighbour").aenqueue(number),
            await work.using(key="neighbour").aenqueue(number),
            await work.using(limit="neighbours").aenqueue(number),
            await work.using(delay=0.01).aenqueue(number),
        ]
        waiting: asyncio.Future[Any] = asyncio.gather(*(handle.aresult(SAFETY) for handle in handles))
        done, _ = await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert serving not in done, "the worker exited"
        assert await waiting == [[number, None]] * len(handles)


def spoken(ran: Ran, command: object) -> None:
    """It says something, as a command should."""
    assert ran.code in (0, 1), (command, ran)
    assert ran.out.strip() or ran.err.startswith("durably: "), (command, ran)
    assert "Traceback" not in ran.err, (command, ran)


def commands_speak(raw: Raw, durably: Command, planted: dict[str, Numbered], *form: str) -> None:
    """Every command that looks says something, about the whole and about each of the rows."""
    for look in (
        ("tasks", "list", "--limit", "1000"),
        ("tasks", "list", "--tag", "odd"),
        ("dead", "list"),
        ("queues", "list"),
        ("queues", "limits"),
        ("keys", "list"),
        ("sessions",),
        ("doctor",),
    ):
        ran = durably(*look, "--store", raw.url, *form)
        spoken(ran, look)
        assert not form or ran.data is not None, look
    for kind, one in planted.items():
        # `show` says in JSON what `why` says too.
        look = ("tasks", "show") if form else ("why",)
        spoken(durably(*look, one.id, "--store", raw.url, *form), kind)
        if "key" in kind:
            spoken(durably("keys", "show", "default", one.name, "--store", raw.url, *form), kind)
            spoken(durably("keys", "resume", "default", one.name, "--store", raw.url, *form), kind)


def harmless(raw: Raw, kinds: dict[str, Plant], durably: Command) -> None:
    planted: dict[str, Numbered] = {}
    for number, (kind, plant) in enumerate(kinds.items()):
        one = Numbered(raw, number)
        # What a constraint refuses harms nobody either.
        with contextlib.suppress(psycopg.errors.CheckViolation, sqlite3.IntegrityError):
            plant(one)
            planted[kind] = one
    accepted = {kind: one for kind, one in planted.items() if whereabouts(raw, one)}
    with declared(raw.url) as app:
        commands_speak(raw, durably, planted)
        asyncio.run(serve(app))
        assert [kind for kind, one in accepted.items() if not whereabouts(raw, one)] == []
        commands_speak(raw, durably, planted, "--json")
        for one in accepted.values():
            with contextlib.suppress(DurablyError):
                app.handle(one.id).result(timeout=0)


def whereabouts(raw: Raw, one: Numbered) -> int:
    """How many rows there are of a task: it lives, or it has ended, but it does not vanish."""
    return raw.count("tasks", id=one.id) + raw.count("history", id=one.id)


async def serve(app: Durably) -> None:
    try:
        await neighbours_run(app)
    finally:
        await app.aclose()


def groups(kinds: dict[str, Plant]) -> list[Any]:
    """The kinds, thirty at a time."""
    names = list(kinds)
    parts = [names[start : start + 30] for start in range(0, len(names), 30)]
    return [pytest.param({name: kinds[name] for name in part}, id=f"from {part[0]}") for part in parts]


@pytest.mark.parametrize("kinds", groups({**ROWS, **SQLITE_ONLY}))
def test_malformed_rows_in_sqlite_harm_nobody(raw_sqlite: Raw, kinds: dict[str, Plant], durably: Command) -> None:
    harmless(raw_sqlite, kinds, durably)


@pytest.mark.parametrize("kinds", groups({**ROWS, **POSTGRES_ONLY}))
def test_malformed_rows_in_postgres_harm_nobody(raw_postgres: Raw, kinds: dict[str, Plant], durably: Command) -> None:
    harmless(raw_postgres, kinds, durably)


def test_there_are_fifty_kinds_for_each_store() -> None:
    assert len(ROWS) >= 50
