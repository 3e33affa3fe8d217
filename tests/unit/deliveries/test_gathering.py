"""What many attempts have shown in the same moment is written together, and a silent peer cannot take every slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durably.client.perloop import PerLoop
from durably.core.delivery import Condition, Destination, Kind, Outcome, Rules
from durably.deliveries.acquaintance import LATELY, MANY, TRIAL, Acquaintances
from durably.deliveries.brakes import Brakes, settled
from durably.deliveries.lessons import Lesson, Lessons, learned
from durably.deliveries.limits import Limits
from durably.deliveries.writer import Writer
from durably.errors import StoreUnavailable

BROKEN = Outcome(kind=Kind.TRANSIENT, reason="500", breaks=True)


def a_lesson(name: str = "a", outcome: Outcome = BROKEN) -> Lesson:
    return Lesson(Destination("default", name, "post", "post:x", Rules(breaker=3)), outcome, 1, 0, 0.0)


class TestAcquaintances:
    def test_a_peer_that_has_not_answered_gets_a_few_at_once(self) -> None:
        peers = Acquaintances()
        for _ in range(TRIAL):
            assert peers.may_begin("a", 0.0)
            peers.begin("a")

        assert not peers.may_begin("a", 0.0)
        assert peers.may_begin("b", 0.0)
        peers.end("a", 1.0, answered=False)
        assert peers.may_begin("a", 1.0)

    def test_a_peer_that_has_answered_lately_gets_as_many_as_its_limit_says(self) -> None:
        peers = Acquaintances()
        for _ in range(TRIAL + 1):
            peers.begin("a")
        peers.end("a", 5.0, answered=True)

        assert peers.may_begin("a", 5.0 + LATELY - 1)
        assert not peers.may_begin("a", 5.0 + LATELY)

    def test_only_those_with_something_under_way_are_kept_when_there_are_too_many(self) -> None:
        peers = Acquaintances()
        for _ in range(TRIAL):
            peers.begin("busy")
        for number in range(MANY):
            peers.begin(f"peer {number}")
            peers.end(f"peer {number}", 0.0, answered=False)

        assert not peers.may_begin("busy", 0.0)
        assert len(peers._peers) < MANY

    async def test_whoever_waits_for_news_hears_when_one_has_ended(self) -> None:
        peers, loop = Acquaintances(), asyncio.get_running_loop()
        peers.begin("a")
        waiting = [asyncio.create_task(peers.news("a", loop, 60)) for _ in range(2)]
        await asyncio.sleep(0)

        assert not await peers.news("a", loop, 0)
        peers.end("a", 1.0, answered=False)

        assert await asyncio.gather(*waiting) == [True, True]


class TestBrakes:
    def test_the_last_word_counts_and_the_longest_hold(self) -> None:
        line, other = ("q", "g"), ("q", "h")

        assert settled([(line, 1.0), (line, 3.0), (line, 2.0)]) == {line: 3.0}
        assert settled([(line, 1.0), (other, 5.0), (line, None)]) == {line: None, other: 5.0}
        assert settled([(line, 9.0), (line, None), (line, 1.0)]) == {line: 1.0}

    async def test_a_release_finds_every_hold_written_that_was_asked_for_before(self) -> None:
        said: list[str] = []
        asked, written = asyncio.Event(), asyncio.Event()

        class Store:
            async def arun(self, op: Any) -> None:
                said.append(op.name)
                asked.set()
                await written.wait()
                said.append(f"{op.name} is written")

        brakes = Brakes(Store(), asyncio.get_running_loop())  # type: ignore[arg-type]
        asking = [asyncio.create_task(brakes.hold(("q", "g"), 1.0)) for _ in range(3)]
        await asked.wait()
        asking.append(asyncio.create_task(brakes.release(("q", "g"))))
        await asyncio.sleep(0)
        assert said == ["hold_line"]
        written.set()
        await asyncio.gather(*asking)

        assert said == ["hold_line", "hold_line is written", "release_line", "release_line is written"]


class TestLessons:
    def test_all_of_them_count(self) -> None:
        lessons = [a_lesson(), a_lesson(), a_lesson()]

        assert learned(lessons[0].destination, lessons[:2]).failures == 2
        assert learned(lessons[0].destination, lessons).breaker == "open"
        assert learned(lessons[0].destination, []) == Condition()

    async def test_those_that_come_while_one_is_written_are_written_together(self) -> None:
        written: list[int] = []

        async def write(lessons: list[Lesson]) -> None:
            await asyncio.sleep(0)
            written.append(len(lessons))

        lessons = Lessons(write)
        await asyncio.gather(*(lessons.learn(a_lesson()) for _ in range(10)), lessons.learn(a_lesson("b")))

        assert sorted(written) == [1, 1, 9]

    async def test_nobody_waits_for_ever_when_writing_fails(self) -> None:
        async def write(lessons: list[Lesson]) -> None:
            await asyncio.sleep(0)
            raise StoreUnavailable("away")

        lessons = Lessons(write)
        answers = await asyncio.gather(*(lessons.learn(a_lesson()) for _ in range(3)), return_exceptions=True)

        assert [type(answer) for answer in answers] == [StoreUnavailable, type(None), type(None)]
        with pytest.raises(StoreUnavailable):
            await lessons.learn(a_lesson())


class Shelf:
    """Stands where the store is, and notes which changes came together."""

    def __init__(self, refused: str = "", broken: bool = False) -> None:
        self.batches: list[int] = []
        self._refused = refused
        self._broken = broken

    async def arun(self, op: Any) -> set[tuple[str, str]]:
        await asyncio.sleep(0)
        if self._broken:
            raise StoreUnavailable("away")
        asked: list[list[Any]] = []

        class Queries:
            def each(self, name: str, *columns: list[Any]) -> list[list[Any]]:
                asked.extend(columns)
                return asked

        steps = op.steps(Queries())
        next(steps)
        self.batches.append(len(asked[1]))
        return {("default", name) for name in asked[1] if name != self._refused}


class TestWriter:
    async def test_changes_of_one_moment_go_together_but_never_two_of_a_destination(self) -> None:
        shelf = Shelf(refused="b")
        writer = Writer(shelf, asyncio.get_running_loop())  # type: ignore[arg-type]
        names = ("a", "b", "a", "c")
        answers = await asyncio.gather(*(writer.write(a_lesson(name).destination) for name in names))

        assert answers == [True, False, True, True]
        assert shelf.batches == [3, 1]

    async def test_everybody_hears_that_the_store_is_away(self) -> None:
        writer = Writer(Shelf(broken=True), asyncio.get_running_loop())  # type: ignore[arg-type]
        answers = await asyncio.gather(
            *(writer.write(a_lesson(name).destination) for name in "ab"), return_exceptions=True
        )

        assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]


class TestLimits:
    async def test_a_limit_cancels_what_runs_and_knows_that_it_was_it(self) -> None:
        loop = asyncio.get_running_loop()
        limit = Limits().limit(loop, 0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)

        assert limit.was_it()
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    async def test_whoever_is_cancelled_by_somebody_else_stays_cancelled(self) -> None:
        judged: list[bool] = []

        async def work() -> None:
            limit = Limits().limit(asyncio.get_running_loop(), 0.0)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                judged.append(limit.was_it())
                raise

        running = asyncio.create_task(work())
        await asyncio.sleep(0)
        running.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert (judged, running.cancelled()) == ([False], True)

    async def test_a_call_comes_first_and_the_limit_holds_after_it(self) -> None:
        calls: list[str] = []
        limit = Limits().limit_with_a_call(asyncio.get_running_loop(), 0.02, lambda: calls.append("slow"), 0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)

        assert (calls, limit.was_it()) == (["slow"], True)

    async def test_a_limit_that_is_stopped_does_nothing(self) -> None:
        calls: list[str] = []
        last = asyncio.Event()
        limits, loop = Limits(), asyncio.get_running_loop()
        stopped = limits.limit_with_a_call(loop, 0.01, lambda: calls.append("stopped"), 0.01)
        between = limits.limit_with_a_call(loop, 0.03, lambda: calls.append("between"), 0.01)
        limits.limit_with_a_call(loop, 60, last.set, 0.02)
        stopped.stop()
        await last.wait()
        between.stop()
        await asyncio.sleep(0.05)

        assert calls == ["between"]
        assert not between.was_it()


def test_each_event_loop_has_its_own() -> None:
    made: list[object] = []

    def make(loop: asyncio.AbstractEventLoop) -> object:
        made.append(object())
        return made[-1]

    owned = PerLoop(make)

    async def twice() -> tuple[object, object]:
        loop = asyncio.get_running_loop()
        return owned.of(loop), owned.of(loop)

    first, again = asyncio.run(twice())
    second, _ = asyncio.run(twice())
    assert first is again
    assert first is not second
    assert len(made) == 2


def test_a_loop_that_is_closed_is_let_go() -> None:
    owned = PerLoop(lambda loop: [loop])

    async def here() -> None:
        owned.of(asyncio.get_running_loop())

    for _ in range(5):
        asyncio.run(here())
    assert len(owned._made) == 1
