"""One task in full: its facts, why it is where it is, and every attempt that failed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from durably.cli.output import compact
from durably.cli.words import exact, printable, relative
from durably.client.info import AttemptInfo, TaskInfo
from durably.core.explain import Why
from durably.core.moment import as_datetime, micros, spoken

MOMENTS = {"finished_at", "due_at", "started_at", "lease_until", "cutoff"}


def as_data(task: TaskInfo, attempts: list[AttemptInfo], why: Why) -> dict[str, Any]:
    """The task for programs: its fields, its failed attempts, and why it is where it is."""
    return {**msgspec.structs.asdict(task), "attempts": attempts, "why": reason(why)}


def reason(why: Why) -> dict[str, Any]:
    """The answer of `why` for programs, with moments as ISO times."""
    evidence = {
        name: as_datetime(value) if name in MOMENTS and isinstance(value, int) else value
        for name, value in why.evidence.items()
    }
    return {"code": why.code, "sentence": why.sentence, "evidence": evidence}


def as_text(task: TaskInfo, attempts: list[AttemptInfo], why: Why) -> str:
    """The task for people."""
    head = f"{task.id}  {printable(task.name)}  {task.state}"
    facts = [f"  {name:<10} {value}" for name, value in _facts(task) if value not in ("", None)]
    return "\n".join([head, *facts, "", sentence(why.sentence), *(told(attempt) for attempt in attempts)])


def sentence(text: str) -> str:
    """A sentence in lines that can be read."""
    return textwrap.fill(printable(text), 100, break_long_words=False, break_on_hyphens=False)


def told(attempt: AttemptInfo) -> str:
    """An attempt that did not end the task well, with its traceback."""
    took = ""
    if attempt.started_at is not None:
        took = f" after {spoken(micros((attempt.finished_at - attempt.started_at).total_seconds()))}"
    first = f"\nattempt {attempt.attempt} {attempt.outcome}{took}, {relative(attempt.finished_at)}"
    error = f"{attempt.error}: {attempt.message}" if attempt.message else attempt.error
    body = attempt.trace.rstrip() or error
    return f"{first}\n{textwrap.indent(printable(body, lines=True), '  ')}"


def _facts(task: TaskInfo) -> Iterator[tuple[str, Any]]:
    yield "queue", printable(task.queue)
    if task.namespace != "default":
        yield "namespace", printable(task.namespace)
    if task.key is not None:
        yield "key", f"{printable(task.key)} (order {task.order})"
    if task.limit is not None:
        yield "limit", printable(task.limit)
    if task.unique is not None:
        yield "unique", printable(task.unique)
    yield "tags", printable(", ".join(task.tags))
    yield "attempts", how_often(task)
    yield "accepted", exact(task.created_at)
    for name, moment in (("due", task.due_at), ("started", task.started_at), ("finished", task.finished_at)):
        if moment is not None:
            yield name, exact(moment)
    if task.expires_at is not None and task.finished_at is None:
        yield "expires", exact(task.expires_at)
    if task.progress is not None:
        share = "" if task.progress.fraction is None else f"{task.progress.fraction:.0%} "
        yield "progress", printable(f"{share}{task.progress.message}").strip()
    yield "arguments", compact(task.arguments)
    if task.result is not None:
        yield "result", compact(task.result)


def how_often(task: TaskInfo) -> str:
    """How many there were, and what is remarkable about them."""
    notes = []
    if task.spent != task.attempt:
        notes.append(f"{task.spent} of this cycle")
    if task.crashes:
        notes.append(f"its process died {task.crashes} times" if task.crashes > 1 else "its process died once")
    if task.at_most_once:
        notes.append("at most once")
    return f"{task.attempt} ({', '.join(notes)})" if notes else str(task.attempt)
