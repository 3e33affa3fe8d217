"""What is on the disk: sealed payloads cannot be read there, and files are as closed as the umask says."""

from __future__ import annotations

import base64
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from durably import DeadLetter, Durably, Retry, current

CANARY = "canary-4711"


class Sealed:
    """Stands for encryption: nobody finds the plain text in what it makes."""

    def encode(self, data: bytes) -> bytes:
        return base64.b85encode(zlib.compress(data)[::-1])

    def decode(self, data: bytes) -> bytes:
        return zlib.decompress(base64.b85decode(data)[::-1])


def live(app: Durably) -> Any:
    """Arguments, a result, details, a unique key's result, a dead letter and its hook: all with the canary in them."""

    @app.task
    async def mourn(letter: DeadLetter) -> str:
        return f"{CANARY} {letter.name}"

    @app.task(on_dead=mourn, retry=Retry.never())
    async def fail(secret: str) -> None:
        raise ValueError("it failed")

    @app.task
    async def work(secret: str) -> str:
        await current().asave({"seen": secret})
        current().then(work.using(delay="1h").call(f"{secret} later"))
        return f"{secret} too"

    handle = work.using(unique="o-1", key="k").enqueue(CANARY)
    fail.enqueue(CANARY)
    app.drain()
    assert handle.result(60) == f"{CANARY} too"


def everything(url: str) -> Iterator[bytes]:
    """Every row of every table, as bytes."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'durably'").fetchall()
        for (table,) in tables:
            for row in connection.execute(sql.SQL("SELECT * FROM durably.{}").format(sql.Identifier(table))):
                yield b" ".join(one if isinstance(one, bytes) else str(one).encode() for one in row)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_sealed_payload_cannot_be_read_in_the_file(tmp_path: Path, sealed: bool) -> None:
    path = tmp_path / "durably.db"
    with Durably(f"sqlite:///{path}", codec=Sealed() if sealed else None) as app:
        live(app)
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())

    assert (CANARY.encode() in written) is not sealed


@pytest.mark.parametrize("sealed", [True, False])
def test_a_sealed_payload_cannot_be_read_in_the_tables(migrated_postgres_url: str, sealed: bool) -> None:
    with Durably(migrated_postgres_url, codec=Sealed() if sealed else None) as app:
        live(app)

    assert any(CANARY.encode() in row for row in everything(migrated_postgres_url)) is not sealed


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077], ids=oct)
def test_the_files_of_a_store_are_as_closed_as_the_umask_says(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with Durably(f"sqlite:///{tmp_path / 'durably.db'}") as app:
            live(app)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(("durably.db", "durably.db-wal", "durably.db-shm"), 0o644 & ~mask)


def test_a_file_that_was_closed_to_others_stays_so_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "durably.db"
    path.touch(mode=0o600)
    before = os.umask(0o022)
    try:
        with Durably(f"sqlite:///{path}") as app:
            live(app)
            modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {0o600}


def test_nobody_can_write_to_what_is_made_under_an_open_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Durably(f"sqlite:///{tmp_path / 'durably.db'}") as app:
            live(app)
            modes = {stat.S_IMODE(file.stat().st_mode) & 0o022 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {0}
