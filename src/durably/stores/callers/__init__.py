"""The caller's own connection, inside the caller's own transaction: an operation that runs there commits with it.

Nothing here begins, commits or rolls back. What the caller set up on the connection (row factories, codecs, isolation)
neither disturbs the operation nor is changed by it. No library is imported unless the given object comes from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durably.errors import WrongConnection
from durably.stores.callers.origin import described, origins, unwrapped
from durably.stores.callers.postgres import PostgresHome
from durably.stores.callers.sqlite import SqliteHome
from durably.stores.protocol import Caller

SQLITE = (
    "a connection of sqlite3 or aiosqlite, a connection or session of SQLAlchemy (pysqlite, aiosqlite), "
    "or Django's connection"
)
POSTGRES = (
    "a connection of psycopg 3 or asyncpg, a connection or session of SQLAlchemy (psycopg, asyncpg), "
    "or Django's connection (psycopg 3)"
)


def sqlite_caller(connection: Any, store: SqliteHome) -> Caller:
    """The caller's connection for a store in an SQLite file; WrongConnection if its kind is not supported."""

    def reached(driver: Any) -> Caller:
        from durably.stores.callers import sqlite

        return sqlite.caller_for(driver, store) or _refuse(driver, store.address, SQLITE)

    return _recognised(unwrapped(connection), reached)


def postgres_caller(connection: Any, store: PostgresHome) -> Caller:
    """The caller's connection for a store in PostgreSQL; WrongConnection if its kind is not supported."""

    def reached(driver: Any) -> Caller:
        found: Caller | None = None
        from_where = origins(driver)
        if "psycopg" in from_where:
            from durably.stores.callers import psycopg

            found = psycopg.caller_for(driver, store)
        elif "asyncpg" in from_where:
            from durably.stores.callers import asyncpg

            found = asyncpg.caller_for(driver, store)
        return found or _refuse(driver, store.address, POSTGRES)

    return _recognised(unwrapped(connection), reached)


def _recognised(connection: Any, reached: Callable[[Any], Caller]) -> Caller:
    """The caller for a connection as it was given: wrapped by a framework, or a driver's own."""
    found: Caller | None = None
    from_where = origins(connection)
    if "sqlalchemy" in from_where:
        from durably.stores.callers import sqlalchemy

        found = sqlalchemy.caller_for(connection, reached)
    elif "django" in from_where:
        from durably.stores.callers import django

        found = django.caller_for(connection, reached)
    return found or reached(connection)


def _refuse(connection: Any, address: str, supported: str) -> Caller:
    raise WrongConnection(
        f"within= was given {described(connection)}, and {address} needs the open connection or session itself, "
        f"not a pool, an engine or a cursor: {supported}"
    )
