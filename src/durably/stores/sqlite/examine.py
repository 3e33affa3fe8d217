"""What `durably doctor` asks of an SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from durably.stores.protocol import Finding


def examine(connection: sqlite3.Connection, path: str, pending: list[str]) -> list[Finding]:
    """Look at version, durability, schema and health of the file."""
    findings = [Finding("version", "ok", f"SQLite {sqlite3.sqlite_version} (3.40 or newer is needed)")]
    mode = _one(connection, "PRAGMA journal_mode")
    if mode == "wal" or path == ":memory:" or pending:
        findings.append(Finding("journal", "ok", f"journal_mode={mode}"))
    else:
        advice = "let durably open the file once on a local disk; network file systems cannot do WAL"
        findings.append(Finding("journal", "error", f"journal_mode={mode}, not wal", advice))
    synchronous = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}.get(int(_one(connection, "PRAGMA synchronous")), "?")
    findings.append(
        Finding("durability", "ok", f"synchronous={synchronous}: a commit survives power loss")
        if synchronous in ("FULL", "EXTRA")
        else Finding(
            "durability", "error", f"synchronous={synchronous}", "use FULL, or commits are lost with the power"
        )
    )
    findings.append(
        Finding("schema", "error", f"{len(pending)} migrations to apply", "run `durably migrate`")
        if pending
        else Finding("schema", "ok", "up to date")
    )
    check = _one(connection, "PRAGMA quick_check(1)")
    findings.append(
        Finding("integrity", "ok", "quick_check found nothing")
        if check == "ok"
        else Finding("integrity", "error", str(check), "restore the file from a backup; copy it away first")
    )
    if path != ":memory:":
        log = Path(f"{path}-wal")
        size = log.stat().st_size if log.exists() else 0
        findings.append(
            Finding("wal", "ok", f"{size / 1e6:.1f} MB")
            if size < 200_000_000
            else Finding(
                "wal",
                "warning",
                f"{size / 1e6:.0f} MB: a reader keeps it from being checkpointed",
                "look for a connection that holds a transaction open",
            )
        )
    return findings


def _one(connection: sqlite3.Connection, pragma: str) -> str:
    [(value,)] = connection.execute(pragma).fetchall()
    return str(value)
