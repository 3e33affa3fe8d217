"""Writing rows behind the engine's back, in the tables of either store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg import sql

NOW = 1_750_000_000_000_000
"""Some moment in the past."""
FAR = 2**63 - 1
EARLY = -(2**63)


class Raw(Protocol):
    """A store's tables."""

    url: str
    kind: str

    def insert(self, table: str, **columns: Any) -> None: ...

    def count(self, table: str, **columns: Any) -> int: ...

    def close(self) -> None: ...


class RawSqlite:
    """The tables in a file."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)

    def insert(self, table: str, **columns: Any) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self._connection.execute(f"INSERT INTO durably_{table} ({names}) VALUES ({marks})", [*columns.values()])

    def misspell(self, table: str, column: str, task: str) -> None:
        """Put text that is no UTF-8 where text belongs."""
        owner = "task" if table == "attempts" else "id"
        self._connection.execute(
            f"UPDATE durably_{table} SET {column} = CAST(x'63616665ff' AS TEXT) WHERE {owner} = ?", [task]
        )

    def count(self, table: str, **columns: Any) -> int:
        where = " AND ".join(f"{name} = ?" for name in columns) or "true"
        [(found,)] = self._connection.execute(
            f"SELECT count(*) FROM durably_{table} WHERE {where}", [*columns.values()]
        )
        return int(found)

    def close(self) -> None:
        self._connection.close()


class RawPostgres:
    """The tables in a schema."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def insert(self, table: str, **columns: Any) -> None:
        if table == "tasks":
            columns = {"seq": sql.SQL("nextval('durably.order_seq')"), **columns}
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        values = sql.SQL(", ").join(one if isinstance(one, sql.SQL) else sql.Literal(one) for one in columns.values())
        self._connection.execute(
            sql.SQL("INSERT INTO durably.{} ({}) VALUES ({})").format(sql.Identifier(table), names, values)
        )

    def count(self, table: str, **columns: Any) -> int:
        parts = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(one)) for name, one in columns.items()]
        where = sql.SQL(" AND ").join([sql.SQL("true"), *parts])
        query = sql.SQL("SELECT count(*) FROM durably.{} WHERE {}").format(sql.Identifier(table), where)
        [(found,)] = self._connection.execute(query).fetchall()
        return int(found)

    def close(self) -> None:
        self._connection.close()


def an_id(number: int) -> str:
    """An id that sorts before those of the engine."""
    return str(UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + number))


class Numbered:
    """The same tables for one of several kinds that are planted together: each has ids and names of its own."""

    def __init__(self, raw: Raw, number: int) -> None:
        self.raw = raw
        self.id = an_id(100 + number)
        self.name = f"odd-{number}"

    def insert(self, table: str, **columns: Any) -> None:
        self.raw.insert(table, **{name: self._own(value) for name, value in columns.items()})

    def misspell(self, table: str, column: str) -> None:
        assert isinstance(self.raw, RawSqlite)
        self.raw.misspell(table, column, self.id)

    def _own(self, value: Any) -> Any:
        return value.replace(an_id(1), self.id).replace("odd", self.name) if isinstance(value, str) else value


def a_task(**given: Any) -> dict[str, Any]:
    """A ready task, with what is wrong with it."""
    return {
        "id": an_id(1),
        "version": 1,
        "created_at": NOW,
        "ready_at": NOW,
        "token": 0,
        "partition": 0,
        "priority": 5,
        "attempt": 0,
        "spent": 0,
        "crashes": 0,
        "once": False,
        "alone": False,
        "state": "ready",
        "name": "work",
        "queue": "default",
        "payload": b'{"number":7}',
    } | given


def an_end(**given: Any) -> dict[str, Any]:
    """A task that is done, with what is wrong with it."""
    row = a_task(state="done", seq=1, finished_at=NOW, attempt=1, spent=1)
    del row["alone"]
    return row | given


def a_key(**given: Any) -> dict[str, Any]:
    """A key row, with what is wrong with it."""
    row = {"queue": "default", "key": "odd", "state": "ready", "ready_at": NOW, "priority": 5, "alone": False}
    return row | given


def a_session(**given: Any) -> dict[str, Any]:
    """A session that died long ago, with what is wrong with it."""
    row = {"id": "odd", "state": "live", "started_at": NOW, "beat_at": NOW, "expires_at": NOW, "host": "h", "pid": 1}
    return row | {"info": "{}"} | given


def a_gate(**given: Any) -> dict[str, Any]:
    """A limit, with what is wrong with it."""
    return {"name": "g:odd", "concurrency": None, "rate": 1.0, "burst": 1.0, "tokens": 1.0, "refilled_at": NOW} | given


def an_attempt(**given: Any) -> dict[str, Any]:
    """A failed attempt, with what is wrong with it."""
    row = {"task": an_id(1), "attempt": 1, "outcome": "failed", "kind": "Boom", "message": "m", "trace": "t"}
    return row | {"token": 1, "finished_at": NOW} | given
