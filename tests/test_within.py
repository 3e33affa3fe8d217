"""A task accepted within the caller's own transaction: with it, or not at all, on every kind of connection."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite
import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from durably.core.delivery import Destination, Message
from durably.core.ids import Ids
from durably.core.moment import HostClock
from durably.core.task import Draft, Scope
from durably.errors import (
    Conflict,
    NoTransaction,
    RetryTransaction,
    SchemaOutdated,
    StoreRejected,
    WrongConnection,
)
from durably.stores.callers.postgres import _admitted
from durably.stores.operations.accept import Accepted, accept, request_cancel
from durably.stores.operations.deliver import publish
from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore
from durably.stores.sqlite.store import SqliteStore
from durably.testing.servers import PostgresServer
from tests.within_kinds import (
    DETECT,
    KINDS,
    ORDERS,
    SPOILED,
    Hand,
    Kind,
    Place,
    PostgresPlace,
    SqlitePlace,
    asyncpg,
    django_for,
    forget_django,
    sqlalchemy_url,
)

pytest_plugins = ["tests.within_table"]

ids = Ids(HostClock(), random.Random(7))


def a_draft(**options: Any) -> Draft:
    return Draft(**{"id": ids.task(None), "name": "greet", "queue": "default", "payload": b'{"name":"Ada"}', **options})


def a_unique_draft(unique: str, fingerprint: str = "f", **options: Any) -> Draft:
    return a_draft(unique_scope=Scope.LIVE, unique_key=unique, fingerprint=fingerprint, **options)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[SqlitePlace]:
    store = SqliteStore(str(tmp_path / "shop.db"))
    store.migrate()
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(ORDERS)
    yield SqlitePlace(store)
    store.close()


@pytest.fixture(scope="module")
def shop(postgres18: PostgresServer) -> Iterator[str]:
    """A database for all tests of this module: making one takes longer than most of them."""
    url = postgres18.create_database("within")
    with closing(PostgresStore(url)) as store, psycopg.connect(url) as connection:
        store.migrate()
        connection.execute(ORDERS)
    yield url
    postgres18.drop_database("within")


@pytest.fixture
def postgres_place(shop: str) -> Iterator[PostgresPlace]:
    with psycopg.connect(shop) as connection:
        connection.execute(
            "TRUNCATE orders, durably.tasks, durably.turns, durably.unique_keys, durably.messages, durably.deliveries, "
            "durably.destinations"
        )
    with closing(PostgresStore(shop)) as store:
        yield PostgresPlace(store)


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: Kind) -> Place:
    name = "sqlite_place" if kind.place is SqlitePlace else "postgres_place"
    found: Place = request.getfixturevalue(name)
    return found


# The table: every kind of connection in every scenario.


async def commit(hand: Hand) -> None:
    """What was accepted is seen by others when the caller commits, and not before."""
    drafts = [
        a_draft(priority=9, tags='["a"]', options=b"{}", once=True),
        a_draft(key="customer-7", due_in=60_000_000, payload=b"\x00\xff"),
        a_unique_draft("first", key="customer-8", expires_in=1_000_000),
    ]
    await hand.order("o-1")

    assert await hand.accept(*drafts) == [Accepted(draft.id) for draft in drafts]
    assert hand.place.tasks() == []
    await hand.commit()

    assert hand.place.tasks() == [draft.id for draft in drafts]
    assert hand.place.orders() == ["o-1"]
    if not hand.awaits:
        found = {task.id: task for task in hand.place.store.run(get([draft.id for draft in drafts]))}
        plain, keyed, unique = (found[draft.id] for draft in drafts)
        assert (plain.payload, plain.priority, plain.tags, plain.once) == (drafts[0].payload, 9, '["a"]', True)
        assert (keyed.payload, keyed.key, keyed.state) == (b"\x00\xff", "customer-7", "delayed")
        assert (unique.unique_key, unique.state) == ("first", "blocked")


async def rollback(hand: Hand) -> None:
    """What was accepted goes with the caller's rollback, even if accepting it was the first that the caller did."""
    await hand.accept(a_draft(), a_unique_draft("first"))
    await hand.order("o-1")
    await hand.rollback()

    assert hand.place.tasks() == []
    assert hand.place.orders() == []
    meta = "durably_unique_keys" if isinstance(hand.place, SqlitePlace) else "durably.unique_keys"
    assert hand.place.rows(f"SELECT count(*) FROM {meta}") == [0]


async def alone(hand: Hand) -> None:
    """The caller need not do anything of its own in the transaction that it commits."""
    draft = a_draft()
    await hand.accept(draft)
    await hand.commit()

    assert hand.place.tasks() == [draft.id]


