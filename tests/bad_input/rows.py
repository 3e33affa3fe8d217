"""Kinds of malformed rows: what the constraints of the tables let pass, and the engine never writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.bad_input.raw import (
    EARLY,
    FAR,
    NOW,
    Numbered,
    a_gate,
    a_key,
    a_session,
    a_task,
    an_attempt,
    an_end,
    an_id,
)

Plant = Callable[[Numbered], None]
DEEP = "[" * 100_000
MOST = 2**31 - 1


def task(**wrong: Any) -> Plant:
    """A live task."""
    return lambda raw: raw.insert("tasks", **a_task(**wrong))


def keyed(key: dict[str, Any] | None, **wrong: Any) -> Plant:
    """A task that waits in a key, and what is known of the key."""

    def plant(raw: Numbered) -> None:
        raw.insert("tasks", **a_task(state="blocked", key="odd", **wrong))
        if key is not None:
            raw.insert("keys", **a_key(**key))

    return plant


def limited(gate: dict[str, Any], **wrong: Any) -> Plant:
    """A task of a limit group, and the group's limit."""

    def plant(raw: Numbered) -> None:
        raw.insert("gates", **a_gate(**gate))
        raw.insert("tasks", **a_task(state="blocked", gate="odd", **wrong))
        raw.insert("lines", queue="default", gate="odd", ready_at=NOW)

    return plant


def queue_limit(**gate: Any) -> Plant:
    """A limit of the queue that everyone uses is the one thing that may stop them all; this is of another queue."""
    return lambda raw: raw.insert("gates", **a_gate(name="q:odd", **gate))


def row(table: str, columns: dict[str, Any]) -> Plant:
    """A row of any table."""
    return lambda raw: raw.insert(table, **columns)


def ended(*attempts: dict[str, Any], **wrong: Any) -> Plant:
    """An ended task, and its attempts."""

    def plant(raw: Numbered) -> None:
        raw.insert("history", **an_end(**wrong))
        for attempt in attempts:
            raw.insert("attempts", **an_attempt(**attempt))

    return plant


def both(raw: Numbered) -> None:
    raw.insert("tasks", **a_task())
    raw.insert("history", **an_end())


def unique_of_nobody(raw: Numbered) -> None:
    taken = {"namespace": "default", "scope": "live", "key": "odd", "task": an_id(99), "fingerprint": ""}
    raw.insert("unique_keys", **taken, expires_at=FAR, state="weird", result=b"\xff")


def misspelled(table: str, column: str) -> Plant:
    """Text that is no UTF-8, which only SQLite keeps."""

    def plant(raw: Numbered) -> None:
        if table == "tasks":
            raw.insert("tasks", **a_task())
        else:
            raw.insert("history", **an_end(state="dead", reason="r"))
            raw.insert("attempts", **an_attempt())
        raw.misspell(table, column)

    return plant


def session_of_a_task(raw: Numbered) -> None:
    raw.insert("sessions", **a_session(state="weird"))
    raw.insert("tasks", **a_task(state="leased", session="odd", attempt=1, spent=1, token=1))


def paused_for_nobody(raw: Numbered) -> None:
    raw.insert("tasks", **a_task(state="blocked", key="odd"))
    raw.insert("keys", **a_key(state="paused", head=an_id(99), reason="x\ny"))


FAILS = b'{"number":-1}'
"""The handler fails with it."""

