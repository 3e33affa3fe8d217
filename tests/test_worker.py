"""The worker on the real clock: woken without polling, watched by its heartbeat, honest about threads."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from durably import Durably, Retry, StoreUnavailable, TaskCancelled, current
from durably.client.definition import Definition
from durably.core.task import Task
from durably.stores.operations.claim import Claim
from durably.stores.operations.keys import Behind
from durably.stores.operations.sweep import open_session
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Operation
from durably.worker.claims import HURRY, SWEEP, Claims
from durably.worker.relay import Relay
from durably.worker.running import Running
from durably.worker.session import Session

NEVER = 3600


async def asleep(app: Durably) -> None:
    """Wait until the worker has told the store that it sleeps, where the store wants to know."""
    if not app.store.sleeps:
        return
    with psycopg.connect(app.store.url, autocommit=True) as connection:  # type: ignore[attr-defined]
        while connection.execute("SELECT count(*) FROM durably.sleepers").fetchone() == (0,):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the store cannot signal


def test_a_sleeping_worker_is_woken_by_an_enqueue_of_someone_else(app: Durably) -> None:
    stranger = Durably(app.store.private())

    @stranger.task(name="work")
    async def stand_in(number: int) -> int: ...  # type: ignore[empty-body]

    @app.task
    async def work(number: int) -> int:
        return number

    async def story() -> list[int]:
        worker = app.worker(poll=NEVER)
        serving = asyncio.create_task(worker.run())
        results = []
        for number in range(3):
            await asleep(app)
            handle = await asyncio.to_thread(stand_in.enqueue, number)
            results.append(await work.handle(handle.id).aresult(120))
        worker.stop()
        await serving
        await app.aclose()
        return results

    assert asyncio.run(story()) == [0, 1, 2]
    stranger.close()


def test_a_worker_that_fell_asleep_finds_what_came_from_somebody_who_did_not_know_it(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the worker's last look, and without a hint."""
    app, stranger = Durably(migrated_postgres_url), Durably(migrated_postgres_url)
    idle_time = Claims.idle_time
    came: list[str] = []

    @stranger.task(name="work")
    async def stand_in(number: int) -> int: ...  # type: ignore[empty-body]

    @app.task
    async def work(number: int) -> int:
        return number

    async def late(claims: Claims, found: Claim, poll: float) -> float:
        if not came:
            assert isinstance(stranger.store, PostgresStore)
            stranger.store._nobody_slept["default"] = math.inf
            came.append((await asyncio.to_thread(stand_in.enqueue, 7)).id)
        return await idle_time(claims, found, poll)

    async def story() -> int:
        worker = app.worker(poll=NEVER)
        serving = asyncio.create_task(worker.run())
        await asleep(app)
        while not came:  # noqa: ASYNC110 - nothing tells that it came
            await asyncio.sleep(0.01)
        result = await work.handle(came[0]).aresult(120)
        worker.stop()
        await serving
        await app.aclose()
        return result

    monkeypatch.setattr(Claims, "idle_time", late)
    assert asyncio.run(story()) == 7
    stranger.close()


