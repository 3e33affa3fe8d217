"""Where a commit waits for a standby, accepted means that the standby has it too."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from durably import Durably
from durably.stores.postgres.store import PostgresStore

WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"


@pytest.fixture
def operator(migrated_postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who has told the server to wait for a standby that is away; itself does not wait for anybody."""
    with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield connection
        finally:
            come_back(connection)


def come_back(operator: psycopg.Connection[Any]) -> None:
    """Let nobody wait for the standby any more."""
    operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
    operator.execute("SELECT pg_reload_conf()")


@pytest.fixture
def app(migrated_postgres_url: str, operator: psycopg.Connection[Any]) -> Iterator[Durably]:
    with Durably(f"{migrated_postgres_url}&options=-c%20synchronous_commit%3Don") as app:
        yield app


def waiting(operator: psycopg.Connection[Any], sending: threading.Thread, *, but: int = 0) -> Any:
    """The process that waits for the standby, on behalf of this thread."""
    while sending.is_alive():
        for (pid,) in operator.execute(WAITING).fetchall():
            if pid != but:
                return pid
    raise AssertionError("nothing waited for the standby")


def test_a_task_that_was_sent_again_waits_for_the_standby_too(app: Durably, operator: psycopg.Connection[Any]) -> None:
    """The connection breaks while the first try waits, which has committed on this server by then."""

    @app.task
    async def work(number: int) -> None: ...

    assert isinstance(app.store, PostgresStore)
    with app.store.pool.connection() as putting:
        pid = putting.info.backend_pid
    accepted: list[str] = []
    sending = threading.Thread(target=lambda: accepted.append(work.enqueue(1).id))
    sending.start()
    assert waiting(operator, sending) == pid
    with socket.socket(fileno=os.dup(putting.fileno())) as way:
        way.shutdown(socket.SHUT_RDWR)

    assert waiting(operator, sending, but=pid) != pid
    assert accepted == []
    come_back(operator)
    sending.join()
    assert operator.execute("SELECT id::text FROM durably.tasks").fetchall() == [(accepted[0],)]
