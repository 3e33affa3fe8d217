"""The servers of a run, and a fresh place on them for every measurement."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg

from bench.contenders import Entry
from bench.valkey import Valkey
from durably.bench.drain import Server
from durably.bench.process import Contender, clocked, told
from durably.testing.servers import PostgresServer

SETTINGS = {"max_connections": 200, "shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
"""On top of PostgreSQL's defaults; fsync, synchronous_commit and full_page_writes stay on."""


class Place(NamedTuple):
    """Where one measurement happens."""

    url: str
    server: Server


class Stage:
    """Starts a server when it is first needed; at the end all are stopped, and nothing is left."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        self._postgres: PostgresServer | None = None
        self._valkey: Valkey | None = None
        self._admin: psycopg.Connection[Any] | None = None
        self._numbers = itertools.count()
        self._templates: dict[tuple[str, int, str, str], str] = {}

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="durably-bench-")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def postgres(self) -> PostgresServer:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresServer(18, settings=SETTINGS))
            self._admin = self._stack.enter_context(psycopg.connect(self._postgres.url(), autocommit=True))
        return self._postgres

    @property
    def valkey(self) -> Valkey:
        if self._valkey is None:
            self._valkey = self._stack.enter_context(Valkey())
        return self._valkey

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder

    @contextlib.contextmanager
    def place(self, entry: Entry, *, filled: int = 0, kind: str = "noop") -> Iterator[Place]:
        """A place with fresh tables, in which so many tasks of this kind wait; it goes at the end of the block."""
        if entry.store == "postgres":
            with self._database(entry.contender, filled, kind) as url:
                yield Place(url, Server(self.postgres.pid, self._written))
        elif entry.store == "sqlite":
            with self._file(entry.contender, filled, kind) as url:
                yield Place(url, Server())
        else:
            self.valkey.flush()
            told(entry.contender, "prepare", "prepared", url=self.valkey.url)
            _fill(entry.contender, self.valkey.url, filled, kind)
            yield Place(self.valkey.url, Server(self.valkey.pid))

    def settle(self, place: Place) -> None:
        """What any database in use has had for a while: fresh statistics."""
        if place.url.startswith("postgresql:"):
            _analyze(place.url)

    @contextlib.contextmanager
    def _database(self, contender: Contender, filled: int, kind: str) -> Iterator[str]:
        server = self.postgres
        made = (contender.name, filled, kind, "postgres")
        if made not in self._templates:
            name = f"template_{next(self._numbers)}"
            url = server.create_database(name)
            told(contender, "prepare", "prepared", url=url)
            _fill(contender, url, filled, kind)
            _analyze(url)
            self._templates[made] = name
        name = f"place_{next(self._numbers)}"
        url = server.create_database(name, template=self._templates[made])
        try:
            yield url
        finally:
            server.drop_database(name)

    @contextlib.contextmanager
    def _file(self, contender: Contender, filled: int, kind: str) -> Iterator[str]:
        made = (contender.name, filled, kind, "sqlite")
        if made not in self._templates:
            template = self._new_folder()
            told(contender, "prepare", "prepared", url=_sqlite(template))
            _fill(contender, _sqlite(template), filled, kind)
            self._templates[made] = str(template)
        folder = self._new_folder()
        try:
            shutil.copytree(self._templates[made], folder, dirs_exist_ok=True)
            # What is measured next must not wait for the disk to take the copy.
            os.sync()
            yield _sqlite(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def forget(self) -> None:
        """Remove the templates that are filled: they are large."""
        for made, name in list(self._templates.items()):
            if not made[1]:
                continue
            if made[-1] == "sqlite":
                shutil.rmtree(name)
            else:
                self.postgres.drop_database(name)
            del self._templates[made]

    def _written(self) -> int:
        assert self._admin is not None
        [position] = self._admin.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone() or (0,)
        return int(position)


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def _analyze(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _fill(contender: Contender, url: str, count: int, kind: str) -> None:
    if count:
        extra = {} if kind == "noop" else {"kind": kind}
        clocked(contender, "bulk", url=url, count=count, **extra)
