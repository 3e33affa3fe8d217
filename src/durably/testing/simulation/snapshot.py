"""The store's tables at one moment, read behind everyone's back."""

from __future__ import annotations

import functools
from collections.abc import Generator

import msgspec

from durably.stores.protocol import Store
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
    unique_scope: str | None
    unique_key: str | None

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
    followers: str | None

    @property
    def leased(self) -> list[str]:
        """The tasks that its session runs, in that order."""
        followers = self.followers.split(",") if self.followers else []
        return [self.head, *followers] if self.state == "leased" and self.head is not None else []


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
    session: str | None
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
    """A task that a session holds: by its own row, or in the row of its key."""

    task: str
    token: int
    session: str | None
    attempt: int


_IDS = ("id", "head")


def _columns(kind: type[msgspec.Struct]) -> str:
    return ", ".join(f"CAST({name} AS TEXT)" if name in _IDS else name for name in kind.__struct_fields__)


_TABLES = (
    f"SELECT {_columns(Row)} FROM {{prefix}}tasks ORDER BY seq",
    f"SELECT {_columns(KeyRow)} FROM {{prefix}}keys",
    f"SELECT {_columns(End)} FROM {{prefix}}history ORDER BY finished_at, id",
    "SELECT queue, key, gate FROM {prefix}turns",
    "SELECT queue, gate, ready_at FROM {prefix}lines",
    f"SELECT {_columns(SessionRow)} FROM {{prefix}}sessions",
    "SELECT CAST(task AS TEXT) FROM {prefix}cancel_requests",
    "SELECT scope, key, CAST(task AS TEXT) FROM {prefix}unique_keys",
)
_SETTINGS = (f"SELECT {_columns(GateRow)} FROM {{prefix}}gates", "SELECT name, state, cutoff FROM {prefix}queues")
_REMAINS = (
    "SELECT gate, CAST(task AS TEXT) FROM {prefix}permits",
    "SELECT CAST(task AS TEXT), attempt, outcome FROM {prefix}attempts",
    "SELECT CAST(message AS TEXT), destination, CAST(task AS TEXT) FROM {prefix}deliveries",
)


class Rules(msgspec.Struct, frozen=True):
    """What operators have set."""

    gates: dict[str, GateRow]
    queues: dict[str, tuple[str, int | None]]


class Remains(msgspec.Struct, frozen=True):
    """What is of interest only in the end."""

    permits: Rows
    attempts: Rows
    deliveries: Rows


class Snapshot:
    """Every table that matters. `leases` is who holds what, however the store writes that down."""

    def __init__(self, tables: list[Rows], rules: Rules) -> None:
        tasks, keys, ends, turns, lines, sessions, cancels, uniques = tables
        self.tasks = {row[1]: Row(*row) for row in tasks}
        self.keys = {(row[0], row[1]): KeyRow(*row) for row in keys}
        self.ends = {row[0]: End(*row) for row in ends}
        self.rules = rules
        self.turns = turns
        self.lines = lines
        self.sessions = {row[0]: SessionRow(*row) for row in sessions}
        self.cancels = {row[0] for row in cancels}
        self.uniques = uniques
        self.leases = {
            task.id: Lease(task.id, task.token, task.session, task.attempt)
            for task in self.tasks.values()
            if task.state == "leased"
        }
        for key in self.keys.values():
            for task_id in key.leased:
                if task_id in self.tasks:
                    self.leases[task_id] = Lease(task_id, key.token, key.session, self.tasks[task_id].attempt + 1)

    @property
    def gates(self) -> dict[str, GateRow]:
        """The limits."""
        return self.rules.gates

    @property
    def queues(self) -> dict[str, tuple[str, int | None]]:
        """The queues that are not simply active: their state, and up to when what was created may run."""
        return self.rules.queues

    def live(self, session: str | None) -> bool:
        """Whether the store takes this session for alive."""
        return session in self.sessions and self.sessions[session].state == "live"

    def state(self, task: str) -> str:
        """Where a task is."""
        if task in self.ends:
            return self.ends[task].state
        return "leased" if task in self.leases else self.tasks[task].state if task in self.tasks else "unknown"


def look(store: Store, prefix: str, rules: Rules | None) -> Snapshot:
    """The tables as they are now; `rules`, if they cannot have changed, are not read again."""
    if rules is None:
        gates, queues = _read(store, _SETTINGS, prefix)
        rules = Rules({row[0]: GateRow(*row) for row in gates}, {row[0]: (row[1], row[2]) for row in queues})
    return Snapshot(_read(store, _TABLES, prefix), rules)


def remains(store: Store, prefix: str) -> Remains:
    """What is of interest only in the end."""
    return Remains(*_read(store, _REMAINS, prefix))


@functools.cache
def _queries(texts: tuple[str, ...], prefix: str) -> tuple[Query, ...]:
    return tuple(Query("look", (Part(text.format(prefix=prefix), ()),)) for text in texts)


def _read(store: Store, texts: tuple[str, ...], prefix: str) -> list[Rows]:
    def steps(_: Queries) -> Generator[Statement, Rows, list[Rows]]:
        tables = []
        for query in _queries(texts, prefix):
            tables.append((yield Statement(query, (), False)))
        return tables

    return store.run(Operation("look", steps, writes=False))
