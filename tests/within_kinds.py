"""Every kind of connection that `within=` takes, each in the hands of a caller with a table of its own.

A caller's side is written as coroutines. Those of a synchronous connection never wait for anything, and are run
without an event loop, as its application would.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import aiosqlite
import psycopg
import sqlalchemy
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from durably.core.task import Draft
from durably.errors import Conflict
from durably.stores.operations.accept import Accepted, accept
from durably.stores.postgres.store import PostgresStore
from durably.stores.sqlite.store import SqliteStore

asyncpg: Any = import_module("asyncpg")

T = TypeVar("T")
Check = Callable[[], Awaitable[None]]

ORDERS = "CREATE TABLE orders (name text)"
SPOILED = "spoiled"


@dataclass
class SqlitePlace:
    """A store in a file, beside the application's own table."""

    store: SqliteStore

    @property
    def path(self) -> str:
        return self.store.path

    def rows(self, query: str) -> list[Any]:
        """What a bystander sees: the first column."""
        connection = sqlite3.connect(self.path)
        try:
            return [row[0] for row in connection.execute(query).fetchall()]
        finally:
            connection.close()

    def tasks(self) -> list[str]:
        return [str(task) for task in self.rows("SELECT id FROM durably_tasks ORDER BY seq")]

    def orders(self) -> list[str]:
        return [str(name) for name in self.rows("SELECT name FROM orders ORDER BY rowid")]


@dataclass
class PostgresPlace:
    """A store in a database, beside the application's own table."""

    store: PostgresStore

    @property
    def url(self) -> str:
        return self.store.url

    def rows(self, query: str) -> list[Any]:
        """What a bystander sees: the first column."""
        with psycopg.connect(self.url) as connection:
            return [row[0] for row in connection.execute(query.encode()).fetchall()]

    def tasks(self) -> list[str]:
        return [str(task) for task in self.rows("SELECT id FROM durably.tasks ORDER BY seq")]

    def orders(self) -> list[str]:
        return [str(name) for name in self.rows("SELECT name FROM orders ORDER BY ctid")]


Place = SqlitePlace | PostgresPlace


@dataclass
class Hand:
    """A caller: the connection that it gives, and what it does with it itself."""

    place: Place
    given: Any
    awaits: bool
    do: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]
    spoil: Callable[[], Awaitable[Check]]
    """Set the connection up in a hostile way; the answer checks that it still is set up so, and undoes it."""

    async def accept(self, *drafts: Draft) -> list[Accepted | Conflict]:
        caller = self.place.store.caller(self.given)
        return await caller.arun(accept(drafts)) if self.awaits else caller.run(accept(drafts))

    async def order(self, name: str) -> None:
        await self.do(f"INSERT INTO orders VALUES ('{name}')")


class Kind(NamedTuple):
    """A kind of connection; `waits` if its caller needs an event loop."""

    name: str
    place: type[SqlitePlace] | type[PostgresPlace]
    waits: bool
    open: Callable[[Any], AbstractAsyncContextManager[Hand]]

    def run(self, scenario: Callable[[Hand], Coroutine[Any, Any, T]], place: Place) -> T:
        """Play a scenario with a hand of this kind."""

        async def play() -> T:
            async with self.open(place) as hand:
                answer = await scenario(hand)
            if self.waits:
                await place.store.aclose()
            return answer

        return asyncio.run(play()) if self.waits else without_loop(play())


def without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    coroutine.close()
    raise AssertionError("a synchronous caller waited for an event loop")