async def duplicate(hand: Hand) -> None:
    """A unique key that is taken, before or within the transaction, answers with the task that has it."""
    first, second, third, fourth = (a_unique_draft(key) for key in ("old", "old", "new", "new"))
    await before(hand, first)

    assert await hand.accept(second) == [Accepted(first.id, existing=True)]
    assert await hand.accept(third) == [Accepted(third.id)]
    assert await hand.accept(fourth) == [Accepted(third.id, existing=True)]
    await hand.order("o-1")
    await hand.commit()

    assert hand.place.tasks() == [first.id, third.id]
    assert hand.place.orders() == ["o-1"]


async def conflict(hand: Hand) -> None:
    """A conflict leaves the transaction as it was: the caller goes on, and commits."""
    first, other, fresh = a_unique_draft("key", "f"), a_unique_draft("key", "another"), a_draft()
    await before(hand, first)

    await hand.order("o-1")
    [answer] = await hand.accept(other)
    assert isinstance(answer, Conflict)
    assert await hand.accept(fresh) == [Accepted(fresh.id)]
    await hand.order("o-2")
    await hand.commit()

    assert hand.place.tasks() == [first.id, fresh.id]
    assert hand.place.orders() == ["o-1", "o-2"]


async def hostile(hand: Hand) -> None:
    """Whatever the caller set up on the connection does not disturb us, and is still set up afterwards."""
    drafts = [a_draft(once=True), a_unique_draft("key", key="customer-7", tags='["a"]')]
    again = a_unique_draft("key")
    check = await hand.spoil()

    assert await hand.accept(*drafts) == [Accepted(draft.id) for draft in drafts]
    assert await hand.accept(again) == [Accepted(drafts[1].id, existing=True)]
    await check()
    await hand.order("o-1")
    await hand.commit()

    assert hand.place.tasks() == [draft.id for draft in drafts]
    assert hand.place.orders() == ["o-1"]


async def before(hand: Hand, draft: Draft) -> None:
    """Accept a draft on the store's own connection."""
    if asyncio._get_running_loop() is None:
        hand.place.store.run(accept([draft]))
    else:
        await hand.place.store.arun(accept([draft]))


SCENARIOS: dict[str, Callable[[Hand], Coroutine[Any, Any, None]]] = {
    "commit": commit,
    "rollback": rollback,
    "task alone": alone,
    "duplicate key": duplicate,
    "conflict, then on": conflict,
    "hostile settings": hostile,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_task_shares_the_fate_of_the_callers_transaction(
    kind: Kind, scenario: str, place: Place, record_property: Callable[[str, object], None]
) -> None:
    record_property("within", f"{kind.name}|{scenario}")
    kind.run(SCENARIOS[scenario], place)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.parametrize("committed", [True, False], ids=["commit", "rollback"])
def test_a_publication_shares_the_fate_of_the_callers_transaction(kind: Kind, place: Place, committed: bool) -> None:
    async def published(hand: Hand) -> None:
        message = Message(ids.task(None), "kind", b"\x00\xff", headers={"x": "y"})
        drafts = {name: a_draft(key=name) for name in ("a", "b")}
        targets = [Destination("default", name, "post", f"post:{name}") for name in drafts]
        op = publish(message, targets, lambda destination: drafts[destination.name], fresh=True)
        caller = hand.place.store.caller(hand.given)
        await caller.arun(op) if hand.awaits else caller.run(op)
        assert hand.place.tasks() == []
        await (hand.commit() if committed else hand.rollback())

        tables = "durably_" if isinstance(hand.place, SqlitePlace) else "durably."
        assert hand.place.tasks() == ([draft.id for draft in drafts.values()] if committed else [])
        for table, rows in (("messages", 1), ("deliveries", 2), ("destinations", 2)):
            assert hand.place.rows(f"SELECT count(*) FROM {tables}{table}") == [rows if committed else 0]

    kind.run(published, place)


# Which connection, and in which state.


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_method_must_fit_the_connection(kind: Kind, place: Place) -> None:
    async def mixed_up(hand: Hand) -> None:
        caller = hand.place.store.caller(hand.given)
        if hand.awaits:
            with pytest.raises(WrongConnection, match=r"asynchronous: await the method with the 'a' \(aenqueue"):
                caller.run(accept([a_draft()]))
        else:
            with pytest.raises(WrongConnection, match=r"synchronous: call the method without the 'a' \(enqueue"):
                await caller.arun(accept([a_draft()]))

    if not kind.name.startswith("Django"):
        kind.run(mixed_up, place)


@pytest.mark.parametrize("given", [None, "default", object(), sqlite3, sqlalchemy.create_engine("sqlite://")])
def test_what_is_no_connection_is_refused_with_those_that_are(given: object, sqlite_place: SqlitePlace) -> None:
    with pytest.raises(WrongConnection, match="a connection of sqlite3 or aiosqlite, a connection or session of SQLAl"):
        sqlite_place.store.caller(given)
    with pytest.raises(WrongConnection, match="a connection of psycopg 3 or asyncpg, a connection or session of SQLAl"):
        PostgresStore("postgresql://nowhere").caller(given)


def test_a_connection_to_the_other_kind_of_database_is_refused(postgres_place: PostgresPlace) -> None:
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(WrongConnection, match="psycopg 3 or asyncpg"),
    ):
        postgres_place.store.caller(connection)
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(WrongConnection, match=r"given a sqlite3\.Connection"):
        postgres_place.store.caller(connection).run(accept([a_draft()]))
    engine.dispose()


