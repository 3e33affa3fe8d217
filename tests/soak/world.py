"""The two stores of a soak, as durable as in production, and what can be done to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg

from durably import Durably
from durably.testing.servers import PostgresServer
from tests.soak.snapshot import Snapshot, of_postgres, of_sqlite
from tests.support.proxy import Proxy

ORDERS = "CREATE TABLE orders (label text PRIMARY KEY)"


class SqliteWorld:
    """A file."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "durably.db")
        self.url = f"sqlite:///{self._path}"
        with closing(Durably(self.url)) as app:
            app.migrate()
        with closing(sqlite3.connect(self._path)) as file:
            file.execute(ORDERS)

    def waiting(self) -> int:
        """How many tasks have not ended."""
        with closing(sqlite3.connect(self._path, timeout=60)) as file:
            [(count,)] = file.execute("SELECT count(*) FROM durably_tasks").fetchall()
            return int(count)

    def snapshot(self) -> Snapshot:
        return of_sqlite(self._path)


class PostgresWorld:
    """A server with fsync on, behind a proxy."""

    name = "postgres"

    def __init__(self, server: PostgresServer, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self._direct = server.create_database("soak")
        self.url = f"postgresql://postgres@127.0.0.1:{proxy.port}/soak?sslmode=disable&gssencmode=disable"
        with closing(Durably(self._direct)) as app:
            app.migrate()
        with psycopg.connect(self._direct) as connection:
            connection.execute(ORDERS.encode())

    def waiting(self) -> int:
        """How many tasks have not ended."""
        with psycopg.connect(self._direct) as connection:
            [(count,)] = connection.execute("SELECT count(*) FROM durably.tasks").fetchall()
            return int(count)

    def snapshot(self) -> Snapshot:
        return of_postgres(self._direct)


World = SqliteWorld | PostgresWorld


@contextmanager
def sqlite_world(folder: Path) -> Iterator[SqliteWorld]:
    yield SqliteWorld(folder)


@contextmanager
def postgres_world(folder: Path) -> Iterator[PostgresWorld]:
    with PostgresServer(18, tcp=True, settings={"max_connections": 300}) as server, Proxy(server.port) as proxy:
        yield PostgresWorld(server, proxy)


WORLDS: dict[str, Callable[[Path], AbstractContextManager[World]]] = {
    "sqlite": sqlite_world,
    "postgres": postgres_world,
}
