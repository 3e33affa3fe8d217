"""Races about digests, forced on purpose on PostgreSQL: whoever joins one is in it, or in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import psycopg
import pytest

from durably import Durably
from durably.core.task import Draft
from durably.stores.operations.notify import Place, close_digest, collect
from durably.stores.operations.read import get
from durably.stores.statement import Operation
from tests.notifications.test_notifications import PEOPLE, Told

T = TypeVar("T")
PLACE = Place("default", "ann", "comment", "sms")
HOUR = 3_600_000_000


@pytest.fixture
def app(migrated_postgres_url: str) -> Iterator[Durably]:
    with Durably(migrated_postgres_url) as app:
        app.notifications.channels["sms"] = Told()
        app.notifications.resolver(PEOPLE.get)
        app.notifications.kind("comment", ["sms"])
        yield app


@pytest.fixture
def slow(migrated_postgres_url: str) -> Iterator[psycopg.Connection]:
    """A connection whose transaction ends when the test says so."""
    with psycopg.connect(migrated_postgres_url) as connection:
        connection.execute("SELECT 1")
        yield connection


def routes(app: Durably, many: int) -> list[str]:
    """The routes of so many notifications."""
    return [app.notifications.get(app.notify("comment", "ann", {"n": n}).id).routes[0].id for n in range(many)]


def joining(app: Durably, route: str) -> tuple[str, Operation[str]]:
    """The task that would send a new digest, and the operation that lets a route join the open one or that."""
    draft = Draft(app._engine.ids.task(None), "durably.digest", "notifications", b"{}", due_in=HOUR)
    return draft.id, collect(route, PLACE, draft, HOUR)


def meanwhile(app: Durably, slow: psycopg.Connection, operation: Operation[T], commit: Callable[[], None]) -> T:
    """Run something that has to wait for a transaction, and end that once it does."""
    with ThreadPoolExecutor(1) as threads:
        running: Future[T] = threads.submit(app.store.run, operation)
        with psycopg.connect(app.store.address, autocommit=True) as watching:
            blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            while watching.execute(blocked, (slow.info.backend_pid,)).fetchone() is None:
                assert not running.done(), f"it did not wait, and answered {running.result()}"
        commit()
        return running.result()


def test_a_digest_that_closes_waits_for_who_is_about_to_join_it(app: Durably, slow: psycopg.Connection) -> None:
    first, second = routes(app, 2)
    digest, joins = joining(app, first)
    assert app.store.run(joins) == digest
    _, joins = joining(app, second)
    assert app.store.caller(slow).run(joins) == digest

    items = meanwhile(app, slow, close_digest(PLACE, digest), slow.commit)

    assert {one.route for one in items} == {first, second}


def test_who_did_not_join_after_all_is_not_in_it(app: Durably, slow: psycopg.Connection) -> None:
    first, second = routes(app, 2)
    digest, joins = joining(app, first)
    app.store.run(joins)
    app.store.caller(slow).run(joining(app, second)[1])

    items = meanwhile(app, slow, close_digest(PLACE, digest), slow.rollback)

    assert {one.route for one in items} == {first}


def test_who_comes_while_a_digest_closes_opens_the_next_one(app: Durably, slow: psycopg.Connection) -> None:
    first, second = routes(app, 2)
    digest, joins = joining(app, first)
    app.store.run(joins)
    items = app.store.caller(slow).run(close_digest(PLACE, digest))
    own, joins = joining(app, second)

    joined = meanwhile(app, slow, joins, slow.commit)

    assert ([one.route for one in items], joined) == ([first], own)
    assert [task.id for task in app.store.run(get([own]))] == [own]
    assert [one.route for one in app.store.run(close_digest(PLACE, own))] == [second]


def test_two_who_come_first_share_one_digest(app: Durably, slow: psycopg.Connection) -> None:
    first, second = routes(app, 2)
    digest, joins = joining(app, first)
    app.store.caller(slow).run(joins)
    own, joins = joining(app, second)

    joined = meanwhile(app, slow, joins, slow.commit)

    assert joined == digest
    assert app.store.run(get([own])) == []
    assert {one.route for one in app.store.run(close_digest(PLACE, digest))} == {first, second}