ROWS: dict[str, Plant] = {
    "payload that is no text": task(payload=b"\xff\xfe\x00"),
    "payload that is empty": task(payload=b""),
    "payload that breaks off": task(payload=b'{"number":'),
    "payload that is null": task(payload=b"null"),
    "payload that is a list": task(payload=b"[7]"),
    "payload of the wrong type": task(payload=b'{"number":"seven"}'),
    "payload with an unknown argument": task(payload=b'{"number":7,"colour":"blue"}'),
    "payload without its argument": task(payload=b"{}"),
    "payload a hundred thousand levels deep": task(payload=DEEP.encode()),
    "payload of two megabytes": task(payload=b"\xff" * 2_000_000),
    "options that are msgpack": task(options=b"\x81\xa5retry\x05"),
    "options that are no JSON": task(options=b"retry: 5"),
    "options that are a list": task(options=b"[]"),
    "options of the wrong type": task(options=b'{"retry":5}'),
    "options a hundred thousand levels deep": task(options=b'{"x":' + DEEP.encode()),
    "options with endless retention": task(options=b'{"retention":1e300}'),
    "options with negative retention": task(options=b'{"retention":-1e300}'),
    "options with a retry without delays": task(
        payload=FAILS, options=b'{"retry":{"kind":"after","attempts":5,"delays":[]}}'
    ),
    "options with an unknown retry": task(payload=FAILS, options=b'{"retry":{"kind":"weird","attempts":5}}'),
    "options with a function for retry": task(
        payload=FAILS, options=b'{"retry":{"kind":"custom","attempts":5,"function":"os.system"}}'
    ),
    "options with negative attempts": task(
        payload=FAILS, options=b'{"retry":{"kind":"after","attempts":-5,"delays":[1]}}'
    ),
    "options with endless delays": task(
        payload=FAILS,
        options=b'{"retry":{"kind":"exponential","attempts":5,"base":1e300,"factor":1e300,"cap":1e300}}',
    ),
    "options with a negative timeout": task(options=b'{"timeout":-1}'),
    "options with an endless timeout": task(options=b'{"timeout":1e308}'),
    "options with a negative crash cap": task(state="leased", session="gone", options=b'{"crash_cap":-7}'),
    "options with a hook of no queue": task(payload=b"", options=b'{"on_dead":"\\u0000","on_dead_queue":"a/b/c"}'),
    "state that does not exist": task(state="weird"),
    "state that is empty": task(state=""),
    "state of an end among the living": task(state="done"),
    "state leased by nobody": task(state="leased", session=None),
    "state leased by a session that does not exist": task(state="leased", session="gone", attempt=1, spent=1),
    "state leased by a session in an odd state": session_of_a_task,
    "state blocked by nothing": task(state="blocked"),
    "state delayed until the end of time": task(state="delayed", ready_at=FAR),
    "state delayed since the beginning of time": task(state="delayed", ready_at=EARLY),
    "name that nobody knows": task(name="nobody knows me"),
    "name that is empty": task(name=""),
    "name of ten thousand characters": task(name="n" * 10_000),
    "name with control characters": task(name="\x1b[31m\n\r\t"),
    "queue that is empty": task(queue=""),
    "queue with many slashes": task(queue="a/b/c/"),
    "priority below zero": task(priority=-1),
    "priority above nine": task(priority=42),
    "priority above nine in a key": keyed({}, priority=42),
    "attempt below zero": task(attempt=-5, spent=-5),
    "attempt at its highest": task(attempt=MOST),
    "attempt at its highest in a key": keyed({}, attempt=MOST, spent=MOST),
    "spent at its highest": task(spent=MOST, payload=FAILS),
    "crashes below zero": task(crashes=-5, state="leased", session="gone"),
    "crashes at their highest": task(crashes=MOST, state="leased", session="gone"),
    "version at its highest": task(version=FAR),
    "version below zero": task(version=-1),
    "token at its highest": task(token=FAR),
    "partition below zero": task(partition=-1),
    "created at the end of time": task(created_at=FAR),
    "created at the beginning of time": task(created_at=EARLY),
    "ready since the beginning of time": task(ready_at=EARLY),
    "ready at the end of time": task(ready_at=FAR),
    "started at the end of time": task(started_at=FAR),
    "expired at the beginning of time": task(expires_at=EARLY),
    "expires at the end of time": task(expires_at=FAR),
    "alone without a crash": task(alone=True),
    "tags that are no JSON": task(tags="{"),
    "tags that are a number": task(tags="5"),
    "tags that are a hundred thousand levels deep": task(tags=DEEP),
    "progress that is no JSON": task(progress="{"),
    "progress that is a hundred thousand levels deep": task(progress=DEEP),
    "details that cannot be read": task(details=b"\xff"),
    "cancel requested of what waits": task(cancel="odd"),
    "unique scope that does not exist": task(unique_scope="weird", unique_key="k"),
    "unique scope without a key": task(unique_scope="live"),
    "unique key of nobody": unique_of_nobody,
    "policy that does not exist": keyed({}, policy="weird", payload=FAILS),
    "key without a row": keyed(None),
    "key row without tasks": row("keys", a_key()),
    "key row in an odd state": keyed({"state": "weird"}),
    "key row with an odd priority": keyed({"priority": 42}),
    "key row leased to nobody": keyed({"state": "leased", "session": None, "head": an_id(99), "token": 5}),
    "key row leased without a head": keyed({"state": "leased", "session": "gone", "token": 5}),
    "key row leased by a head of nobody": keyed({"state": "leased", "session": "gone", "head": an_id(99), "token": 5}),
    "key row at the end of time": keyed({"ready_at": FAR}),
    "key row paused for nobody": paused_for_nobody,
    "marker of nothing": row(
        "turns", {"queue": "default", "priority": 5, "alone": False, "ready_at": NOW, "key": None, "gate": None}
    ),
    "marker with odd numbers": row(
        "turns", {"queue": "default", "priority": -7, "alone": False, "ready_at": FAR, "key": "odd", "gate": "odd"}
    ),
    "limit with an infinite rate": limited({"rate": math.inf}),
    "limit with a negative rate": limited({"rate": -1.0, "tokens": 0.0}),
    "limit with a tiny rate": limited({"rate": 1e-300, "tokens": 0.0}),
    "limit with infinite tokens": limited({"burst": math.inf, "tokens": math.inf}),
    "limit with negative tokens": limited({"tokens": -1e300}),
    "limit with negative concurrency": limited({"concurrency": -5, "rate": None}),
    "limit of a queue with infinite tokens": queue_limit(burst=math.inf, tokens=math.inf),
    "limit refilled at the end of time": limited({"refilled_at": FAR, "tokens": 0.0}),
    "limit without a line": task(state="blocked", gate="odd"),
    "line without tasks": row("lines", {"queue": "default", "gate": "odd", "ready_at": EARLY}),
    "permit of nobody": row("permits", {"gate": "g:odd", "task": an_id(99), "token": -1}),
    "session that describes itself in no JSON": row("sessions", a_session(info="{")),
    "session that describes itself in wrong types": row("sessions", a_session(info='{"queues":5,"stuck":"x"}')),
    "session that describes itself as another": row("sessions", a_session(info='{"id":7,"state":[],"host":null}')),
    "session that describes itself too deeply": row("sessions", a_session(info=DEEP)),
    "session until the end of time": row("sessions", a_session(expires_at=FAR, beat_at=EARLY, pid=-1, host="")),
    "queue in an odd state": row("queues", {"name": "odd", "state": "weird", "cutoff": EARLY}),
    "cancel request for nobody": row("cancel_requests", {"task": an_id(99), "reason": ""}),
    "sleeper of nobody": row("sleepers", {"queue": "default", "session": "nobody"}),
    "history with a result that cannot be read": ended(result=b"\xff"),
    "history with an odd state": ended(state="weird"),
    "history from the end of time": ended(finished_at=FAR, created_at=EARLY, started_at=FAR),
    "history without a reason": ended(state="dead", reason=None),
    "history of one that still lives": both,
    "attempt with an odd outcome": ended({"outcome": "", "kind": "", "message": "", "trace": ""}, state="dead"),
    "attempt at the end of time": ended({"started_at": EARLY, "finished_at": FAR}, state="dead"),
    "attempt with a negative number": ended({"attempt": -3, "token": -3}, state="dead"),
}

SQLITE_ONLY: dict[str, Plant] = {
    "id that is none": task(id="not an id"),
    "id that is none, with a hook": task(id="not an id", payload=b"", options=b'{"on_dead":"work"}'),
    "name that is no UTF-8": misspelled("tasks", "name"),
    "tags that are no UTF-8": misspelled("tasks", "tags"),
    "reason that is no UTF-8": misspelled("history", "reason"),
    "message that is no UTF-8": misspelled("attempts", "message"),
}
POSTGRES_ONLY: dict[str, Plant] = {
    "limit with a rate that is no number": limited({"rate": math.nan}),
    "limit with tokens that are no number": limited({"burst": math.nan, "tokens": math.nan}),
    "order below zero": task(seq=-1),
    "order at its highest": task(seq=FAR),
}
