"""The heartbeat: neither a database error nor a busy loop ends it, and clocks that disagree steal nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from durably import Durably, StoreUnavailable
from durably.core.moment import SECOND, HostClock
from durably.stores.operations.read import sessions
from durably.stores.protocol import Store
from durably.worker.session import Heartbeat, Pulse, Session


class Beats:
    """Counts the beats of a heartbeat, and lets some of them fail before they reach the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, failing: int) -> None:
        self.failed = 0
        self.landed = threading.Semaphore(0)
        self._failing = failing
        private = store.private()
        run = private.run

        def flaky(op: Any) -> Any:
            if op.name == "beat" and self.failed < self._failing:
                self.failed += 1
                raise StoreUnavailable("the database is restarting")
            answer = run(op)
            if op.name == "beat":
                self.landed.release()
            return answer

        monkeypatch.setattr(private, "run", flaky)
        monkeypatch.setattr(store, "private", lambda: private)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            self.landed.acquire()


def test_a_heartbeat_goes_on_after_database_errors(app: Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = Beats(monkeypatch, app.store, failing=3)
    lost = threading.Event()

    async def story() -> str | None:
        worker = app.worker(lease=120, heartbeat=0.05, poll=0.05)
        app.events.subscribe(lambda event: lost.set() if event.kind == "session_lost" else None)
        serving = asyncio.create_task(worker.run())
        await asyncio.to_thread(beats.wait_for, 3)
        held = worker.session
        worker.stop()
        await serving
        await app.aclose()
        return held

    assert asyncio.run(story()) is not None
    assert beats.failed == 3
    assert not lost.is_set()


def test_a_handler_that_keeps_the_loop_busy_does_not_starve_the_heartbeat(
    app: Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Beats(monkeypatch, app.store, failing=0)

    @app.task
    async def hogs_the_loop() -> str:
        beats.wait_for(5)
        return "nobody took it away"

    async def story() -> tuple[str, int]:
        worker = app.worker(lease=120, heartbeat=0.05, poll=0.05)
        serving = asyncio.create_task(worker.run())
        handle = await hogs_the_loop.aenqueue()
        result = await handle.aresult(120)
        attempt = (await handle.ainfo()).attempt
        worker.stop()
        await serving
        await app.aclose()
        return result, attempt

    assert asyncio.run(story()) == ("nobody took it away", 1)


def test_a_beat_that_finds_no_live_session_is_the_only_thing_that_means_lost(app: Durably) -> None:
    lost = threading.Event()
    session = Session("never opened", lease=60, now=0.0)
    heartbeat = Heartbeat(app.store, session, 0.01, Pulse(0.0), lambda: 0.0, lost.set)

    heartbeat.start()
    lost.wait()
    heartbeat.join()

    assert session.lost


@pytest.mark.parametrize("wrong_by", [-3600, 3600])
def test_a_worker_whose_clock_is_wrong_steals_no_lease(wrong_by: int, migrated_postgres_url: str) -> None:
    wall = HostClock().now
    begun, go = asyncio.Event(), asyncio.Event()
    owner = Durably(migrated_postgres_url)
    skewed = Durably(migrated_postgres_url, clock=HostClock(wall=lambda: wall() / SECOND + wrong_by))

    @owner.task
    async def work() -> str:
        begun.set()
        await go.wait()
        return "done by its owner"

    @skewed.task(name="work")
    async def steals() -> str:
        return "stolen"

    @skewed.task(queue="probe")
    async def probe() -> None: ...

    async def story() -> tuple[str, int, int]:
        serving = owner.worker(poll=0.05, lease=120)
        other = skewed.worker(poll=0.05, lease=0.2)
        runs = [asyncio.create_task(serving.run())]
        handle = await work.aenqueue()
        await begun.wait()
        runs.append(asyncio.create_task(other.run()))
        # Each probe outlasts the lease of the other and a round of its reaper, so that it judges in between.
        for _ in range(3):
            await (await probe.using(delay="0.7s").aenqueue()).aresult(120)
        live = len(await owner.store.arun(sessions()))
        go.set()
        result, info = await handle.aresult(120), await handle.ainfo()
        for worker in (serving, other):
            worker.stop()
        await asyncio.gather(*runs)
        for app in (owner, skewed):
            await app.aclose()
        return result, info.attempt, live

    assert asyncio.run(story()) == ("done by its owner", 1, 2)
    owner.close()
    skewed.close()
