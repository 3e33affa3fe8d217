"""What PostgreSQL finds by the place where the claim put it, and what is no longer there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from durably.core.change import Applied, Stale
from durably.core.ids import Ids
from durably.core.lifecycle import cancel, complete
from durably.core.moment import HostClock
from durably.core.task import Draft, State, Task
from durably.errors import StoreUnavailable
from durably.stores.operations.accept import accept
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit, set_progress
from durably.stores.operations.quick import claim_plain
from durably.stores.operations.read import get
from durably.stores.operations.sweep import open_session
from durably.stores.postgres.store import PostgresStore
from durably.stores.postgres.wire import Exchange, Wire
from durably.stores.statement import Rows
from durably.worker.report import landed


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    store.run(open_session("one", 60_000_000, "host", 1, "{}"))
    yield store
    store.close()


@pytest.fixture
def tasks(store: PostgresStore) -> list[Task]:
    ids = Ids(HostClock())
    store.run(accept([Draft(ids.task(None), "noop", "default", b"%d" % number) for number in range(4)]))
    found = store.run(claim_plain("one", ["default"], 10))
    assert found is not None
    return found.tasks


@pytest.fixture
def heads(store: PostgresStore) -> list[Task]:
    ids = Ids(HostClock())
    store.run(accept([Draft(ids.task(None), "noop", "default", b"{}", key=f"k-{number}") for number in range(3)]))
    return store.run(claim("one", ["default"], 10)).tasks


def state(store: PostgresStore, task: Task) -> str:
    [found] = store.run(get([task.id]))
    return found.state


def test_a_claim_says_where_its_tasks_are_and_their_ends_look_there(store: PostgresStore, tasks: list[Task]) -> None:
    store.queries = store.queries.without("finish_tasks")

    verdicts = store.run(commit([complete(task, b"%d" % number) for number, task in enumerate(tasks)]))

    assert len({task.place for task in tasks} - {None}) == 4
    assert [type(verdict) for verdict in verdicts] == [Applied] * 4
    ended = [found for task in tasks for found in store.run(get([task.id]))]
    assert [(task.state, task.result, task.place) for task in ended] == [
        (State.DONE, b"%d" % number, None) for number in range(4)
    ]


def test_what_has_moved_is_found_all_the_same(store: PostgresStore, tasks: list[Task]) -> None:
    first, second, *_ = tasks
    assert store.run(set_progress(first.id, first.token, "half", None))

    assert [type(one) for one in store.run(commit([complete(first, None), complete(second, None)]))] == [Applied] * 2
    assert [state(store, task) for task in tasks] == ["done", "done", "leased", "leased"]


def test_whoever_stands_at_the_place_of_another_is_left_alone(store: PostgresStore, tasks: list[Task]) -> None:
    first, second, third, fourth = tasks
    moved = [replace(first, place=second.place), replace(third, place=(4_000_000).to_bytes(4) + (1).to_bytes(2))]

    assert [type(one) for one in store.run(commit([complete(task, None) for task in moved]))] == [Applied] * 2
    assert [state(store, task) for task in (first, second, third, fourth)] == ["done", "leased", "done", "leased"]


def test_after_the_table_was_written_anew_the_right_ones_end(store: PostgresStore, tasks: list[Task]) -> None:
    store.run(commit([complete(tasks[0], None)]))
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("VACUUM FULL durably.tasks")

    assert [type(one) for one in store.run(commit([complete(task, None) for task in tasks[1:3]]))] == [Applied] * 2
    assert [state(store, task) for task in tasks] == ["done", "done", "done", "leased"]


def test_a_report_that_was_cut_off_between_its_two_statements_can_be_repeated(
    store: PostgresStore, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, placed, *_ = tasks
    assert store.run(set_progress(moved.id, moved.token, "half", None))
    changes = [complete(moved, b"1"), complete(placed, b"2")]
    call, by_id = Wire.call, store.queries.text("finish_tasks")

    def cut_off(wire: Wire, text: str, args: Sequence[Any]) -> Exchange[Rows]:
        if text == by_id:
            raise psycopg.OperationalError("the connection was lost")
        return call(wire, text, args)

    monkeypatch.setattr(Wire, "call", cut_off)
    with pytest.raises(StoreUnavailable):
        store.run(commit(changes))
    monkeypatch.undo()
    assert [state(store, task) for task in (moved, placed)] == ["leased", "done"]

    first, second = store.run(commit(changes))

    assert isinstance(first, Applied)
    assert isinstance(second, Stale)
    assert second.current is not None
    assert landed(second.change, second.current)
    results = {found.id: found.result for found in store.run(get([moved.id, placed.id]))}
    assert results == {moved.id: b"1", placed.id: b"2"}


def test_what_was_changed_at_its_place_is_stale(store: PostgresStore, tasks: list[Task]) -> None:
    first, second, *_ = tasks
    store.run(commit([cancel(first, "enough")]))

    verdicts = store.run(commit([complete(first, None), complete(second, None)]))

    assert [type(verdict) for verdict in verdicts] == [Stale, Applied]
    assert [state(store, task) for task in tasks] == ["leased", "done", "leased", "leased"]


def test_the_heads_of_keys_say_where_they_are_too(store: PostgresStore, heads: list[Task]) -> None:
    store.queries = store.queries.without("finish_tasks", "end_tasks")

    assert [type(one) for one in store.run(commit([complete(task, b"1") for task in heads]))] == [Applied] * 3
    assert len({task.place for task in heads} - {None}) == 3
    assert [(task.state, task.result) for task in store.run(get([task.id for task in heads]))] == [("done", b"1")] * 3


@pytest.mark.parametrize("way", ["moved", "of another"])
def test_a_head_that_is_not_where_it_was_ends_all_the_same(store: PostgresStore, heads: list[Task], way: str) -> None:
    first, second, third = heads
    if way == "moved":
        assert store.run(set_progress(first.id, first.token, "half", None))
    else:
        first = replace(first, place=second.place)

    assert [type(one) for one in store.run(commit([complete(first, None), complete(third, None)]))] == [Applied] * 2
    assert [state(store, task) for task in heads] == ["done", "leased", "done"]


def test_a_head_that_was_changed_at_its_place_is_stale(store: PostgresStore, heads: list[Task]) -> None:
    first, second, _ = heads
    store.run(commit([cancel(first, "enough")]))

    verdicts = store.run(commit([complete(first, None), complete(second, None)]))

    assert [type(verdict) for verdict in verdicts] == [Stale, Applied]
    assert [state(store, task) for task in heads] == ["leased", "done", "leased"]
