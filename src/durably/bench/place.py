"""Where a user's own store is measured: beside the tasks that are there, never among them."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from durably.bench.process import Failed
from durably.stores.protocol import Store
from durably.stores.statement import in_schema


class Place(NamedTuple):
    """A store of the same kind at the same address, with nothing in it."""

    url: str
    schema: str


@contextlib.contextmanager
def place(store: Store) -> Iterator[Place]:
    """A schema of its own in the same database, or a file in the same folder; it goes at the end of the block."""
    if store.address.startswith("sqlite:///"):
        with _file(Path(store.address.removeprefix("sqlite:///"))) as found:
            yield found
    else:
        with _schema(store) as found:
            yield found


@contextlib.contextmanager
def _file(beside: Path) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="durably-bench-", dir=beside.parent))
    try:
        yield Place(f"sqlite:///{folder / 'store.db'}", "durably")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _schema(store: Store) -> Iterator[Place]:
    import psycopg

    from durably.stores.postgres.store import PostgresStore

    if not isinstance(store, PostgresStore):
        raise Failed(f"only stores on SQLite and PostgreSQL can be measured, not {store.address}")
    schema = f"durably_bench_{secrets.token_hex(4)}"
    try:
        yield Place(store.url, schema)
    finally:
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute(
                in_schema(
                    "DO $$ BEGIN EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', 'durably'); END $$", schema
                ).encode()
            )
