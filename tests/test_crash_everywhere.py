"""`crash_everywhere` finds what a crash at some write would do to a scenario, and lets what survives it pass."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from durably import Durably, Retry, Unique, current
from durably.testing import Report, Scenario, crash_everywhere


class Shop(Scenario):
    """One charge, enqueued so that it can be done again."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    def act(self, app: Durably) -> None:
        app.definitions["charge"].using(unique=Unique("o-1", scope="forever")).enqueue("o-1")

    def observe(self, app: Durably) -> Any:
        return self.effects


class Careless(Shop):
    def declare(self, app: Durably) -> None:
        @app.task
        async def charge(order: str) -> str:
            self.effects.append(order)
            return f"{order} is paid"


class Idempotent(Shop):
    def declare(self, app: Durably) -> None:
        @app.task
        async def charge(order: str) -> str:
            if order not in self.effects:
                self.effects.append(order)
            return f"{order} is paid"


def moments(report: Report) -> list[str]:
    return [crash.moment for crash in report.harmful]


def test_an_effect_before_a_death_is_found_and_the_story_told() -> None:
    report = crash_everywhere(Careless)

    assert moments(report) == ["just before the write 'commit' was committed"]
    with pytest.raises(AssertionError) as caught:
        report.check()
    assert str(caught.value).splitlines() == [
        f"1 of {len(report.crashes)} crashes made a difference:",
        "  A crash just before the write 'commit' was committed (3 writes had been committed):",
        "    observed ['o-1', 'o-1'] instead of ['o-1']",
        "    ran twice instead of once: charge(order='o-1')",
    ]


def test_an_idempotent_handler_passes_although_it_runs_twice() -> None:
    report = crash_everywhere(Idempotent)

    report.check()
    assert str(report) == f"{len(report.crashes)} crashes, and none of them made a difference."
    assert report.baseline.tasks == {"charge(order='o-1') is done with 'o-1 is paid'": 1}
    assert report.baseline.executions == {"charge(order='o-1')": 1}
    assert [crash.repeats for crash in report.crashes if crash.repeats] == [
        ["ran twice instead of once: charge(order='o-1')"]
    ]


def test_there_is_a_crash_on_both_sides_of_every_write() -> None:
    report = crash_everywhere(Idempotent)

    for write in ("accept", "open_session", "claim", "commit", "close_session"):
        for side in ("before", "after"):
            assert f"just {side} the write {write!r} was committed" in [crash.moment for crash in report.crashes]
    assert [crash.writes for crash in report.crashes] == [(place + 1) // 2 for place in range(len(report.crashes))]


class Orders(Scenario):
    """An order in a table of the application's own, and a task that goes with it."""

    together: bool

    def declare(self, app: Durably) -> None:
        @app.task
        def ship(order: str) -> None: ...

    def prepare(self, app: Durably) -> None:
        with closing(sqlite3.connect(place(app))) as database:
            database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    def act(self, app: Durably) -> None:
        ship = app.definitions["ship"]
        with closing(sqlite3.connect(place(app))) as database:
            with database:
                if database.execute("INSERT OR IGNORE INTO orders VALUES ('o-1')").rowcount == 0:
                    return
                if self.together:
                    ship.using(within=database).enqueue("o-1")
            if not self.together:
                ship.enqueue("o-1")

    def observe(self, app: Durably) -> Any:
        with closing(sqlite3.connect(place(app))) as database:
            return database.execute("SELECT id FROM orders").fetchall()


class Apart(Orders):
    together = False


class Together(Orders):
    together = True


def place(app: Durably) -> str:
    path: str = app.store.path  # type: ignore[attr-defined]
    return path


def test_a_task_that_is_enqueued_after_the_order_was_committed_can_be_lost() -> None:
    report = crash_everywhere(Apart)

    assert moments(report) == ["just before the write 'accept' was committed"]
    assert report.harmful[0].differences == ["never instead of once: ship(order='o-1') is done with None"]


def test_a_task_that_is_enqueued_with_the_order_is_there_or_not_as_the_order_is() -> None:
    report = crash_everywhere(Together)

    report.check()
    assert "just after 'accept' in a transaction of the scenario" in [crash.moment for crash in report.crashes]


class Untidy(Shop):
    """Handlers that would tidy up, if they were not dead."""

    def declare(self, app: Durably) -> None:
        @app.task
        async def charge(order: str) -> None:
            try:
                await current().asave("half-way")
            except BaseException:
                self.effects.append("tidied up on the loop")
                raise

        @app.task
        def refund(order: str) -> None:
            try:
                current().save("half-way")
            except BaseException:
                self.effects.append("tidied up in a thread")
                raise

    def act(self, app: Durably) -> None:
        super().act(app)
        app.definitions["refund"].using(unique=Unique("o-2", scope="forever")).enqueue("o-2")


def test_a_dead_process_tidies_nothing_up() -> None:
    report = crash_everywhere(Untidy)

    report.check()
    assert sum("'set_progress'" in crash.moment for crash in report.crashes) == 4


class Steps(Scenario):
    """Tasks of one key: the first fails once, each knows what it has done, and the last one has a successor."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def declare(self, app: Durably) -> None:
        @app.task
        async def tell(what: str) -> None:
            self.note(what)

        @app.task(key="one", retry=Retry.after("10s", "20s"))
        async def step(number: int) -> None:
            if number == 1 and current().details is None:
                await current().asave("seen")
                raise ConnectionError("not yet")
            self.note(f"step {number}")
            if number == 2:
                current().then(tell.call("the end"))

    def note(self, what: str) -> None:
        if what not in self.order:
            self.order.append(what)

    def prepare(self, app: Durably) -> None:
        step = app.definitions["step"]
        for number in (1, 2):
            step.enqueue(number)

    def observe(self, app: Durably) -> Any:
        return self.order


def test_keys_retries_details_and_successors_survive_a_crash_at_every_write() -> None:
    report = crash_everywhere(Steps)

    report.check()
    assert report.baseline.observed == ["step 1", "step 2", "the end"]
    assert len(report.crashes) > 30


class Broken(Shop):
    def declare(self, app: Durably) -> None:
        raise LookupError("this scenario is broken")


def test_an_error_of_the_scenario_itself_is_raised() -> None:
    with pytest.raises(LookupError, match="this scenario is broken"):
        crash_everywhere(Broken)


class Restless(Shop):
    def declare(self, app: Durably) -> None:
        @app.task
        async def charge(order: str) -> None:
            current().then(app.definitions["charge"].call(order))


def test_a_scenario_that_never_comes_to_rest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durably.testing.crash.PATIENCE", 20)

    with pytest.raises(AssertionError, match="did not come to rest within 20 rounds"):
        crash_everywhere(Restless)
