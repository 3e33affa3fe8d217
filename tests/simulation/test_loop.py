"""The loop in virtual time, and the strands that can be frozen and cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from durably.core.moment import SECOND, HostClock
from durably.testing.simulation.loop import Deadlock, Strand, VirtualLoop, WallClock


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_a_year_passes_without_waiting(loop: VirtualLoop) -> None:
    clock = HostClock(WallClock(loop), loop.time)
    before = clock.now()

    loop.run_until_complete(asyncio.sleep(365 * 86400))

    assert clock.monotonic() == pytest.approx(365 * 86400)
    assert clock.now() - before == pytest.approx(365 * 86400 * SECOND)


def test_having_nothing_to_wait_for_is_a_deadlock(loop: VirtualLoop) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    waiting = loop.create_task(wait())
    with pytest.raises(Deadlock):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)


def test_there_are_no_threads(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match="no threads"):
        loop.run_in_executor(None, time.sleep, 1)


def test_a_frozen_strand_goes_on_where_it_was_and_sees_that_time_has_passed(loop: VirtualLoop) -> None:
    strand, seen = Strand("frozen"), list[float]()

    async def count() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(loop.time())

    counting = loop.create_task(count(), context=strand.context.copy())
    loop.call_later(1.5, strand.freeze)
    loop.call_later(10, strand.thaw, loop)
    loop.run_until_complete(counting)

    assert seen == [1, 10, 11]


def test_what_is_cancelled_by_what_came_before_it_does_not_run_after_a_pause(loop: VirtualLoop) -> None:
    strand, seen = Strand("frozen"), list[str]()

    async def race() -> None:
        timer = loop.call_later(3, seen.append, "too late")
        loop.call_later(2, timer.cancel)
        await asyncio.sleep(5)

    racing = loop.create_task(race(), context=strand.context.copy())
    loop.call_later(1, strand.freeze)
    loop.call_later(10, strand.thaw, loop)
    loop.run_until_complete(racing)

    assert seen == []


def test_of_a_strand_that_was_cut_nothing_runs_again_not_even_its_cleanup(loop: VirtualLoop) -> None:
    strand, seen = Strand("cut"), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(2)
            seen.append("worked")
        finally:
            seen.append("cleaned up")

    working = loop.create_task(work(), context=strand.context.copy())
    loop.call_later(1, strand.cut)
    loop.run_until_complete(asyncio.sleep(5))
    working.cancel()
    loop.run_until_complete(asyncio.sleep(5))

    assert seen == []
    strand.release(loop)
    loop.run_until_complete(asyncio.wait([working]))
    assert seen == ["cleaned up"]
