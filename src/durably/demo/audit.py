"""The comparison at the end: what the ledger says against what the engine says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from durably.app import Durably
from durably.client.info import TaskInfo
from durably.core.task import State
from durably.demo.ledger import Entry

PAGE = 1000


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold, and whether it does."""

    passed: bool
    text: str


def every_task(app: Durably) -> list[TaskInfo]:
    """All that the engine knows."""
    found: list[TaskInfo] = []
    while page := app.tasks.list(limit=PAGE, before=found[-1].id if found else None):
        found += page
    return found


def audit(entries: list[Entry], tasks: list[TaskInfo], orders: int) -> Iterator[Check]:
    """Everything that the demo promises."""
    accepted = [entry.task for entry in entries if entry.what == "accepted"]
    ran = Counter(entry.task for entry in entries if entry.what == "ran")
    done = {task.id for task in tasks if task.state == State.DONE}
    dead = {task.id for task in tasks if task.state == State.DEAD}
    crashed = {task.id for task in tasks if task.crashes}

    held = set(accepted) == done | dead and len(tasks) == len(accepted) == len(done) + len(dead)
    yield Check(held, f"{len(accepted):,} accepted = {len(done):,} done + {len(dead):,} dead: nothing is lost")

    yield Check(ran.keys() == done, f"each of the {len(done):,} that are done ran to its end; the dead one never did")

    twice = {task for task, times in ran.items() if times > 1}
    effect = f"{len(twice)} of them had done their work but not reported it, and did it twice" if twice else ""
    text = f"{len(crashed):,} tasks lost their worker and ran again" + (f" ({effect})" if effect else "")
    yield Check(twice <= crashed and bool(crashed), f"{text}; every other task ran exactly once")

    keys = sorted({entry.key for entry in entries if entry.key is not None})
    wrong = [key for key in keys if not in_order([entry for entry in entries if entry.key == key])]
    text = f"{len(keys)} accounts: bookings in order, one at a time, under rising fence tokens"
    yield Check(not wrong, text + (f"; not so for {', '.join(wrong)}" if wrong else ""))

    gone = {entry.task for entry in entries if entry.what == "rolled back"}
    shipped = sum(task.name == "ship" and task.state == State.DONE for task in tasks)
    stayed_away = gone.isdisjoint(done | dead | {entry.task for entry in entries if entry.what == "began"})
    text = f"{orders} orders committed, {shipped} shipped; the one that rolled back was never even attempted"
    yield Check(len(gone) == 1 and stayed_away and shipped == orders, text)


def in_order(entries: list[Entry]) -> bool:
    """Whether the steps of one key began one after the other, each once the one before had run to its end."""
    finished = token = 0
    running: int | None = None
    for entry in entries:
        if entry.token < token or entry.step not in (finished, finished + 1) or running not in (None, entry.step):
            return False
        token = entry.token
        running = entry.step if entry.what == "began" else None
        finished = entry.step if entry.what == "ran" else finished
    return running is None


def steps(entries: list[Entry], key: str) -> str:
    """The steps of a key as they began; one that began again is marked."""
    began = [entry for entry in entries if entry.key == key and entry.what == "began"]
    return " ".join(f"{entry.step}" if entry.attempt == 1 else f"{entry.step} (again)" for entry in began)
