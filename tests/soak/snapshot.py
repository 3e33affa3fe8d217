"""What the store says in the end, read with plain SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import msgspec
import psycopg

Ask = Callable[[str], Iterable[tuple[Any, ...]]]

COLUMNS = "id, name, state, key, attempt, spent, crashes, token, payload"
LEFTOVERS = ("turns", "keys", "lines", "permits", "cancel_requests")


class Row(msgspec.Struct, frozen=True):
    """A task."""

    id: str
    name: str
    state: str
    key: str | None
    attempt: int
    spent: int
    crashes: int
    token: int
    label: str
    """The producer's name for it, from its payload; empty if the payload cannot be read."""
    reason: str


class Trial(msgspec.Struct, frozen=True):
    """An attempt that did not end well."""

    attempt: int
    outcome: str
    kind: str
    message: str


class Snapshot(msgspec.Struct, frozen=True):
    """Every task, every failed attempt, the callers' own rows, and what is wrong with the database itself."""

    rows: list[Row]
    trials: dict[str, list[Trial]]
    orders: set[str]
    left: dict[str, int]
    """How many rows there are in tables that should be empty once nothing is left to do."""
    damage: list[str]


def of_sqlite(path: str) -> Snapshot:
    """Read an SQLite file, and have it checked."""
    with closing(sqlite3.connect(path)) as file:
        verdict = [text for (text,) in file.execute("PRAGMA integrity_check").fetchall()]
        return _read(lambda query: file.execute(query), "durably_", [] if verdict == ["ok"] else verdict)


def of_postgres(url: str) -> Snapshot:
    """Read a PostgreSQL database; every page is read and every index built anew, which fails where one is broken."""
    with psycopg.connect(url, autocommit=True) as connection:
        damage = []
        for check in ("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING)", "REINDEX SCHEMA durably", "REINDEX TABLE orders"):
            try:
                connection.execute(check.encode())
            except psycopg.Error as error:
                damage.append(f"{check}: {error}")
        return _read(lambda query: connection.execute(query.encode()), "durably.", damage)


def _read(ask: Ask, prefix: str, damage: list[str]) -> Snapshot:
    ended = ask(f"SELECT {COLUMNS}, reason FROM {prefix}history")
    live = ask(f"SELECT {COLUMNS}, NULL FROM {prefix}tasks")
    trials: dict[str, list[Trial]] = {}
    for task, *facts in ask(f"SELECT task, attempt, outcome, kind, message FROM {prefix}attempts ORDER BY 1, 2"):
        trials.setdefault(str(task), []).append(Trial(*facts))
    return Snapshot(
        [_row(*facts) for rows in (list(ended), list(live)) for facts in rows],
        trials,
        {label for (label,) in ask("SELECT label FROM orders")},
        {table: next(iter(ask(f"SELECT count(*) FROM {prefix}{table}")))[0] for table in LEFTOVERS},
        damage,
    )


def _row(task: object, *facts: Any) -> Row:
    name, state, key, attempt, spent, crashes, token, payload, reason = facts
    return Row(str(task), name, state, key, attempt, spent, crashes, token, label_of(bytes(payload)), reason or "")


def label_of(payload: bytes) -> str:
    """The label in a payload; that of a dead letter's hook is made from the letter."""
    try:
        found = msgspec.json.decode(payload)
        return f"mourn/{found['letter']['id']}" if "letter" in found else str(found["label"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
