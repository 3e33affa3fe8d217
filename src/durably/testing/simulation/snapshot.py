"""The store's tables at one moment, read behind everyone's back."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from durably.stores.sqlite.store import SqliteStore
from durably.stores.statement import Operation, Part, Queries, Query, Rows, Statement


class Row(msgspec.Struct, frozen=True):
    """A live task, as its row says it."""

    seq: int
    id: str
    version: int
    state: str
    name: str
    queue: str
    priority: int
    ready_at: int
    key: str | None
    policy: str | None
    gate: str | None
    once: bool
    alone: bool
    attempt: int
    spent: int
    crashes: int
    token: int
    session: str | None
    created_at: int
    expires_at: int | None
    cancel: str | None
    options: bytes | None
    payload: bytes

    @property
    def turn(self) -> tuple[str, str] | None:
        """Its ordering key."""
        return None if self.key is None else (self.queue, self.key)


class KeyRow(msgspec.Struct, frozen=True):
    """An ordering key that has tasks."""

    queue: str
    key: str
    state: str
    ready_at: int
    alone: bool
    held: bool
    session: str | None
    token: int
    head: str | None


class End(msgspec.Struct, frozen=True):
    """A task that ended."""

    id: str
    version: int
    state: str
    name: str
    queue: str
    key: str | None
    policy: str | None
    once: bool
    attempt: int
    spent: int
    crashes: int
    token: int
    finished_at: int
    reason: str | None
    options: bytes | None
    payload: bytes
    result: bytes | None


class SessionRow(msgspec.Struct, frozen=True):
    """A worker's lease."""

    id: str
    state: str
    started_at: int
    beat_at: int
    expires_at: int


class GateRow(msgspec.Struct, frozen=True):
    """A limit."""

    name: str
    concurrency: int | None
    rate: float | None
    burst: float


class Lease(msgspec.Struct, frozen=True):
    """A task that a session holds: by its own row, or as the head of its key."""

    task: str
    token: int
    session: str | None
    attempt: int


def _columns(kind: type[msgspec.Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


_TEXTS = (
    f"SELECT {_columns(Row)} FROM durably_tasks ORDER BY seq",
    f"SELECT {_columns(KeyRow)} FROM durably_keys",
    f"SELECT {_columns(End)} FROM durably_history ORDER BY finished_at, id",
    f"SELECT {_columns(GateRow)} FROM durably_gates",
    "SELECT queue, key, gate FROM durably_turns",
    "SELECT queue, gate FROM durably_lines",
    f"SELECT {_columns(SessionRow)} FROM durably_sessions",
    "SELECT name, state, cutoff FROM durably_queues",
    "SELECT task FROM durably_cancel_requests",
    "SELECT scope, key, task FROM durably_unique_keys",
    "SELECT gate, task FROM durably_permits",
    "SELECT task, attempt, outcome FROM durably_attempts",
)


class Snapshot:
    """Every table that matters. `leases` is who holds what, however the store writes that down."""

    def __init__(self, tables: list[Rows]) -> None:
        tasks, keys, ends, gates, turns, lines, sessions, queues, cancels, uniques, permits, attempts = tables
        self.tables = tables
        self.tasks = {row[1]: Row(*row) for row in tasks}
        self.keys = {(row[0], row[1]): KeyRow(*row) for row in keys}
        self.ends = {row[0]: End(*row) for row in ends}
        self.gates = {row[0]: GateRow(*row) for row in gates}
        self.turns = turns
        self.lines = lines
        self.sessions = {row[0]: SessionRow(*row) for row in sessions}
        self.queues: dict[str, tuple[str, int | None]] = {row[0]: (row[1], row[2]) for row in queues}
        self.cancels = {row[0] for row in cancels}
        self.uniques = uniques
        self.permits = permits
        self.attempts = attempts
        self.leases = {
            task.id: Lease(task.id, task.token, task.session, task.attempt)
            for task in self.tasks.values()
            if task.state == "leased"
        }
        for key in self.keys.values():
            if key.state == "leased" and key.head is not None and key.head in self.tasks:
                self.leases[key.head] = Lease(key.head, key.token, key.session, self.tasks[key.head].attempt + 1)

    def live(self, session: str | None) -> bool:
        """Whether the store takes this session for alive."""
        return session in self.sessions and self.sessions[session].state == "live"

    def state(self, task: str) -> str:
        """Where a task is."""
        if task in self.ends:
            return self.ends[task].state
        return "leased" if task in self.leases else self.tasks[task].state if task in self.tasks else "unknown"


def look(store: SqliteStore) -> Snapshot:
    """The tables as they are now."""
    return Snapshot(store.run(Operation("look", _look, writes=False)))


_QUERIES = tuple(Query("look", (Part(text, ()),)) for text in _TEXTS)


def _look(_: Queries) -> Generator[Statement, Rows, list[Any]]:
    tables = []
    for query in _QUERIES:
        tables.append((yield Statement(query, (), False)))
    return tables
