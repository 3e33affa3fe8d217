"""Peers that take long, or never answer, do not delay anybody else."""

from __future__ import annotations

import asyncio

import pytest

from durably import Durably, current
from durably.core.delivery import Kind, Outcome
from durably.deliveries import dispatch
from durably.deliveries.acquaintance import TRIAL
from durably.deliveries.audience import Peer
from durably.deliveries.channel import Delivery

OK = Outcome(kind=Kind.OK, reason="taken", status=204)


class Silence:
    """A channel whose peers answer, but for those whose names begin with `silent`."""

    def __init__(self, expected: int) -> None:
        self.waiting: dict[str, int] = {}
        self.answered: set[tuple[str, str]] = set()
        self.expected = expected
        self.all_answered = asyncio.Event()

    async def deliver(self, delivery: Delivery) -> Outcome:
        name = delivery.destination.name
        if name.startswith("silent"):
            self.waiting[name] = self.waiting.get(name, 0) + 1
            await asyncio.Event().wait()
        self.answered.add((delivery.message.id, name))
        if len(self.answered) == self.expected:
            self.all_answered.set()
        return OK


def addressed(*names: str) -> list[Peer]:
    return [Peer(name, f"post:{name}") for name in names]


@pytest.mark.parametrize("order", ["fifo", "unordered"])
def test_more_silent_peers_than_slots_keep_nobody_waiting(
    app: Durably, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(dispatch, "SLOW", 0.01)
    silent, living = [f"silent {n}" for n in range(8)], [f"living {n}" for n in range(8)]
    app.deliveries.destinations.defaults(order=order, timeout="1h")  # type: ignore[arg-type]
    post = app.deliveries.channels["post"] = Silence(expected=5 * len(living))
    for number in range(5):
        app.deliveries.publish("news", number, addressed(*silent, *living), channel="post")

    async def story() -> None:
        worker = app.worker(concurrency=2, grace=0)
        serving = asyncio.create_task(worker.run())
        await post.all_answered.wait()
        worker.stop()
        await serving
        await app.aclose()

    asyncio.run(story())
    assert len(post.answered) == post.expected
    assert max(post.waiting.values()) <= (1 if order == "fifo" else TRIAL)


def test_a_handler_that_lends_its_slot_lets_another_begin(app: Durably) -> None:
    async def story() -> list[str]:
        said: list[str] = []
        other_ran = asyncio.Event()

        @app.task
        async def patient() -> None:
            current().lend()
            current().lend()
            said.append("waits")
            await other_ran.wait()
            said.append("goes on")

        @app.task
        async def quick(last: bool) -> None:
            said.append("quick")
            if last:
                worker.stop()
            else:
                other_ran.set()

        worker = app.worker(concurrency=1)
        await patient.aenqueue()
        waiting = await quick.using(delay=0.01).aenqueue(False)
        serving = asyncio.create_task(worker.run())
        await waiting.aresult(60)
        await quick.aenqueue(True)
        await serving
        await app.aclose()
        return said

    assert asyncio.run(story()) == ["waits", "quick", "goes on", "quick"]


def test_those_behind_are_held_back_no_longer_once_a_peer_has_answered(
    app: Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOMENT", 0.0)
    app.deliveries.destinations.defaults(order="unordered", timeout="1h", concurrency=TRIAL + 1)
    asked, answer = asyncio.Semaphore(0), asyncio.Event()

    class Slow:
        async def deliver(self, delivery: Delivery) -> Outcome:
            asked.release()
            await answer.wait()
            return OK

    app.deliveries.channels["post"] = Slow()

    async def story() -> list[int]:
        for _ in range(TRIAL + 4):
            await app.deliveries.apublish("news", 1, addressed("a"), channel="post")
        first = asyncio.create_task(app.atick())
        for _ in range(TRIAL):
            await asked.acquire()
        await app.atick()
        held = len(app.tasks.list(state="done"))
        answer.set()
        await first
        await app.atick()
        found = [held, len(app.tasks.list(state="done"))]
        await app.aclose()
        return found

    assert asyncio.run(story()) == [0, TRIAL + 3]


def test_those_who_come_with_the_first_ones_wait_a_moment_for_their_answers(
    app: Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOMENT", 3600.0)
    count = TRIAL + 4
    app.deliveries.destinations.defaults(order="unordered", timeout="1h", concurrency=count)
    asked, answer = asyncio.Semaphore(0), asyncio.Event()
    under_way: list[int] = []

    class Slow:
        async def deliver(self, delivery: Delivery) -> Outcome:
            under_way.append(delivery.attempt)
            asked.release()
            await answer.wait()
            return OK

    app.deliveries.channels["post"] = Slow()

    async def story() -> tuple[int, int]:
        for _ in range(count):
            await app.deliveries.apublish("news", 1, addressed("a"), channel="post")
        serving = asyncio.create_task(app.atick())
        for _ in range(TRIAL):
            await asked.acquire()
        before = len(under_way)
        answer.set()
        await serving
        found = before, len(app.tasks.list(state="done"))
        await app.aclose()
        return found

    assert asyncio.run(story()) == (TRIAL, count)
    assert under_way == [1] * count
