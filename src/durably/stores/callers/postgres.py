"""What every kind of connection to PostgreSQL shares: is it the store's database, and what does an error mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from durably.errors import (
    DurablyError,
    NoTransaction,
    RetryTransaction,
    SchemaOutdated,
    StoreRejected,
    StoreUnavailable,
    WrongConnection,
)
from durably.stores.statement import Operation, Part, Queries, Query, Statement, Steps, in_schema

T = TypeVar("T")

# The catalogs answer without an error, whatever is missing: an error would abort the caller's transaction.
RIGHTS = """
SELECT needed.name, c.oid IS NOT NULL,
       has_schema_privilege(n.oid, 'USAGE')
       AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, needed.privilege)
                          ELSE has_table_privilege(c.oid, needed.privilege) END,
       needed.privilege, current_user::text, current_database()::text
  FROM (VALUES ('meta', 'SELECT'), ('tasks', 'SELECT'), ('tasks', 'INSERT'), ('turns', 'INSERT'), ('history', 'SELECT'),
               ('sleepers', 'SELECT'), ('unique_keys', 'SELECT'), ('unique_keys', 'INSERT'),
               ('cancel_requests', 'INSERT'), ('order_seq', 'USAGE')) AS needed(name, privilege)
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1::text
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = needed.name
"""
# The store's id is copied with its database, the database's own is not.
WHEREABOUTS = """
SELECT m.value || '@' || d.oid::text
  FROM durably.meta m, pg_catalog.pg_database d
 WHERE m.name = 'store' AND d.datname = current_database()
"""

RETRY = frozenset({"40001", "40P01", "55P03"})
MISSING = frozenset({"42P01", "42703", "42883", "3F000"})
UNAVAILABLE = frozenset({"08", "53", "57", "58", "XX"})


class PostgresHome(Protocol):
    """What is needed of the store whose database it must be."""

    schema: str
    queries: Queries

    @property
    def address(self) -> str: ...

    def run(self, op: Operation[T]) -> T: ...

    async def arun(self, op: Operation[T]) -> T: ...


_homes: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_admitted: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


def admitted(connection: Any, store: PostgresHome) -> bool:
    """Whether this connection was already shown to reach this store."""
    return store in _admitted.get(connection, ())


def whereabouts(store: PostgresHome) -> Operation[str]:
    """Which store in which database a connection reaches."""

    def steps(q: Queries) -> Steps[str]:
        [(found,)] = yield _statement(in_schema(WHEREABOUTS, store.schema))
        return str(found)

    return Operation("whereabouts", steps, writes=False, single=True)


def arrival(store: PostgresHome) -> Operation[str]:
    """The same, asked on a connection of which nothing is known yet; WrongConnection if it cannot be used."""

    def steps(q: Queries) -> Steps[str]:
        rights = yield _statement(RIGHTS, store.schema)
        for name, exists, allowed, privilege, user, database in rights:
            if not exists:
                raise WrongConnection(
                    f"within= was given a connection to the database {database!r}, which has no {store.schema}.{name}: "
                    f"the tasks are in {store.address}"
                )
            if not allowed:
                raise WrongConnection(
                    f"within= was given a connection of the role {user!r}, which lacks {privilege} on "
                    f"{store.schema}.{name}: grant it, and USAGE on the schema"
                )
        return (yield from whereabouts(store).steps(q))

    return Operation("arrival", steps, writes=False)


def _statement(text: str, *args: str) -> Statement:
    return Statement(Query("within", (Part(text, tuple(range(len(args)))),)), args, False)


def admit(connection: Any, store: PostgresHome, found: str) -> None:
    """Remember that the connection reaches the store, or raise WrongConnection."""
    if _homes.get(store) != found:
        _homes[store] = store.run(whereabouts(store))
    _judge(connection, store, found)


async def aadmit(connection: Any, store: PostgresHome, found: str) -> None:
    """The same without blocking the event loop."""
    if _homes.get(store) != found:
        _homes[store] = await store.arun(whereabouts(store))
    _judge(connection, store, found)


def _judge(connection: Any, store: PostgresHome, found: str) -> None:
    if _homes[store] != found:
        raise WrongConnection(f"within= was given a connection to another database: the tasks are in {store.address}")
    _admitted.setdefault(connection, WeakSet()).add(store)


def told(store: PostgresHome, error: Exception, unavailable: Callable[[Exception], bool]) -> DurablyError:
    """A driver's error in our own words; `unavailable` judges those that the server did not send."""
    code = getattr(error, "sqlstate", None) or ""
    where, what = store.address, (str(error).strip().splitlines() or [type(error).__name__])[0]
    if code in RETRY:
        return RetryTransaction(f"{where}: {what}: roll back and run your transaction again")
    if code == "25P02":
        return failed()
    if code == "25006":
        return NoTransaction(f"the transaction is read-only and can accept nothing: {what}")
    if code in MISSING:
        return SchemaOutdated(f"{where}: the schema {store.schema!r} is not up to date: run `durably migrate` ({what})")
    if code == "42501":
        return WrongConnection(f"within= was given a connection whose role may not do this in {where}: {what}")
    if code[:2] in UNAVAILABLE or (not code and unavailable(error)):
        return StoreUnavailable(f"{where}: {what}")
    return StoreRejected(f"{where}: {what}")


def failed() -> NoTransaction:
    """The error for a transaction that can only be rolled back."""
    return NoTransaction("the transaction on this connection has failed and can accept nothing: roll it back first")


def none_open(how: str) -> NoTransaction:
    """The error for a connection on which every statement would commit by itself."""
    return NoTransaction(f"no transaction is open on this connection: begin one first, for example {how}")
