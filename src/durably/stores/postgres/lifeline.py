"""Making sure that the server process of a broken connection has come to its end.

Each holds an advisory lock of its own for as long as it lives. Whoever gets that lock knows, and needs no right for it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import psycopg

PATIENCE = "5s"
"""So long a process may take to come to its end."""


def tie(connection: psycopg.Connection[Any]) -> int:
    """The lock that the process which serves this connection holds from now on."""
    lock = secrets.randbits(63)
    connection.execute("SELECT pg_advisory_lock($1)", [lock], prepare=False)
    return lock


def let_end(connection: psycopg.Connection[Any], lock: int) -> None:
    """End the process that holds this lock, and return when it is gone: what it was doing is done, or never will be."""
    with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
        # A process belongs to whoever logged in, and so may those do who act as another role.
        connection.execute("SET LOCAL ROLE NONE", prepare=False)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks"
            " WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = $1"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [lock],
            prepare=False,
        )
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', $1, true)", [PATIENCE], prepare=False)
        connection.execute("SELECT pg_advisory_xact_lock($1)", [lock], prepare=False)
