"""Durably behind the real PgBouncer, in transaction mode: `make test-pgbouncer`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from durably.testing.servers import PostgresServer, open_folder, unprivileged
from tests.support.pooled_store import PooledStore

PATIENCE = 60.0
CONFIGURATION = """
[databases]
* = host={host} port={port} user=postgres

[pgbouncer]
pool_mode = transaction
server_round_robin = 1
default_pool_size = 10
auth_type = any
listen_addr =
unix_socket_dir = {folder}
unix_socket_mode = 0777
listen_port = 6432
pidfile =
"""


def program() -> str:
    """Where PgBouncer is installed; Debian puts it where ordinary users do not look."""
    found = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        pytest.exit("the program `pgbouncer` is missing: install it, on Debian with `apt-get install pgbouncer`", 1)
    return found


@pytest.fixture(scope="session")
def pgbouncer(postgres18: PostgresServer) -> Iterator[Path]:
    """The folder of the socket on which PgBouncer listens."""
    binary, folder = program(), open_folder("durably-pgb-")
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(CONFIGURATION.format(host=postgres18.sockets, port=postgres18.port, folder=folder))
    log = (folder / "log").open("wb")
    running = subprocess.Popen([binary, configuration], stdout=log, stderr=log, cwd=folder, **unprivileged())
    try:
        _wait_until_ready(running, folder)
        yield folder
    finally:
        running.terminate()
        running.wait()
        log.close()
        shutil.rmtree(folder)


def _wait_until_ready(running: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(_address(folder, "postgres")).close()
            return
        if running.poll() is not None or time.monotonic() > deadline:
            pytest.exit(f"PgBouncer does not run:\n{(folder / 'log').read_text()}", 1)
        time.sleep(0.02)


def _address(folder: Path, database: str) -> str:
    return f"postgresql://postgres@/{database}?host={folder}&port=6432"


@pytest.fixture
def pooled_url(pgbouncer: Path, postgres_url: str) -> str:
    return _address(pgbouncer, str(psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]))


def backend(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    [(pid,)] = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchall()
    return int(pid)


def test_the_backend_changes_between_transactions(pooled_url: str) -> None:
    with psycopg.connect(pooled_url) as one, psycopg.connect(pooled_url) as two:
        assert backend(one) != backend(two)
        two.commit()
        one.commit()
        seen = []
        for _ in range(4):
            seen.append(backend(one))
            assert backend(one) == seen[-1]
            one.commit()
    assert len(set(seen)) > 1


class TestTheStore(PooledStore):
    """Durably works behind it."""
