"""`at_once` within a transaction: the first attempts follow its commit, where its connection can tell of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Delivery
from durably.stores.sqlite.store import SqliteStore
from tests.within_kinds import Place, PostgresPlace, SqlitePlace, django_for, forget_django, sqlalchemy_url


class Post:
    """A channel that keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.arrived = asyncio.Event()

    async def deliver(self, delivery: Delivery) -> Outcome:
        self.seen.append(delivery.message.body)
        self.arrived.set()
        return Outcome(kind=Kind.OK, reason="taken")


@pytest.fixture
def post(app: Durably) -> Post:
    post = app.deliveries.channels["post"] = Post()
    app.deliveries.destinations.add("a", "post:a", channel="post")
    return post


@pytest.fixture
def place(app: Durably) -> Place:
    store: Any = app.store
    return SqlitePlace(store) if isinstance(store, SqliteStore) else PostgresPlace(store)


@pytest.fixture
def engine(place: Place) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(
        sqlalchemy_url(place, "psycopg" if isinstance(place, PostgresPlace) else "pysqlite")
    )
    yield made
    made.dispose()


@pytest.fixture
def django(place: Place) -> Iterator[Any]:
    yield django_for(place)
    forget_django()


@pytest.mark.parametrize("scoped", [False, True])
def test_a_session_of_sqlalchemy_tells(app: Durably, post: Post, engine: sqlalchemy.Engine, scoped: bool) -> None:
    session: Any = scoped_session(sessionmaker(engine)) if scoped else Session(engine)
    for number in range(2):
        app.deliveries.publish("n", number, "a", within=session, at_once=True)
        with session.begin_nested():
            app.deliveries.publish("n", 10 + number, "a", within=session, at_once=True)
        assert len(post.seen) == 2 * number, "a savepoint is no commit"
        session.commit()
        app.drain()
    session.close()

    assert post.seen == [b"0", b"10", b"1", b"11"]


def test_what_is_rolled_back_is_not_tried(app: Durably, post: Post, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        app.deliveries.publish("n", 1, "a", within=session, at_once=True)
        session.rollback()
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()

    assert post.seen == []
    assert app.deliveries.destinations.pending("a") == []


def test_the_first_attempt_precedes_every_worker(app: Durably, post: Post, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        sent = app.deliveries.publish("n", 1, "a", within=session, at_once=True)
        session.commit()

    assert post.seen == [b"1"]
    assert [str(one.info and one.info.state) for one in app.deliveries.report(sent.id)] == ["done"]


def test_an_asynchronous_session_tells_and_waits_for_nothing(app: Durably, place: Place, post: Post) -> None:
    driver = "psycopg" if isinstance(place, PostgresPlace) else "aiosqlite"

    async def story() -> None:
        engine = create_async_engine(sqlalchemy_url(place, driver))
        async with AsyncSession(engine) as session:
            await app.deliveries.apublish("n", 1, "a", within=session, at_once=True)
            assert post.seen == []
            await session.commit()
            await post.arrived.wait()
        await app.aclose()
        await engine.dispose()

    asyncio.run(story())
    assert post.seen == [b"1"]


def test_django_tells(app: Durably, post: Post, django: Any) -> None:
    with django.transaction.atomic():
        app.deliveries.publish("n", 1, "a", within=django.connection, at_once=True)
        assert post.seen == []
    assert post.seen == [b"1"]

    with django.transaction.atomic():
        app.deliveries.publish("n", 2, "a", within=django.connection, at_once=True)
        django.transaction.set_rollback(True)
    assert post.seen == [b"1"]


def test_a_connection_that_cannot_tell_leaves_it_to_the_workers(app: Durably, post: Post, place: Place) -> None:
    connection: Any = sqlite3.connect(place.path) if isinstance(place, SqlitePlace) else psycopg.connect(place.url)
    connection.execute("BEGIN")
    app.deliveries.publish("n", 1, "a", within=connection, at_once=True)
    connection.commit()
    connection.close()

    assert post.seen == []
    app.drain()
    assert post.seen == [b"1"]


def test_what_goes_wrong_after_the_commit_changes_nothing_about_it(
    app: Durably, post: Post, engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sent: Any) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(app.deliveries, "_try_soon", broken)
    with Session(engine) as session:
        app.deliveries.publish("n", 1, "a", within=session, at_once=True)
        session.commit()
    app.drain()

    assert post.seen == [b"1"]