def test_an_observed_connection_is_recognised(sqlite_place: SqlitePlace) -> None:
    class Observed:
        def __init__(self, wrapped: object) -> None:
            self.__wrapped__ = wrapped

    with closing(sqlite3.connect(sqlite_place.path)) as connection, connection:
        sqlite_place.store.caller(Observed(Observed(connection))).run(accept([a_draft()]))
    assert len(sqlite_place.tasks()) == 1


def test_no_library_is_imported_that_the_connection_does_not_come_from(tmp_path: Path) -> None:
    program = """
import sqlite3, sys
from durably.core.task import Draft
from durably.errors import WrongConnection
from durably.stores.operations.accept import accept
from durably.stores.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
store.migrate()
connection = sqlite3.connect(sys.argv[1])
store.caller(connection).run(accept([Draft("01890000-0000-7000-8000-000000000000", "n", "q", b"")]))
try:
    store.caller(object())
except WrongConnection:
    pass
foreign = {"aiosqlite", "asyncpg", "psycopg", "sqlalchemy", "django", "asgiref"} & sys.modules.keys()
sys.exit(f"imported: {foreign}" if foreign else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "bare.db")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# SQLite.


def test_another_file_is_refused(sqlite_place: SqlitePlace, tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(WrongConnection, match=r"a connection to .*other\.db, and the tasks are in .*shop\.db"),
    ):
        sqlite_place.store.caller(other).run(accept([a_draft()]))


def test_the_same_file_by_another_name_is_taken(sqlite_place: SqlitePlace, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(sqlite_place.path)
    uri = f"file:{quote(str(tmp_path))}/./link.db?mode=rw"
    with closing(sqlite3.connect(uri, uri=True)) as connection, connection:
        sqlite_place.store.caller(connection).run(accept([a_draft()]))
    assert len(sqlite_place.tasks()) == 1


def test_a_database_in_memory_is_refused(sqlite_place: SqlitePlace) -> None:
    in_memory = SqliteStore(":memory:")
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(WrongConnection, match="was given a database in memory"):
            sqlite_place.store.caller(connection).run(accept([a_draft()]))
        with pytest.raises(WrongConnection, match="a store in memory, which no other connection can reach"):
            in_memory.caller(connection).run(accept([a_draft()]))


def sqlite_set_ups() -> list[dict[str, Any]]:
    """The ways to set up a sqlite3 connection, and whether it then opens a transaction by itself."""
    found: list[dict[str, Any]] = [
        {"isolation_level": "", "opens": True},
        {"isolation_level": "IMMEDIATE", "opens": True},
        {"isolation_level": None, "opens": False},
    ]
    if sys.version_info >= (3, 12):
        found += [{"autocommit": False, "opens": True}, {"autocommit": True, "opens": False}]
    return found


@pytest.mark.parametrize("set_up", sqlite_set_ups(), ids=str)
def test_sqlite3_needs_a_transaction_that_is_open_or_opens_by_itself(
    set_up: dict[str, Any], sqlite_place: SqlitePlace
) -> None:
    options = {name: value for name, value in set_up.items() if name != "opens"}
    with closing(sqlite3.connect(sqlite_place.path, **options)) as connection:
        caller = sqlite_place.store.caller(connection)
        if set_up["opens"]:
            seen: list[str] = []
            connection.set_trace_callback(seen.append)
            caller.run(accept([a_draft()]))
            assert connection.in_transaction
            begun = [text for text in seen if text.startswith(("BEGIN", "COMMIT", "END"))]
            assert begun == ([f"BEGIN {options['isolation_level']}"] if "isolation_level" in options else [])
            connection.rollback()
            assert sqlite_place.tasks() == []
            caller.run(accept([a_draft()]))
            connection.commit()
        else:
            with pytest.raises(NoTransaction, match="commits every statement by itself"):
                caller.run(accept([a_draft()]))
            assert not connection.in_transaction
            connection.execute("BEGIN")
            caller.run(accept([a_draft()]))
            connection.execute("ROLLBACK")
            assert sqlite_place.tasks() == []
            connection.execute("BEGIN")
            caller.run(accept([a_draft()]))
            connection.execute("COMMIT")
        assert len(sqlite_place.tasks()) == 1


def test_a_cancel_request_goes_with_the_rollback(sqlite_place: SqlitePlace) -> None:
    with closing(sqlite3.connect(sqlite_place.path)) as connection:
        sqlite_place.store.caller(connection).run(request_cancel([a_draft().id], "no longer wanted"))
        connection.rollback()
        assert sqlite_place.rows("SELECT count(*) FROM durably_cancel_requests") == [0]
        sqlite_place.store.caller(connection).run(request_cancel([a_draft().id], "no longer wanted"))
        connection.commit()
        assert sqlite_place.rows("SELECT count(*) FROM durably_cancel_requests") == [1]


def test_a_refused_value_undoes_its_batch_and_nothing_else(sqlite_place: SqlitePlace) -> None:
    spoiled = Draft(ids.task(None), "\ud800", "default", b"")
    with closing(sqlite3.connect(sqlite_place.path)) as connection:
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        with pytest.raises(StoreRejected):
            sqlite_place.store.caller(connection).run(accept([a_draft(), a_unique_draft("key"), spoiled]))
        connection.commit()
    assert sqlite_place.tasks() == []
    assert sqlite_place.rows("SELECT count(*) FROM durably_unique_keys") == [0]
    assert sqlite_place.orders() == ["o-1"]


def test_a_file_without_tables_says_so_and_leaves_the_transaction_usable(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "bare.db"))
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(ORDERS)
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        with pytest.raises(SchemaOutdated, match="durably migrate"):
            store.caller(connection).run(accept([a_draft()]))
        connection.commit()
    assert SqlitePlace(store).orders() == ["o-1"]


def test_a_closed_or_foreign_sqlite_connection_is_refused(sqlite_place: SqlitePlace) -> None:
    connection = sqlite3.connect(sqlite_place.path)
    with ThreadPoolExecutor(1) as elsewhere, pytest.raises(WrongConnection, match="same thread"):
        elsewhere.submit(sqlite_place.store.caller(connection).run, accept([a_draft()])).result()
    connection.close()
    with pytest.raises(WrongConnection, match="closed"):
        sqlite_place.store.caller(connection).run(accept([a_draft()]))


def test_a_read_only_sqlite_connection_is_refused(sqlite_place: SqlitePlace) -> None:
    uri = f"file:{quote(sqlite_place.path)}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True)) as connection,
        pytest.raises(WrongConnection, match="may not write"),
    ):
        sqlite_place.store.caller(connection).run(accept([a_draft()]))


async def test_a_closed_aiosqlite_connection_is_refused(sqlite_place: SqlitePlace) -> None:
    async with aiosqlite.connect(sqlite_place.path) as connection:
        caller = sqlite_place.store.caller(connection)
    with pytest.raises(WrongConnection, match="not open"):
        await caller.arun(accept([a_draft()]))


def test_another_writer_that_stays_in_the_way_means_retry(sqlite_place: SqlitePlace) -> None:
    with (
        closing(sqlite3.connect(sqlite_place.path)) as other,
        closing(sqlite3.connect(sqlite_place.path)) as connection,
    ):
        first = a_unique_draft("key")
        sqlite_place.store.caller(other).run(accept([first]))
        connection.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(RetryTransaction, match="run your transaction again"):
            sqlite_place.store.caller(connection).run(accept([a_unique_draft("key")]))
        connection.rollback()
        other.commit()
        answers = sqlite_place.store.caller(connection).run(accept([a_unique_draft("key")]))
        connection.commit()
    assert answers == [Accepted(first.id, existing=True)]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("begin", ["BEGIN", ""])
def test_a_transaction_that_has_read_nothing_waits_for_another_writer(
    begin: str, ending: str, sqlite_place: SqlitePlace
) -> None:
    first, second = a_unique_draft("key"), a_unique_draft("key")
    trying = threading.Event()

    def try_it() -> list[Accepted | Conflict]:
        with closing(sqlite3.connect(sqlite_place.path, timeout=600)) as connection, connection:
            connection.execute(begin)
            connection.set_trace_callback(lambda text: trying.set() if "durably_" in text else None)
            return sqlite_place.store.caller(connection).run(accept([second]))

    with closing(sqlite3.connect(sqlite_place.path)) as other, ThreadPoolExecutor(1) as elsewhere:
        sqlite_place.store.caller(other).run(accept([first]))
        answers = elsewhere.submit(try_it)
        trying.wait()
        other.commit() if ending == "commit" else other.rollback()
        expected = Accepted(first.id, existing=True) if ending == "commit" else Accepted(second.id)
        assert answers.result() == [expected]
    assert sqlite_place.tasks() == [first.id if ending == "commit" else second.id]


def test_converters_for_the_types_of_our_columns_are_not_asked(sqlite_place: SqlitePlace) -> None:
    first, second = a_unique_draft("key"), a_unique_draft("key")
    types = ("TEXT", "INTEGER", "BLOB")
    for declared in types:
        sqlite3.register_converter(declared, lambda data: SPOILED)
    try:
        with closing(sqlite3.connect(sqlite_place.path, detect_types=DETECT)) as connection, connection:
            caller = sqlite_place.store.caller(connection)
            assert caller.run(accept([first])) == [Accepted(first.id)]
            assert caller.run(accept([second])) == [Accepted(first.id, existing=True)]
    finally:
        for declared in types:
            del vars(sqlite3)["converters"][declared]


def test_an_adapter_for_bool_does_not_see_ours(sqlite_place: SqlitePlace) -> None:
    sqlite3.register_adapter(bool, str)
    try:
        with closing(sqlite3.connect(sqlite_place.path)) as connection, connection:
            sqlite_place.store.caller(connection).run(accept([a_draft(once=True)]))
    finally:
        del vars(sqlite3)["adapters"][bool, sqlite3.PrepareProtocol]
    assert sqlite_place.rows("SELECT typeof(once) || once FROM durably_tasks") == ["integer1"]


# PostgreSQL.


@contextmanager
def another_database(place: PostgresPlace, name: str, template: str) -> Iterator[str]:
    """The address of another database on the same server, for the block."""
    parts = {**conninfo_to_dict(place.url), "dbname": "postgres"}
    with psycopg.connect(**parts, autocommit=True) as server:  # type: ignore[arg-type]
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        yield psycopg.conninfo.make_conninfo(place.url, dbname=name)
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def test_another_database_is_refused_and_its_transaction_stays_usable(postgres_place: PostgresPlace) -> None:
    with another_database(postgres_place, "within_empty", "template0") as url, psycopg.connect(url) as connection:
        connection.execute(ORDERS)
        with pytest.raises(WrongConnection, match=r"'within_empty', which has no durably\.meta: the tasks are in"):
            postgres_place.store.caller(connection).run(accept([a_draft()]))
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        connection.commit()
        assert connection.execute("SELECT name FROM orders").fetchall() == [("o-1",)]


def test_a_copy_of_the_database_is_refused(postgres_place: PostgresPlace) -> None:
    postgres_place.store.close()
    original = str(conninfo_to_dict(postgres_place.url)["dbname"])
    with another_database(postgres_place, "within_copy", original) as url, psycopg.connect(url) as connection:
        with pytest.raises(WrongConnection, match="another database"):
            postgres_place.store.caller(connection).run(accept([a_draft()]))
        assert connection.execute("SELECT count(*) FROM durably.tasks").fetchall() == [(0,)]


def test_another_schema_is_refused(postgres_place: PostgresPlace) -> None:
    elsewhere = PostgresStore(postgres_place.url, schema="elsewhere")
    with psycopg.connect(postgres_place.url) as connection:
        with pytest.raises(WrongConnection, match=r"which has no elsewhere\.meta"):
            elsewhere.caller(connection).run(accept([a_draft()]))
        elsewhere.migrate()
        connection.rollback()
        elsewhere.caller(connection).run(accept([a_draft()]))
        connection.commit()
        assert postgres_place.rows("SELECT count(*) FROM elsewhere.tasks") == [1]
        connection.execute("DROP SCHEMA elsewhere CASCADE")
    assert postgres_place.tasks() == []
    elsewhere.close()


def test_a_role_without_rights_is_told_which_it_lacks(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url) as connection:
        connection.execute("CREATE ROLE within_stranger")
        connection.execute("SET LOCAL ROLE within_stranger")
        with pytest.raises(
            WrongConnection, match=r"role 'within_stranger', which lacks SELECT on durably\.meta: grant"
        ):
            postgres_place.store.caller(connection).run(accept([a_draft()]))
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        connection.rollback()


def test_psycopg_needs_a_transaction_that_is_open_or_opens_by_itself(postgres_place: PostgresPlace) -> None:
    with closing(psycopg.connect(postgres_place.url, autocommit=True)) as connection:
        caller = postgres_place.store.caller(connection)
        with pytest.raises(NoTransaction, match=r"connection\.transaction\(\)"):
            caller.run(accept([a_draft()]))
        with connection.transaction(force_rollback=True):
            caller.run(accept([a_draft()]))
        assert postgres_place.tasks() == []
        with connection.transaction():
            caller.run(accept([a_draft()]))
        assert len(postgres_place.tasks()) == 1


def test_psycopg_in_a_pipeline(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url) as connection, connection.pipeline():
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        postgres_place.store.caller(connection).run(accept([a_unique_draft("key")]))
        connection.execute("INSERT INTO orders VALUES ('o-2')")
    assert len(postgres_place.tasks()) == 1
    assert postgres_place.orders() == ["o-1", "o-2"]


async def test_asyncpg_needs_an_open_transaction(postgres_place: PostgresPlace) -> None:
    connection = await asyncpg.connect(postgres_place.url)
    caller = postgres_place.store.caller(connection)
    with pytest.raises(NoTransaction, match=r"connection\.transaction\(\)"):
        await caller.arun(accept([a_draft()]))
    await connection.close()
    with pytest.raises(WrongConnection, match="closed"):
        await caller.arun(accept([a_draft()]))


async def test_a_connection_that_went_back_to_its_pool_is_refused(postgres_place: PostgresPlace) -> None:
    async with asyncpg.create_pool(postgres_place.url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection:
            caller = postgres_place.store.caller(connection)
        with pytest.raises(WrongConnection, match="released"):
            await caller.arun(accept([a_draft()]))


@pytest.mark.parametrize("name", ["psycopg", "psycopg async", "asyncpg", "SQLAlchemy AsyncSession, asyncpg"])
def test_a_failed_transaction_is_named(name: str, postgres_place: PostgresPlace) -> None:
    async def scenario(hand: Hand) -> None:
        await hand.accept(a_draft())
        with pytest.raises(Exception, match="division by zero"):
            await hand.do("SELECT 1 / 0")
        with pytest.raises(NoTransaction, match="has failed"):
            await hand.accept(a_draft())
        await hand.rollback()
        assert hand.place.tasks() == []

    [kind] = [kind for kind in KINDS if kind.name == name]
    kind.run(scenario, postgres_place)


@pytest.mark.parametrize("name", ["psycopg", "asyncpg"])
def test_a_read_only_transaction_is_named(name: str, postgres_place: PostgresPlace) -> None:
    async def scenario(hand: Hand) -> None:
        await hand.do("SET TRANSACTION READ ONLY")
        with pytest.raises(NoTransaction, match="read-only"):
            await hand.accept(a_draft())
        await hand.rollback()

    [kind] = [kind for kind in KINDS if kind.name == name]
    kind.run(scenario, postgres_place)


def test_a_closed_psycopg_connection_is_refused(postgres_place: PostgresPlace) -> None:
    connection = psycopg.connect(postgres_place.url)
    connection.close()
    with pytest.raises(WrongConnection, match="closed"):
        postgres_place.store.caller(connection).run(accept([a_draft()]))


def test_a_value_that_psycopg_refuses_leaves_the_transaction_usable(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url) as connection:
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        with pytest.raises(StoreRejected):
            postgres_place.store.caller(connection).run(accept([Draft(ids.task(None), "\0", "default", b"")]))
    assert postgres_place.orders() == ["o-1"]


def test_a_connection_is_checked_once_and_not_kept_alive(postgres_place: PostgresPlace) -> None:
    connection = psycopg.connect(postgres_place.url)
    caller = postgres_place.store.caller(connection)
    caller.run(accept([a_draft()]))
    connection.execute("ALTER TABLE durably.meta RENAME TO hidden")
    caller.run(accept([a_draft()]))
    assert connection in _admitted
    connection.close()
    del caller, connection
    gc.collect()
    assert not any(isinstance(kept, psycopg.Connection) for kept in _admitted)


# Transactions that meet on one unique key.


def blocked(place: PostgresPlace, pid: int) -> bool:
    """Whether the session with this process id waits for another one."""
    return place.rows(f"SELECT pid FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'") == [pid]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_the_second_of_two_open_transactions_waits_for_the_first(
    ending: str, isolation: str, postgres_place: PostgresPlace
) -> None:
    first, second = a_unique_draft("key"), a_unique_draft("key")
    with (
        psycopg.connect(postgres_place.url) as one,
        psycopg.connect(postgres_place.url) as other,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        other.execute(f"SET default_transaction_isolation = '{isolation}'".encode())
        other.commit()
        postgres_place.store.caller(one).run(accept([first]))
        answers = elsewhere.submit(postgres_place.store.caller(other).run, accept([second]))
        while not blocked(postgres_place, other.info.backend_pid):
            assert not answers.done()
        one.commit() if ending == "commit" else one.rollback()
        if ending == "rollback":
            assert answers.result() == [Accepted(second.id)]
        elif isolation == "READ COMMITTED":
            assert answers.result() == [Accepted(first.id, existing=True)]
        else:
            with pytest.raises(RetryTransaction, match="run your transaction again"):
                answers.result()
            other.rollback()
            again = postgres_place.store.caller(other).run(accept([second]))
            assert again == [Accepted(first.id, existing=True)]
    assert postgres_place.tasks() == [first.id if ending == "commit" else second.id]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_the_second_of_two_tasks_waits_for_the_first(ending: str, postgres_place: PostgresPlace) -> None:
    first, second = a_unique_draft("key"), a_unique_draft("key")
    one, other = await asyncpg.connect(postgres_place.url), await asyncpg.connect(postgres_place.url)
    holding, waiting = one.transaction(), other.transaction()
    await holding.start()
    await waiting.start()
    await postgres_place.store.caller(one).arun(accept([first]))
    answers = asyncio.create_task(postgres_place.store.caller(other).arun(accept([second])))
    while not await asyncio.to_thread(blocked, postgres_place, other.get_server_pid()):
        assert not answers.done()
    await (holding.commit() if ending == "commit" else holding.rollback())
    expected = Accepted(first.id, existing=True) if ending == "commit" else Accepted(second.id)
    assert await answers == [expected]
    await waiting.commit()
    await one.close()
    await other.close()
    await postgres_place.store.aclose()


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_from_before_the_key_was_taken_means_retry(isolation: str, postgres_place: PostgresPlace) -> None:
    first, second, plain = a_unique_draft("key"), a_unique_draft("key"), a_draft()
    with psycopg.connect(postgres_place.url) as connection:
        caller = postgres_place.store.caller(connection)
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        connection.execute("SELECT count(*) FROM orders")
        postgres_place.store.run(accept([first]))
        with pytest.raises(RetryTransaction, match="run your transaction again"):
            caller.run(accept([second]))
        connection.rollback()
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        assert caller.run(accept([second, plain])) == [Accepted(first.id, existing=True), Accepted(plain.id)]
        connection.commit()
    assert postgres_place.tasks() == [first.id, plain.id]


def test_a_deadlock_on_two_keys_means_retry_for_one_of_them(postgres_place: PostgresPlace) -> None:
    with (
        psycopg.connect(postgres_place.url) as one,
        psycopg.connect(postgres_place.url) as other,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        one.execute("SET LOCAL deadlock_timeout = '1ms'")
        other.execute("SET LOCAL deadlock_timeout = '1h'")
        postgres_place.store.caller(one).run(accept([a_unique_draft("a")]))
        postgres_place.store.caller(other).run(accept([a_unique_draft("b")]))
        answers = elsewhere.submit(postgres_place.store.caller(other).run, accept([a_unique_draft("a")]))
        while not blocked(postgres_place, other.info.backend_pid):
            assert not answers.done()
        with pytest.raises(RetryTransaction, match="deadlock"):
            postgres_place.store.caller(one).run(accept([a_unique_draft("b")]))
        one.rollback()
        [answer] = answers.result()
        assert answer == Accepted(answer.id) if isinstance(answer, Accepted) else pytest.fail(str(answer))
    assert len(postgres_place.tasks()) == 2


def test_a_lock_timeout_means_retry(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url) as one, psycopg.connect(postgres_place.url) as other:
        postgres_place.store.caller(one).run(accept([a_unique_draft("key")]))
        other.execute("SET LOCAL lock_timeout = '1ms'")
        with pytest.raises(RetryTransaction, match="lock timeout"):
            postgres_place.store.caller(other).run(accept([a_unique_draft("key")]))


# SQLAlchemy.


def test_a_session_is_not_flushed(postgres_place: PostgresPlace) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        name: Mapped[str] = mapped_column(primary_key=True)

    engine = sqlalchemy.create_engine(sqlalchemy_url(postgres_place, "psycopg"))
    with Session(engine) as session, session.begin():
        order = Order(name="o-1")
        session.add(order)
        postgres_place.store.caller(session).run(accept([a_draft()]))
        assert order in session.new
    assert postgres_place.orders() == ["o-1"]
    assert len(postgres_place.tasks()) == 1
    engine.dispose()


def test_a_savepoint_of_the_session_takes_back_what_was_accepted_in_it(postgres_place: PostgresPlace) -> None:
    kept, dropped = a_draft(), a_draft()
    engine = sqlalchemy.create_engine(sqlalchemy_url(postgres_place, "psycopg"))
    with Session(engine) as session, session.begin():
        postgres_place.store.caller(session).run(accept([kept]))
        with session.begin_nested() as savepoint:
            postgres_place.store.caller(session).run(accept([dropped]))
            savepoint.rollback()
    assert postgres_place.tasks() == [kept.id]
    engine.dispose()


@pytest.mark.parametrize("driver", ["pysqlite", "psycopg"])
def test_a_connection_in_autocommit_has_no_transaction(driver: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue("sqlite_place" if driver == "pysqlite" else "postgres_place")
    engine = sqlalchemy.create_engine(sqlalchemy_url(place, driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(NoTransaction):
        place.store.caller(connection).run(accept([a_draft()]))
    assert place.tasks() == []
    engine.dispose()


@pytest.mark.parametrize("driver", ["aiosqlite", "psycopg_async", "asyncpg"])
async def test_an_async_connection_in_autocommit_has_no_transaction(
    driver: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue("sqlite_place" if driver == "aiosqlite" else "postgres_place")
    engine = create_async_engine(sqlalchemy_url(place, driver), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(NoTransaction):
            await place.store.caller(connection).arun(accept([a_draft()]))
    assert place.tasks() == []
    await engine.dispose()


def test_a_session_without_a_usable_transaction_is_named(postgres_place: PostgresPlace) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(postgres_place, "psycopg"))
    with Session(engine, autobegin=False) as session, pytest.raises(NoTransaction, match="Autobegin is disabled"):
        postgres_place.store.caller(session).run(accept([a_draft()]))
    with Session() as session, pytest.raises(WrongConnection, match="not bound to"):
        postgres_place.store.caller(session).run(accept([a_draft()]))
    connection = engine.connect()
    connection.close()
    with pytest.raises(WrongConnection, match="closed"):
        postgres_place.store.caller(connection).run(accept([a_draft()]))
    engine.dispose()


async def test_the_synchronous_face_of_an_async_session_needs_run_sync(postgres_place: PostgresPlace) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_place, "asyncpg"))
    async with AsyncSession(engine) as session:
        await session.connection()
        with pytest.raises(WrongConnection, match="greenlet_spawn"):
            postgres_place.store.caller(session.sync_session).run(accept([a_draft()]))
    await engine.dispose()
    await postgres_place.store.aclose()


def test_a_recipe_that_begins_by_an_event_is_taken(sqlite_place: SqlitePlace) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(sqlite_place, "pysqlite"))

    @sqlalchemy.event.listens_for(engine, "connect")
    def manual(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.connect() as connection:
        sqlite_place.store.caller(connection).run(accept([a_draft()]))
        connection.rollback()
        assert sqlite_place.tasks() == []
        sqlite_place.store.caller(connection).run(accept([a_draft()]))
        connection.commit()
    assert len(sqlite_place.tasks()) == 1
    engine.dispose()


# Django.


@pytest.fixture(params=["sqlite_place", "postgres_place"])
def django_db(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Place]]:
    place: Place = request.getfixturevalue(request.param)
    yield django_for(place), place
    forget_django()


def test_django_needs_an_atomic_block(django_db: tuple[Any, Place]) -> None:
    db, place = django_db
    for connection in (db.connection, db.connections["default"]):
        with pytest.raises(NoTransaction, match=r"transaction\.atomic\(\)"):
            place.store.caller(connection).run(accept([a_draft()]))
        with db.transaction.atomic():
            place.store.caller(connection).run(accept([a_draft()]))
    assert len(place.tasks()) == 2


def test_an_inner_atomic_block_takes_back_what_was_accepted_in_it(django_db: tuple[Any, Place]) -> None:
    db, place = django_db
    kept, dropped = a_draft(), a_draft()
    with db.transaction.atomic():
        place.store.caller(db.connection).run(accept([kept]))
        with db.transaction.atomic():
            place.store.caller(db.connection).run(accept([dropped]))
            db.transaction.set_rollback(True)
    assert place.tasks() == [kept.id]


def test_an_atomic_block_that_has_failed_is_named(django_db: tuple[Any, Place]) -> None:
    db, place = django_db
    with db.transaction.atomic():
        db.transaction.set_rollback(True)
        with pytest.raises(NoTransaction, match="has failed"):
            place.store.caller(db.connection).run(accept([a_draft()]))
    assert place.tasks() == []


def test_django_rolls_back_a_transaction_that_must_be_retried(postgres_place: PostgresPlace) -> None:
    db = django_for(postgres_place)
    with psycopg.connect(postgres_place.url) as one:
        postgres_place.store.caller(one).run(accept([a_unique_draft("key")]))
        with db.transaction.atomic():
            with db.connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('o-1')")
                cursor.execute("SET LOCAL lock_timeout = '1ms'")
            with pytest.raises(RetryTransaction):
                postgres_place.store.caller(db.connection).run(accept([a_unique_draft("key")]))
            assert db.connection.needs_rollback
    assert postgres_place.orders() == []
    forget_django()


def test_djangos_cache_is_no_connection(sqlite_place: SqlitePlace) -> None:
    django_for(sqlite_place)
    cache = import_module("django.core.cache").cache
    with pytest.raises(WrongConnection, match="not a database's"):
        sqlite_place.store.caller(cache).run(accept([a_draft()]))


# The table has no empty cell.


NEEDED = {
    *("sqlite3", "aiosqlite", "psycopg", "psycopg async", "asyncpg", "asyncpg pool"),
    *(f"SQLAlchemy {face}, {driver}" for face in ("Connection", "Session") for driver in ("pysqlite", "psycopg")),
    *(
        f"SQLAlchemy {face}, {driver}"
        for face in ("AsyncConnection", "AsyncSession")
        for driver in ("aiosqlite", "psycopg", "asyncpg")
    ),
    *("Django, sqlite", "Django, postgresql", "Django async, sqlite", "Django async, postgresql"),
}


def test_the_table_has_no_empty_cell(request: pytest.FixtureRequest) -> None:
    assert {kind.name for kind in KINDS} >= NEEDED
    table: Any = request.config.pluginmanager.get_plugin("tests.within_table")
    asked_for = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    cells = {(params["kind"].name, params["scenario"]) for params in asked_for if params.keys() >= {"kind", "scenario"}}
    assert cells <= {cell for cell, outcome in table.outcomes.items() if outcome != "skipped"}
