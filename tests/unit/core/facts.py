"""Tasks and other facts as a store would tell them, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from durably.core.explain import Evidence, KeyFacts, SessionFacts
from durably.core.moment import SECOND
from durably.core.task import AttemptRow, Options, Task, pack_options

NOW = 1_800_000_000 * SECOND
ID = "0190a5b2-4c00-7abc-8000-000000000001"


def a_task(**changes: Any) -> Task:
    """A task that a worker runs for the first time; `options` may be given unpacked."""
    if isinstance(changes.get("options"), Options):
        changes["options"] = pack_options(changes["options"])
    plain = Task(
        id=ID,
        seq=1,
        version=3,
        name="charge",
        queue="billing",
        state="leased",
        priority=5,
        ready_at=NOW,
        key=None,
        policy=None,
        gate=None,
        payload=b'{"cents":5}',
        options=None,
        tags=None,
        once=False,
        alone=False,
        attempt=1,
        spent=1,
        crashes=0,
        token=7,
        session="worker",
        created_at=NOW,
        started_at=None,
        expires_at=None,
        cancel=None,
        unique_scope=None,
        unique_key=None,
        progress=None,
        details=None,
    )
    return msgspec.structs.replace(plain, **changes)


def a_session(**changes: Any) -> SessionFacts:
    """A live worker that serves the queue and knows the task."""
    plain = SessionFacts(
        "worker", "live", NOW - 90 * SECOND, NOW - SECOND, NOW + 29 * SECOND, "here", 42, ("billing",), ("charge",)
    )
    return msgspec.structs.replace(plain, **changes)


def a_key(**changes: Any) -> KeyFacts:
    """An ordering key that is ready for its next task."""
    plain = KeyFacts("billing", "customer-7", "ready", NOW, 5, None, 0, None, None, 1)
    return msgspec.structs.replace(plain, **changes)


def an_attempt(**changes: Any) -> AttemptRow:
    """An attempt that failed."""
    plain = AttemptRow(ID, 1, "failed", "ValueError", "no such card.\nand more", "", "worker", 7, NOW, NOW)
    return msgspec.structs.replace(plain, **changes)


def evidence(task: Task, **changes: Any) -> Evidence:
    """What decides why a task is where it is: nothing stands in its way, and one worker lives."""
    plain = Evidence(task, NOW, "active", None, [a_session()], [], {}, None, None, None, 0, [])
    return msgspec.structs.replace(plain, **changes)
