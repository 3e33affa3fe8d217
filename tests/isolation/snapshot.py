"""What the database says, without times and absolute numbers; and what it must never say."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from .party import Connection

Row = dict[str, Any]
Tables = dict[str, list[Row]]

TABLES = (
    "tasks",
    "history",
    "attempts",
    "unique_keys",
    "turns",
    "keys",
    "lines",
    "gates",
    "permits",
    "claims",
    "prunes",
    "sessions",
    "sleepers",
    "queues",
    "cancel_requests",
)
BACKOFF = 10_000_000
"""A wait of more than this is one that someone asked for; a shorter one is only a pause before looking again."""

_TEXT = (
    "SELECT json_build_object('now', (SELECT last_value FROM isolation.clock), "
    + ", ".join(f"'{table}', (SELECT coalesce(json_agg(t), '[]'::json) FROM durably.{table} t)" for table in TABLES)
    + ")::text"
)


class Snapshot(msgspec.Struct, frozen=True):
    """Every row there is."""

    now: int
    tasks: list[Row]
    history: list[Row]
    attempts: list[Row]
    unique_keys: list[Row]
    turns: list[Row]
    keys: list[Row]
    lines: list[Row]
    gates: list[Row]
    permits: list[Row]
    claims: list[Row]
    prunes: list[Row]
    sessions: list[Row]
    sleepers: list[Row]
    queues: list[Row]
    cancel_requests: list[Row]

    def heads(self) -> dict[str, Row]:
        """The key rows that are leased, by the id of their head."""
        return {row["head"]: row for row in self.keys if row["state"] == "leased"}

    def valid_permits(self) -> list[tuple[str, str]]:
        """The permits that count: their task is leased under the token that took them."""
        heads = self.heads()
        tasks = {row["id"]: row for row in self.tasks}
        found = []
        for permit in self.permits:
            task = tasks.get(permit["task"])
            if task is None:
                continue
            head = heads.get(task["id"])
            plain = task["state"] == "leased" and task["token"] == permit["token"]
            if plain or (head is not None and head["token"] == permit["token"]):
                found.append((permit["gate"], permit["task"]))
        return found


def take(observer: Connection) -> Snapshot:
    """Read everything."""
    [(text,)] = observer.execute(_TEXT).fetchall()
    return msgspec.json.decode(text, type=Snapshot)


def _fields(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def meaning(shot: Snapshot, names: dict[str, str], *, detailed: bool = False) -> dict[str, Any]:
    """The state without what two equal histories may differ in: times, tokens, numbers, and who was already admitted.

    With `detailed`, markers, lines and pauses are told apart too.
    """

    def named(task: str | None) -> str | None:
        return None if task is None else names.get(task, task)

    waiting: dict[tuple[str, str | None, str | None], list[Row]] = defaultdict(list)
    for row in shot.tasks:
        if row["state"] == "blocked":
            waiting[row["queue"], row["key"], None if row["key"] is not None else row["gate"]].append(row)
    limited = {row["name"] for row in shot.gates}
    counted = ("version", "attempt", "spent", "crashes", "alone", "session", "cancel", "progress", "details")
    state: dict[str, Any] = {
        "tasks": sorted((named(row["id"]), row["state"], *_fields(row, *counted)) for row in shot.tasks),
        "order": sorted(
            (*(part or "" for part in place), [named(row["id"]) for row in sorted(rows, key=lambda row: row["seq"])])
            for place, rows in waiting.items()
        ),
        "history": sorted(
            (named(row["id"]), *_fields(row, "state", "version", "attempt", "spent", "crashes", "session", "reason"))
            for row in shot.history
        ),
        "attempts": sorted((named(row["task"]), *_fields(row, "attempt", "outcome")) for row in shot.attempts),
        "unique_keys": sorted(
            (*_fields(row, "namespace", "scope", "key"), named(row["task"]), row["fingerprint"], row["state"] or "")
            for row in shot.unique_keys
        ),
        "keys": sorted(
            (
                *_fields(row, "queue", "key", "state"),
                named(row["head"]) or "",
                row["session"] or "",
                row["reason"] or "",
                row["state"] == "ready" and row["ready_at"] > shot.now + BACKOFF,
            )
            for row in shot.keys
            if (row["queue"], row["key"], None) in waiting or row["state"] == "leased"
        ),
        "gates": sorted(_fields(row, "name", "concurrency", "rate", "burst") for row in shot.gates),
        "tokens": sorted((row["name"], round(row["tokens"], 1)) for row in shot.gates if row["rate"] is not None),
        "permits": sorted(
            (gate, named(task)) for gate, task in shot.valid_permits() if gate in limited or gate.startswith("g:")
        ),
        "sessions": sorted((row["id"], row["state"], row["expires_at"] > shot.now) for row in shot.sessions),
        "queues": sorted(_fields(row, "name", "state") for row in shot.queues),
        "cancel_requests": sorted(named(row["task"]) or "" for row in shot.cancel_requests),
    }
    marked = {(row["queue"], row["key"]) for row in shot.turns if row["key"] is not None}
    rows = {(row["queue"], row["key"]) for row in shot.keys}
    for queue, key in marked - rows:
        if (queue, key, None) in waiting:
            state["keys"].append((queue, key, "ready", "", "", "", False))
    state["keys"].sort()
    if detailed:
        state["turns"] = sorted((*_fields(row, "queue"), row["key"] or "", row["gate"] or "") for row in shot.turns)
        state["lines"] = sorted((*_fields(row, "queue", "gate"), row["ready_at"] > shot.now) for row in shot.lines)
        state["rows"] = sorted(
            (*_fields(row, "queue", "key", "held", "alone", "priority"), row["gate"] or "", row["ready_at"] > shot.now)
            for row in shot.keys
        )
    return state


def wrongs(shot: Snapshot, names: dict[str, str]) -> list[str]:
    """Everything that must never be so, whoever did what in which order."""
    found: list[str] = []
    tasks = {row["id"]: row for row in shot.tasks}
    ended = {row["id"] for row in shot.history}
    keys = {(row["queue"], row["key"]): row for row in shot.keys}
    lines = {(row["queue"], row["gate"]) for row in shot.lines}
    marks = {(row["queue"], row["key"], row["gate"] if row["key"] is None else None) for row in shot.turns}
    live = {row["id"] for row in shot.sessions}
    claimed = {(row["session"], row["token"], task) for row in shot.claims for task in row["tasks"]}

    def say(task: str, what: str) -> None:
        found.append(f"{names.get(task, task)} {what}")

    noted = {(row["prune_at"], task) for row in shot.prunes for task in row["tasks"]}
    for row in shot.history:
        if row["prune_at"] is not None and (row["prune_at"], row["id"]) not in noted:
            say(row["id"], "has ended, and nothing tells when it goes")

    for task, row in tasks.items():
        if task in ended:
            say(task, "is live and ended at once")
        if row["key"] is not None and row["state"] in ("leased", "ready"):
            say(task, f"has a key and is {row['state']} in tasks")
        if row["state"] == "leased" and row["session"] not in live:
            say(task, f"is leased to the session {row['session']}, which does not exist")
        if row["state"] == "leased" and (row["session"], row["token"], task) not in claimed:
            say(task, "is leased, and no claim tells of it")
        if row["state"] == "blocked":
            place = (row["queue"], row["key"])
            if row["key"] is not None and place not in keys and (*place, None) not in marks:
                say(task, "waits for its key, which has neither a row nor a marker")
            line = (row["queue"], row["gate"])
            if row["key"] is None and line not in lines and (row["queue"], None, row["gate"]) not in marks:
                say(task, "waits for its limit group, which has neither a line nor a marker")
    for (_, key), row in keys.items():
        if row["state"] != "leased":
            if row["session"] is not None or (row["head"] is not None and row["state"] == "ready"):
                found.append(f"the key {key} is {row['state']} and still names a session or a head")
            continue
        head = tasks.get(row["head"])
        if head is None:
            found.append(f"the key {key} is leased and its head {names.get(row['head'], row['head'])} is not live")
        elif (head["queue"], head["key"], head["state"]) != (row["queue"], row["key"], "blocked"):
            found.append(f"the key {key} is leased and its head {names.get(row['head'])} is {head['state']}")
        if row["session"] not in live:
            found.append(f"the key {key} is leased to the session {row['session']}, which does not exist")
    used: dict[str, int] = defaultdict(int)
    for gate, _ in shot.valid_permits():
        used[gate] += 1
    for row in shot.gates:
        if row["concurrency"] is not None and used[row["name"]] > row["concurrency"]:
            found.append(f"{used[row['name']]} permits of {row['name']} are out, and {row['concurrency']} may be")
    for row in shot.unique_keys:
        held = row["task"] in tasks
        if row["scope"] in ("live", "waiting") and not held:
            found.append(f"the unique key {row['key']} is held by {names.get(row['task'])}, which is not live")
        if row["scope"] == "waiting" and held:
            task_row = tasks[row["task"]]
            if task_row["state"] == "leased" or row["task"] in shot.heads():
                found.append(f"the unique key {row['key']} is held by {names.get(row['task'])}, which runs already")
    return found