def test_a_worker_that_is_woken_at_once_looks_again_when_everybody_knows_that_it_sleeps(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint for something else must not take the place of that look."""
    app = Durably(migrated_postgres_url)
    idle_time = Claims.idle_time
    waits: list[float] = []

    async def hinted_at_once(claims: Claims, found: Claim, poll: float) -> float:
        waits.append(await idle_time(claims, found, poll))
        if len(waits) == 2:
            claims._settles_at = 0
        elif len(waits) == 3:
            worker.stop()
        return 0.0

    @app.task
    async def work() -> None: ...

    async def story() -> None:
        await worker.run()
        await app.aclose()

    monkeypatch.setattr(Claims, "idle_time", hinted_at_once)
    monkeypatch.setattr("durably.worker.claims.UNHEARD", NEVER / 2)
    worker = app.worker(poll=NEVER)
    asyncio.run(story())
    assert [wait <= NEVER / 2 for wait in waits[:3]] == [True, True, False]


def test_a_sleeping_worker_wakes_for_what_falls_due_and_for_the_next_of_a_key(app: Durably) -> None:
    @app.task(retry=Retry.constant(3, "20ms"))
    async def work(number: int) -> int:
        if current().attempt == 1:
            raise ValueError("once more")
        return number

    async def story() -> list[int]:
        worker = app.worker(poll=NEVER)
        serving = asyncio.create_task(worker.run())
        await asleep(app)
        handles = [await work.using(delay="50ms").aenqueue(1)]
        handles += [await work.using(key="k").aenqueue(number) for number in (2, 3)]
        results = [await handle.aresult(120) for handle in handles]
        worker.stop()
        await serving
        await app.aclose()
        return results

    assert asyncio.run(story()) == [1, 2, 3]


def test_a_worker_that_lost_its_notifications_listens_again(migrated_postgres_url: str) -> None:
    app = Durably(migrated_postgres_url)

    @app.task
    async def work(number: int) -> int:
        return number

    listeners = "SELECT pid FROM pg_stat_activity WHERE query IN ('LISTEN durably', 'SELECT pg_notify($1, $2)')"

    async def listening(connection: psycopg.Connection[tuple[int]], but: set[int]) -> set[int]:
        while not (found := {pid for (pid,) in connection.execute(listeners.encode())} - but):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the server cannot signal
        return found

    async def story() -> int:
        worker = app.worker(poll=NEVER)
        serving = asyncio.create_task(worker.run())
        with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
            first = await listening(connection, {connection.info.backend_pid})
            for pid in first:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            await listening(connection, {connection.info.backend_pid, *first})
        result = await (await work.aenqueue(7)).aresult(120)
        worker.stop()
        await serving
        await app.aclose()
        return result

    assert asyncio.run(story()) == 7


class Overheard(logging.Handler):
    """Sets a signal when a message comes by."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.heard = threading.Event()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.text = record.getMessage()
            self.heard.set()


def test_a_blocked_event_loop_stops_the_heartbeat_and_shows_where_it_hangs(app: Durably) -> None:
    overheard = Overheard("event loop has been blocked")
    logging.getLogger("durably.session").addHandler(overheard)

    @app.task
    async def blocks_the_loop() -> str:
        overheard.heard.wait()
        return "went on"

    async def story() -> str:
        worker = app.worker(poll=0.05, lease=0.4)
        serving = asyncio.create_task(worker.run())
        handle = await blocks_the_loop.aenqueue()
        result = await handle.aresult(120)
        worker.stop()
        await serving
        await app.aclose()
        return result

    assert asyncio.run(story()) == "went on"
    assert "in blocks_the_loop" in overheard.text
    logging.getLogger("durably.session").removeHandler(overheard)


def test_a_thread_sees_the_cancel_flag_and_what_it_then_does_is_recorded(app: Durably) -> None:
    begun = threading.Event()

    @app.task
    def obedient() -> str:
        begun.set()
        while not current().cancelled:
            time.sleep(0.005)
        raise RuntimeError("stopping as asked")

    @app.task
    def stubborn() -> str:
        begun.set()
        while not current().cancelled:
            time.sleep(0.005)
        return "finished anyway"

    async def story() -> list[tuple[str, str]]:
        worker = app.worker(poll=0.05)
        serving = asyncio.create_task(worker.run())
        found = []
        for task in (obedient, stubborn):
            begun.clear()
            handle = await task.aenqueue()
            await asyncio.to_thread(begun.wait)
            answer = await handle.acancel("not needed")
            while not (info := await handle.ainfo()).finished_at:  # noqa: ASYNC110 - both ends are awaited
                await asyncio.sleep(0.01)
            found.append((str(answer), info.state))
        worker.stop()
        await serving
        await app.aclose()
        return found

    assert asyncio.run(story()) == [("stopping", "cancelled"), ("stopping", "done")]


def test_concurrent_callers_share_statements_and_a_conflict_is_only_its_own(app: Durably) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    async def story() -> tuple[int, int]:
        writes: list[str] = []
        arun = app.store.arun

        async def counted(op: object) -> object:
            writes.append(repr(op))
            return await arun(op)  # type: ignore[arg-type]

        app.store.arun = counted  # type: ignore[method-assign, assignment]
        answers = await asyncio.gather(
            *(work.aenqueue(number) for number in range(200)),
            work.using(unique="u").aenqueue(1),
            work.using(unique="u").aenqueue(2),
            return_exceptions=True,
        )
        await app.aclose()
        return len(writes), sum(isinstance(answer, Exception) for answer in answers)

    writes, refused = asyncio.run(story())
    assert writes < 20
    assert refused == 1
    assert app.queues.list()[0].counts == {"ready": 201}


def test_threads_share_statements_too(app: Durably) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    ready = threading.Barrier(8)
    seen: list[str] = []

    def produce(first: int) -> None:
        ready.wait()
        for number in range(first, first + 25):
            seen.append(work.enqueue(number).id)

    threads = [threading.Thread(target=produce, args=(index * 25,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(seen)) == 200
    assert app.queues.list()[0].counts == {"ready": 200}


def test_a_claim_whose_answer_was_lost_is_given_back_and_runs(app: Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    arun = app.store.arun
    lost: list[int] = []

    async def loses_one_answer(op: Operation[object]) -> object:
        answer = await arun(op)
        if isinstance(answer, Claim) and answer.tasks and not lost:
            lost.append(len(answer.tasks))
            raise StoreUnavailable("the connection broke after the commit")
        return answer

    @app.task
    async def work(number: int) -> int:
        return number

    async def story() -> list[int]:
        handles = [
            await work.aenqueue(1),
            await work.using(key="k").aenqueue(2),
            await work.using(limit="g").aenqueue(3),
        ]
        monkeypatch.setattr(app.store, "arun", loses_one_answer)
        worker = app.worker(poll=0.05)
        serving = asyncio.create_task(worker.run())
        results = [await handle.aresult(120) for handle in handles]
        assert {(await handle.ainfo()).spent for handle in handles} == {1}
        worker.stop()
        await serving
        await app.aclose()
        return results

    assert asyncio.run(story()) == [1, 2, 3]
    assert lost == [3]


@pytest.mark.parametrize("pays", [True, False])
def test_a_worker_that_runs_ahead_has_no_more_in_flight_than_its_slots_and_what_follows_in_each(
    app: Durably, monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    arun = app.store.arun
    ran: list[int] = []
    held, open_again = asyncio.Event(), asyncio.Event()

    async def holds_commits(op: Operation[object]) -> object:
        if op.name.startswith("commit"):
            held.set()
            await open_again.wait()
        return await arun(op)

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    async def story() -> None:
        for number in range(60):
            await work.using(key=f"k{number % 12}").aenqueue(number)
        monkeypatch.setattr(app.store, "arun", holds_commits)
        monkeypatch.setattr(Relay, "pays", pays)
        worker = app.worker(concurrency=4, poll=0.05, ahead=3)
        serving = asyncio.create_task(worker.run())
        await held.wait()
        while len(ran) < 12:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # nothing is signalled by a worker that does nothing
        await asyncio.sleep(0.3)
        assert len(ran) == 12
        open_again.set()
        while len(ran) < 60:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the handlers are not waited for by anyone else
        worker.stop()
        await serving
        await app.aclose()

    asyncio.run(story())
    for key in range(12):
        assert [number for number in ran if number % 12 == key] == list(range(key, 60, 12))


def test_a_long_queue_does_not_starve_the_others(app: Durably) -> None:
    ran: list[str] = []

    @app.task(queue="a")
    async def long(number: int) -> None:
        ran.append("a")

    @app.task(queue="b")
    async def short() -> None:
        ran.append("b")

    async def story() -> None:
        handles = [await long.aenqueue(number) for number in range(30)]
        await (last := await short.aenqueue()).astate()
        worker = app.worker(concurrency=1, poll=0.05)
        serving = asyncio.create_task(worker.run())
        for handle in (*handles, last):
            await handle.aresult(120)
        worker.stop()
        await serving
        await app.aclose()

    asyncio.run(story())
    assert ran.index("b") <= 4


def test_tasks_that_must_run_alone_leave_time_for_the_others(sqlite_path: Path) -> None:
    app = Durably(f"sqlite:///{sqlite_path}")
    order: list[str] = []

    @app.task
    async def work(kind: str) -> None:
        order.append(kind)
        await asyncio.sleep(0.005)

    for _ in range(3):
        work.enqueue("alone")
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("UPDATE durably_tasks SET alone = 1, crashes = 2")
    connection.close()
    app.enqueue_many(work.call("beside others") for _ in range(2000))

    async def story() -> None:
        worker = app.worker(concurrency=2)
        serving = asyncio.create_task(worker.run())
        while order.count("alone") < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        worker.stop()
        await serving
        await app.aclose()

    asyncio.run(story())
    app.close()

    places = [place for place, kind in enumerate(order) if kind == "alone"]
    assert all(later - earlier > 10 for earlier, later in pairwise(places)), places


def test_what_is_cancelled_before_its_first_step_is_cancelled_and_frees_its_slot(
    app: Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    @app.task
    async def work(number: int) -> None:
        begun.append(number)

    start = Running.start

    def start_and_cancel(running: Running, tasks: Sequence[Task], now: int, behind: Behind) -> None:
        start(running, tasks, now, behind)
        running.cancel({task.id: "changed our minds" for task in tasks})

    monkeypatch.setattr(Running, "start", start_and_cancel)

    async def story() -> list[str]:
        worker = app.worker(concurrency=1)
        serving = asyncio.create_task(worker.run())
        handles = [await work.aenqueue(number) for number in range(3)]
        for handle in handles:
            with suppress(TaskCancelled):
                await handle.aresult(120)
        worker.stop()
        await serving
        states = [(await handle.ainfo()).state for handle in handles]
        await app.aclose()
        return states

    states = asyncio.run(story())
    # Where Python can take the first step at once, there is no moment before it.
    eager = sys.version_info >= (3, 12)
    assert (states, begun) == (["done"] * 3, [0, 1, 2]) if eager else (["cancelled"] * 3, [])


def test_a_task_that_was_committed_late_is_found_beside_a_queue_that_fills_all_the_room(app: Durably) -> None:
    @app.task
    async def work(number: int) -> None: ...

    async def story() -> bool:
        claims = Claims(app.store, ("busy", "late"), random.Random(1))
        await app.store.arun(open_session("s", 10**12, "here", 1, "{}"))
        for queue in ("busy", "late"):
            await app.aenqueue_many(work.using(queue=queue).call(number) for number in range(20))
        session = Session("s", lease=1e6, now=0)
        seen: set[str] = set()
        while len(seen) < 40:
            found = await claims.claim(session, 10, fresh=False)
            assert found is not None
            seen |= {task.id for task in found.tasks}
        handle = await work.using(queue="late").aenqueue(99)
        await to_the_past(app, handle.id)
        for number in range(3 * SWEEP):
            await app.aenqueue_many(work.using(queue="busy").call(number) for _ in range(10))
            found = await claims.claim(session, 10, fresh=False)
            assert found is not None
            if handle.id in {task.id for task in found.tasks}:
                break
        else:
            return False
        await app.aclose()
        return True

    assert asyncio.run(story())


async def with_tasks(app: Durably, count: int) -> tuple[Definition[[int], None], Claims, Session]:
    """So many tasks that wait, and somebody who has claimed none yet."""

    @app.task(name="work")
    async def work(number: int) -> None: ...

    await app.store.arun(open_session("s", 10**12, "here", 1, "{}"))
    await app.aenqueue_many(work.call(number) for number in range(count))
    return work, Claims(app.store, ("default",), random.Random(1)), Session("s", lease=1e6, now=0)


@pytest.mark.parametrize(
    ("claims_between", "time_between", "found"), [(1, 1e9, True), (10**9, 0.0, True), (10**9, 1e9, False)]
)
def test_a_sweep_comes_after_so_many_claims_or_so_much_time(
    app: Durably, monkeypatch: pytest.MonkeyPatch, claims_between: int, time_between: float, found: bool
) -> None:
    monkeypatch.setattr("durably.worker.claims.SWEEP", claims_between)
    monkeypatch.setattr("durably.worker.claims.SOON", time_between)

    async def story() -> bool:
        work, claims, session = await with_tasks(app, 40)
        for _ in range(2):
            claim = await claims.claim(session, 10, fresh=False)
            assert claim is not None
            assert len(claim.tasks) == 10
            claims._sweep_from = 0.0
        late = await work.aenqueue(99)
        await to_the_past(app, late.id)
        claim = await claims.claim(session, 10, fresh=False)
        assert claim is not None
        await app.aclose()
        return late.id in {task.id for task in claim.tasks}

    assert asyncio.run(story()) is found


def test_in_the_midst_of_many_a_worker_looks_back_less_far_than_at_their_end(app: Durably) -> None:
    async def story() -> None:
        _, claims, session = await with_tasks(app, 15)
        midst = await claims.claim(session, 10, fresh=False)
        assert midst is not None
        [looked] = claims._floors.values()
        assert looked == min(midst.now - HURRY, *midst.reached.values())
        end = await claims.claim(session, 10, fresh=False)
        assert end is not None
        assert claims._floors == end.floors
        assert end.floors["default", 5] < looked
        await app.aclose()

    asyncio.run(story())


async def to_the_past(app: Durably, task: str) -> None:
    """As if its transaction had been open for a minute."""
    if app.store.sleeps:
        with psycopg.connect(app.store.url) as connection:  # type: ignore[attr-defined]
            connection.execute("UPDATE durably.tasks SET ready_at = ready_at - 60000000 WHERE id = %s", [task])
    else:
        with sqlite3.connect(app.store.path) as file:  # type: ignore[attr-defined]
            file.execute("UPDATE durably_tasks SET ready_at = ready_at - 60000000 WHERE id = ?", [task])
        file.close()