def at_once(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """A synchronous function where a coroutine function is asked for."""

    async def call(*args: Any) -> T:
        return function(*args)

    return call


# Hostile set-ups, one per driver.


def spoil_sqlite(connection: Any) -> Check:
    """Rows and text come out as something else."""
    connection.row_factory = lambda cursor, row: SPOILED
    connection.text_factory = lambda data: SPOILED
    rows, text = connection.row_factory, connection.text_factory

    async def check() -> None:
        assert connection.row_factory is rows
        assert connection.text_factory is text
        connection.row_factory = None
        connection.text_factory = str

    return check


DETECT = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES


class SpoiledLoader(Loader):
    def load(self, data: Any) -> str:
        return SPOILED


class RefusingDumper(Dumper):
    def dump(self, obj: Any) -> bytes:
        raise AssertionError(f"the application's dumper was asked for {obj!r}")


def spoil_psycopg(connection: Any) -> Check:
    """Rows and values come out as something else, values go in not at all, and queries are made on the client."""
    factories = connection.row_factory, connection.cursor_factory
    plain = connection.adapters
    connection._adapters = psycopg.adapt.AdaptersMap(plain)
    for name in ("text", "int4", "int8", "bool", "bytea", "uuid", "json", "jsonb"):
        connection.adapters.register_loader(name, SpoiledLoader)
    for cls in (str, int, bool, bytes, list, dict):
        connection.adapters.register_dumper(cls, RefusingDumper)
    waits = isinstance(connection, psycopg.AsyncConnection)
    connection.cursor_factory = psycopg.AsyncClientCursor if waits else psycopg.ClientCursor
    connection.row_factory = spoiled_row
    spoiled = connection.row_factory, connection.cursor_factory, connection.adapters

    async def check() -> None:
        assert (connection.row_factory, connection.cursor_factory, connection.adapters) == spoiled
        cursor = connection.execute("SELECT 'plain'::text")
        if waits:
            assert await (await cursor).fetchone() == ([SPOILED],)
        else:
            assert cursor.fetchone() == ([SPOILED],)
        connection.row_factory, connection.cursor_factory = factories
        connection._adapters = plain

    return check


def spoiled_row(cursor: Any) -> Callable[[Any], Any]:
    return lambda values: (list(values),)


class SpoiledRecord(asyncpg.Record):  # type: ignore[misc]
    """A record that does not say what is in it."""

    def __iter__(self) -> Iterator[str]:
        return iter([SPOILED])


async def spoil_asyncpg(connection: Any) -> Check:
    """What comes out of json, jsonb and uuid is something else, and nothing can be put in."""

    def refuse(value: Any) -> str:
        raise AssertionError(f"the application's codec was asked for {value!r}")

    for name in ("json", "jsonb", "uuid"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=refuse, decoder=lambda data: SPOILED, format="text"
        )

    async def check() -> None:
        row = await connection.fetchrow("SELECT '{}'::json, '{}'::jsonb, gen_random_uuid()")
        assert [row[0], row[1], row[2]] == [SPOILED] * 3
        for name in ("json", "jsonb", "uuid"):
            await connection.reset_type_codec(name, schema="pg_catalog")

    return check


# Drivers.


@asynccontextmanager
async def open_sqlite3(place: SqlitePlace) -> AsyncIterator[Hand]:
    connection = sqlite3.connect(place.path, detect_types=DETECT)
    try:
        yield Hand(
            place,
            connection,
            False,
            at_once(connection.execute),
            at_once(connection.commit),
            at_once(connection.rollback),
            at_once(lambda: spoil_sqlite(connection)),
        )
    finally:
        connection.close()


@asynccontextmanager
async def open_aiosqlite(place: SqlitePlace) -> AsyncIterator[Hand]:
    async with aiosqlite.connect(place.path, detect_types=DETECT) as connection:

        async def do(text: str) -> None:
            await connection.execute(text)

        yield Hand(
            place,
            connection,
            True,
            do,
            connection.commit,
            connection.rollback,
            at_once(lambda: spoil_sqlite(connection)),
        )


@asynccontextmanager
async def open_psycopg(place: PostgresPlace) -> AsyncIterator[Hand]:
    connection = psycopg.connect(place.url)
    try:
        yield Hand(
            place,
            connection,
            False,
            at_once(lambda text: connection.execute(text.encode())),
            at_once(connection.commit),
            at_once(connection.rollback),
            at_once(lambda: spoil_psycopg(connection)),
        )
    finally:
        connection.close()


@asynccontextmanager
async def open_psycopg_async(place: PostgresPlace) -> AsyncIterator[Hand]:
    connection = await psycopg.AsyncConnection.connect(place.url)
    try:
        yield Hand(
            place,
            connection,
            True,
            lambda text: connection.execute(text.encode()),
            connection.commit,
            connection.rollback,
            at_once(lambda: spoil_psycopg(connection)),
        )
    finally:
        await connection.close()


@asynccontextmanager
async def open_asyncpg(place: PostgresPlace) -> AsyncIterator[Hand]:
    connection = await asyncpg.connect(place.url, record_class=SpoiledRecord)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Hand(
            place,
            connection,
            True,
            connection.execute,
            transaction.commit,
            transaction.rollback,
            lambda: spoil_asyncpg(connection),
        )
    finally:
        await connection.close()


@asynccontextmanager
async def open_asyncpg_pool(place: PostgresPlace) -> AsyncIterator[Hand]:
    async with (
        asyncpg.create_pool(place.url, min_size=1, max_size=1, record_class=SpoiledRecord) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Hand(
            place,
            connection,
            True,
            connection.execute,
            transaction.commit,
            transaction.rollback,
            lambda: spoil_asyncpg(connection),
        )


# SQLAlchemy.


def sqlalchemy_url(place: Place, driver: str) -> sqlalchemy.URL:
    if isinstance(place, SqlitePlace):
        return sqlalchemy.URL.create(f"sqlite+{driver}", database=place.path)
    return sqlalchemy.make_url(place.url).set(drivername=f"postgresql+{driver}")


def engine_options(place: Place) -> dict[str, Any]:
    return {"connect_args": {"detect_types": DETECT}} if isinstance(place, SqlitePlace) else {}


async def spoil_driver(connection: Any) -> Check:
    if asyncpg.Connection in type(connection).__mro__:
        return await spoil_asyncpg(connection)
    return spoil_psycopg(connection) if hasattr(connection, "adapters") else spoil_sqlite(connection)


def sqlalchemy_hand(place: Place, given: Any, connection: sqlalchemy.Connection) -> Hand:
    async def spoil() -> Check:
        return await spoil_driver(connection.connection.driver_connection)

    return Hand(
        place,
        given,
        False,
        at_once(lambda text: given.execute(sqlalchemy.text(text))),
        at_once(given.commit),
        at_once(given.rollback),
        spoil,
    )


def sqlalchemy_connection(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(place, driver), **engine_options(place))
        with engine.connect() as connection:
            yield sqlalchemy_hand(place, connection, connection)
        engine.dispose()

    return opened


def sqlalchemy_session(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(place, driver), **engine_options(place))
        with Session(engine) as session:
            yield sqlalchemy_hand(place, session, session.connection())
        engine.dispose()

    return opened


def sqlalchemy_scoped_session(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(place, driver), **engine_options(place))
        session = scoped_session(sessionmaker(engine))
        yield sqlalchemy_hand(place, session, session.connection())
        session.remove()
        engine.dispose()

    return opened


def async_sqlalchemy_hand(place: Place, given: AsyncConnection | AsyncSession) -> Hand:
    async def spoil() -> Check:
        connection = given if isinstance(given, AsyncConnection) else await given.connection()
        return await spoil_driver((await connection.get_raw_connection()).driver_connection)

    return Hand(
        place, given, True, lambda text: given.execute(sqlalchemy.text(text)), given.commit, given.rollback, spoil
    )


def sqlalchemy_async_connection(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = create_async_engine(sqlalchemy_url(place, driver), **engine_options(place))
        async with engine.connect() as connection:
            yield async_sqlalchemy_hand(place, connection)
        await engine.dispose()

    return opened


def sqlalchemy_async_session(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = create_async_engine(sqlalchemy_url(place, driver), **engine_options(place))
        async with AsyncSession(engine) as session:
            yield async_sqlalchemy_hand(place, session)
        await engine.dispose()

    return opened


def sqlalchemy_run_sync(driver: str) -> Callable[[Any], AbstractAsyncContextManager[Hand]]:
    """The synchronous face of an AsyncSession, inside `run_sync`."""

    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Hand]:
        engine = create_async_engine(sqlalchemy_url(place, driver), **engine_options(place))
        async with AsyncSession(engine) as session:
            hand = async_sqlalchemy_hand(place, session)

            async def accepted(*drafts: Draft) -> list[Accepted | Conflict]:
                return await session.run_sync(lambda inner: place.store.caller(inner).run(accept(drafts)))

            hand.accept = accepted  # type: ignore[method-assign]
            yield hand
        await engine.dispose()

    return opened


# Django.


def django_database(place: Place) -> dict[str, Any]:
    if isinstance(place, SqlitePlace):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": place.path}
    parts = conninfo_to_dict(place.url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts.get("port") or "",
    }


def django_for(place: Place) -> Any:
    """The module django.db, with this place as its default database."""
    conf = import_module("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(DATABASES={"default": {}}, USE_TZ=True)
        import_module("django").setup()
    db = import_module("django.db")
    db.connections.settings.update(db.connections.configure_settings({"default": django_database(place)}))
    return db


def forget_django() -> None:
    db = import_module("django.db")
    db.connection.close()
    del db.connections["default"]


def django_spoiled(connection: Any) -> Check:
    raw = connection.connection
    return spoil_psycopg(raw) if hasattr(raw, "adapters") else spoil_sqlite(raw)


def django_executed(connection: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@asynccontextmanager
async def open_django(place: Place) -> AsyncIterator[Hand]:
    db = django_for(place)
    atomic = db.transaction.atomic()
    atomic.__enter__()

    def rollback() -> None:
        db.transaction.set_rollback(True)
        atomic.__exit__(None, None, None)

    try:
        yield Hand(
            place,
            db.connection,
            False,
            at_once(lambda text: django_executed(db.connection, text)),
            at_once(lambda: atomic.__exit__(None, None, None)),
            at_once(rollback),
            at_once(lambda: django_spoiled(db.connection)),
        )
    finally:
        forget_django()


@asynccontextmanager
async def open_django_async(place: Place) -> AsyncIterator[Hand]:
    db = django_for(place)
    in_thread: Any = import_module("asgiref.sync").sync_to_async
    atomic = db.transaction.atomic()
    await in_thread(atomic.__enter__)()

    def rollback() -> None:
        db.transaction.set_rollback(True)
        atomic.__exit__(None, None, None)

    async def spoil() -> Check:
        check: Check = await in_thread(lambda: django_spoiled(db.connection))()
        return lambda: in_thread(lambda: without_loop(check()))()  # type: ignore[arg-type]

    try:
        yield Hand(
            place,
            db.connection,
            True,
            lambda text: in_thread(django_executed)(db.connection, text),
            lambda: in_thread(atomic.__exit__)(None, None, None),
            in_thread(rollback),
            spoil,
        )
    finally:
        await in_thread(forget_django)()


KINDS = [
    Kind("sqlite3", SqlitePlace, False, open_sqlite3),
    Kind("aiosqlite", SqlitePlace, True, open_aiosqlite),
    Kind("psycopg", PostgresPlace, False, open_psycopg),
    Kind("psycopg async", PostgresPlace, True, open_psycopg_async),
    Kind("asyncpg", PostgresPlace, True, open_asyncpg),
    Kind("asyncpg pool", PostgresPlace, True, open_asyncpg_pool),
    Kind("SQLAlchemy Connection, pysqlite", SqlitePlace, False, sqlalchemy_connection("pysqlite")),
    Kind("SQLAlchemy Connection, psycopg", PostgresPlace, False, sqlalchemy_connection("psycopg")),
    Kind("SQLAlchemy Session, pysqlite", SqlitePlace, False, sqlalchemy_session("pysqlite")),
    Kind("SQLAlchemy Session, psycopg", PostgresPlace, False, sqlalchemy_session("psycopg")),
    Kind("SQLAlchemy scoped_session, psycopg", PostgresPlace, False, sqlalchemy_scoped_session("psycopg")),
    Kind("SQLAlchemy AsyncConnection, aiosqlite", SqlitePlace, True, sqlalchemy_async_connection("aiosqlite")),
    Kind("SQLAlchemy AsyncConnection, psycopg", PostgresPlace, True, sqlalchemy_async_connection("psycopg_async")),
    Kind("SQLAlchemy AsyncConnection, asyncpg", PostgresPlace, True, sqlalchemy_async_connection("asyncpg")),
    Kind("SQLAlchemy AsyncSession, aiosqlite", SqlitePlace, True, sqlalchemy_async_session("aiosqlite")),
    Kind("SQLAlchemy AsyncSession, psycopg", PostgresPlace, True, sqlalchemy_async_session("psycopg_async")),
    Kind("SQLAlchemy AsyncSession, asyncpg", PostgresPlace, True, sqlalchemy_async_session("asyncpg")),
    Kind("SQLAlchemy run_sync, aiosqlite", SqlitePlace, True, sqlalchemy_run_sync("aiosqlite")),
    Kind("SQLAlchemy run_sync, psycopg", PostgresPlace, True, sqlalchemy_run_sync("psycopg_async")),
    Kind("SQLAlchemy run_sync, asyncpg", PostgresPlace, True, sqlalchemy_run_sync("asyncpg")),
    Kind("Django, sqlite", SqlitePlace, False, open_django),
    Kind("Django, postgresql", PostgresPlace, False, open_django),
    Kind("Django async, sqlite", SqlitePlace, True, open_django_async),
    Kind("Django async, postgresql", PostgresPlace, True, open_django_async),
]
