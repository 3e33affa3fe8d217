"""What `durably doctor` asks of a PostgreSQL server."""

from __future__ import annotations

import time
from typing import Any

from durably.stores.postgres.pool import Connection
from durably.stores.protocol import Finding

LONG = 300
SKEW = 2.0


def examine(connection: Connection, schema: str, pending: list[str]) -> list[Finding]:
    """Look at version, durability, schema, pooler, long transactions and the clock."""
    findings = [_version(connection)]
    for setting, good in (("fsync", "on"), ("full_page_writes", "on")):
        value = _one(connection, f"SHOW {setting}")
        findings.append(
            Finding(setting, "ok", f"{setting}={value}")
            if value == good
            else Finding(
                setting, "error", f"{setting}={value}: a crash can lose or corrupt data", f"set {setting} = on"
            )
        )
    value = _one(connection, "SHOW synchronous_commit")
    findings.append(
        Finding("durability", "ok", f"synchronous_commit={value}: a commit survives power loss")
        if value != "off"
        else Finding(
            "durability", "error", "synchronous_commit=off: accepted tasks can be lost in a crash", "set it to on"
        )
    )
    findings.append(
        Finding("schema", "error", f"{len(pending)} migrations to apply in schema {schema!r}", "run `durably migrate`")
        if pending
        else Finding("schema", "ok", f"schema {schema!r} is up to date")
    )
    findings.append(
        Finding("connection", "ok", "direct: statements are prepared once for each connection")
        if connection.wire.direct
        else Finding(
            "connection",
            "ok",
            "through a pooler: nothing is prepared; workers need a `listen_url` to be woken, or they poll",
        )
    )
    findings.append(_vacuum(connection))
    findings.append(_clock(connection))
    return findings


def _one(connection: Connection, query: str) -> Any:
    [(value,)] = connection.execute(query.encode(), prepare=False).fetchall()
    return value


def _version(connection: Connection) -> Finding:
    number = connection.info.server_version
    shown = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number < 140000:
        return Finding("version", "error", f"{shown}: 14 or newer is needed", "upgrade the server")
    return Finding("version", "ok", f"{shown} (14 or newer is needed)")


def _vacuum(connection: Connection) -> Finding:
    """A transaction that stays open keeps dead rows from being removed, and the queue slows down."""
    rows = connection.execute(
        b"SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint, coalesce(application_name, '') "
        b"FROM pg_stat_activity WHERE xact_start IS NOT NULL AND backend_xmin IS NOT NULL "
        b"AND clock_timestamp() - xact_start > make_interval(secs => $1) ORDER BY xact_start",
        [LONG],
        prepare=False,
    ).fetchall()
    if not rows:
        return Finding("transactions", "ok", f"none has been open for more than {LONG // 60} minutes")
    pid, age, name = rows[0]
    who = f"process {pid}" + (f" ({name})" if name else "")
    advice = f"end it, or `SELECT pg_terminate_backend({pid})`: vacuum cannot remove dead rows meanwhile"
    return Finding("transactions", "warning", f"{len(rows)} open too long; {who} for {age // 60} minutes", advice)


def _clock(connection: Connection) -> Finding:
    before = time.time()
    server = float(_one(connection, "SELECT extract(epoch FROM clock_timestamp())"))
    after = time.time()
    skew = max(before - server, server - after, 0.0)
    if skew > SKEW:
        detail = f"this host's clock is {skew:.1f} s off the server's; the server's is the one that counts"
        return Finding("clock", "warning", detail, "let NTP run on both")
    return Finding("clock", "ok", "this host and the server agree")
