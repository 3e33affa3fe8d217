"""Writes docs/explanation/states.md from the code, so that it cannot lie.

What is decided comes from the pure functions of `durably.core.lifecycle`, asked about every kind of task. What is mere
mechanics (accepting, promoting, claiming, replaying) is watched on a store in memory. Run it with
`python docs/generate_states.py`; a test compares the page with what this prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from durably.core import lifecycle
from durably.core.change import Change
from durably.core.moment import SECOND, spoken
from durably.core.retry import Retry
from durably.core.task import ENDS, Failure, Policy, State, Task
from durably.stores.operations.control import replay
from durably.stores.sqlite.store import SqliteStore
from durably.testing.clock import ManualClock
from durably.testing.world import World

PAGE = Path(__file__).parent / "explanation" / "states.md"

ERROR = Failure("Boom", "it broke")
FATAL = Failure("Boom", "it broke", permanent=True)
RETRY = Retry.after(10)
AT_ONCE = Retry.constant(2, 0)


class Kind(NamedTuple):
    """A kind of task: where it waits while it is due and not running, and what an enqueue says to make it so."""

    title: str
    waits: State
    key: str | None = None
    policy: str | None = None
    gate: str | None = None


KINDS = [
    Kind("plain", State.READY),
    Kind("limit group", State.BLOCKED, gate="g"),
    Kind("key, `block`", State.BLOCKED, key="k"),
    Kind("key, `overtake`", State.BLOCKED, key="k", policy=Policy.OVERTAKE),
    Kind("key, `pause`", State.BLOCKED, key="k", policy=Policy.PAUSE),
]


class Event(NamedTuple):
    """Something that happens to a task: to which, and what is decided about it."""

    title: str
    word: str
    """For the diagram, where there is little room."""
    decide: Callable[[Task], Change]
    task: dict[str, object]


def running(title: str, word: str, decide: Callable[[Task], Change], **task: object) -> Event:
    """An event of a task that a worker has claimed, for the first time in its cycle."""
    return Event(title, word, decide, {"state": State.LEASED, "attempt": 1, "spent": 1, "session": "s", **task})


WHILE_RUNNING = [
    running("its handler returned", "returned", lambda task: lifecycle.complete(task, None)),
    running("it failed, attempts are left", "failed", lambda task: lifecycle.fail(task, ERROR, RETRY, 0.0)),
    running("it failed, and is due again at once", "failed", lambda task: lifecycle.fail(task, ERROR, AT_ONCE, 0.0)),
    running(
        "it failed, its attempts are used up", "gave up", lambda task: lifecycle.fail(task, ERROR, RETRY, 0.0), spent=2
    ),
    running(
        "it failed, attempts are left, `at_most_once`",
        "failed",
        lambda task: lifecycle.fail(task, ERROR, RETRY, 0.0),
        once=True,
    ),
    running("it failed for good (`Permanent`)", "gave up", lambda task: lifecycle.fail(task, FATAL, RETRY, 0.0)),
    running("it snoozed (`Snooze`)", "snoozed", lambda task: lifecycle.snooze(task, 10.0)),
    running("it discarded itself (`Discard`)", "discarded", lambda task: lifecycle.discard(task, "pointless")),
    running("its row could not be read", "gave up", lambda task: lifecycle.spoil(task, ERROR)),
    running("its name is not known to the worker", "put back", lambda task: lifecycle.put_back(task, 2.0)),
    running("its time ran out before it began", "expired", lifecycle.expire),
    running("its worker shut down", "released", lambda task: lifecycle.release(task, started=True)),
    running(
        "its worker shut down, `at_most_once`",
        "gave up",
        lambda task: lifecycle.release(task, started=True),
        once=True,
    ),
    running("its worker died, the first time", "crashed", lifecycle.lapse),
    running("its worker died, the second time", "crashed", lifecycle.lapse, crashes=1),
    running("its worker died, the third time, running alone", "gave up", lifecycle.lapse, crashes=2, alone=True),
    running("its worker died, `at_most_once`", "gave up", lifecycle.lapse, once=True),
    running("it was asked to stop", "asked to stop", lambda task: lifecycle.cancel(task, "not wanted")),
    running("it stopped because it was asked to", "stopped", lifecycle.stop, cancel="not wanted"),
    running(
        "it failed after it was asked to stop",
        "stopped",
        lambda task: lifecycle.fail(task, ERROR, RETRY, 0.0),
        cancel="not wanted",
    ),
    running("its worker died after it was asked to stop", "stopped", lifecycle.lapse, cancel="not wanted"),
]

WHILE_WAITING: list[tuple[str, str, Callable[[Task], Change]]] = [
    ("it was cancelled", "cancelled", lambda task: lifecycle.cancel(task, "not wanted")),
    ("its time ran out", "expired", lifecycle.expire),
]

ON_A_PAUSED_KEY: list[tuple[str, str, Callable[[Task], Change]]] = [
    ("its key was resumed", "resumed", lifecycle.resume),
    ("it was skipped", "skipped", lambda task: lifecycle.skip(task, "by an operator")),
]


class Edge(NamedTuple):
    """A step from one state to another."""

    before: str
    after: str
    word: str


def a_task(kind: Kind, **given: object) -> Task:
    """A task of this kind, with the rest as an enqueue leaves it."""
    blank = Task(
        id="01890a5d-ac96-774b-bcce-b302099a8057",
        seq=1,
        version=0,
        name="work",
        queue="default",
        state=kind.waits,
        priority=5,
        ready_at=0,
        key=kind.key,
        policy=kind.policy,
        gate=kind.gate,
        payload=b"{}",
        options=None,
        tags=None,
        once=False,
        alone=False,
        attempt=0,
        spent=0,
        crashes=0,
        token=1,
        session=None,
        created_at=0,
        started_at=None,
        expires_at=None,
        cancel=None,
        unique_scope=None,
        unique_key=None,
        progress=None,
        details=None,
    )
    return msgspec.structs.replace(blank, **given)


def outcome(change: Change) -> str:
    """Where a change leads, in a cell of the table."""
    notes = []
    if change.pause:
        notes.append("key paused")
    elif change.state == State.BLOCKED and change.task.key is not None and not change.rejoin:
        notes.append("keeps its place")
    elif change.rejoin:
        notes.append("joins the tail")
    if change.due_in:
        notes.append(f"waits {spoken(change.due_in)}")
    if change.alone:
        notes.append("next time alone")
    return f"`{change.state}`" + (f" ({', '.join(notes)})" if notes else "")


def numbers(change: Change) -> str:
    """What becomes of the budget and the count of crashes."""
    told = []
    if not change.ends and change.task.state == State.LEASED and change.state != State.LEASED:
        told.append("attempt charged" if change.spent == change.task.spent else "attempt refunded")
    elif change.spent < change.task.spent:
        told.append("new budget")
    if change.crashes > change.task.crashes:
        told.append("crash counted")
    return ", ".join(told) or "-"


def kept(change: Change) -> str:
    """What is left behind: a row for the attempt, and how long the ended task is kept."""
    told = []
    if change.attempt is not None:
        told.append(f"attempt {change.attempt.outcome!r}".replace("'", "`"))
    if change.ends:
        told.append("kept until purged" if change.keep_for is None else f"kept {spoken(change.keep_for)}")
    return ", ".join(told) or "-"


def decided() -> Iterator[tuple[str, list[Change], str]]:
    """Every decision about a running task: its title, what it means for each kind of task, and its word."""
    for event in WHILE_RUNNING:
        yield event.title, [event.decide(a_task(kind, **event.task)) for kind in KINDS], event.word


def waiting() -> Iterator[tuple[str, list[Change], str]]:
    """The same for a task that waits, due or not."""
    for title, word, decide in WHILE_WAITING:
        tasks = [a_task(kind) for kind in KINDS] + [a_task(kind, state=State.DELAYED) for kind in KINDS]
        yield title, [decide(task) for task in tasks], word


def paused() -> Iterator[tuple[str, Change, str]]:
    """The same for the head of a paused key."""
    for title, word, decide in ON_A_PAUSED_KEY:
        yield title, decide(a_task(KINDS[-1], attempt=2, spent=2)), word


def mechanics() -> Iterator[Edge]:
    """What the store does without deciding anything, watched on a real one."""
    for kind in KINDS:
        clock = ManualClock()
        world = World(SqliteStore(":memory:", clock), clock, clock.advance, "sync")
        given = {"key": kind.key, "policy": kind.policy, "gate": kind.gate}
        task = world.add(**given)
        yield Edge("[*]", world.get(task).state, "enqueued")
        before = world.get(task).state
        [claimed] = world.claim(world.session("s"))
        yield Edge(before, claimed.state, "claimed")
        world.apply(lifecycle.spoil(claimed, ERROR))
        world.run(replay([task]))
        yield Edge(State.DEAD, world.get(task).state, "replayed")
        world.finish(*world.claim("s"))
        later = world.add(**given, due_in=SECOND)
        yield Edge("[*]", world.get(later).state, "enqueued with a delay")
        world.advance(1)
        world.promote()
        yield Edge(State.DELAYED, world.get(later).state, "fell due")
        world.close()


def edges() -> list[Edge]:
    """Every step that any kind of task can take, each once."""
    found = list(mechanics())
    for _, changes, word in [*decided(), *waiting()]:
        found += [Edge(str(change.task.state), str(change.state), word) for change in changes]
    for _, change, word in paused():
        found.append(Edge(str(change.task.state), str(change.state), word))
    return list(dict.fromkeys(edge for edge in found))


def diagram() -> str:
    """The steps as a Mermaid state diagram; several words on the same arrow share it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, after, word in edges():
        words = arrows.setdefault((before, after), [])
        if word not in words:
            words.append(word)
    lines = [f"    {before} --> {after}: {', '.join(words)}" for (before, after), words in arrows.items()]
    ends = [f"    {state} --> [*]" for state in State if state in ENDS]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, *ends, "```"])


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shared(tell: Callable[[Change], str], changes: list[Change]) -> str:
    """What is told of all of them, except of those that wait for a person; each answer once."""
    return " or ".join(dict.fromkeys(tell(change) for change in changes if not change.pause))


def page() -> str:
    """The whole page."""
    while_running = [
        [title, *(outcome(change) for change in changes), shared(numbers, changes), shared(kept, changes)]
        for title, changes, _ in decided()
    ]
    while_waiting = [[title, shared(outcome, changes), shared(kept, changes)] for title, changes, _ in waiting()]
    on_paused = [[title, outcome(change), numbers(change), kept(change)] for title, change, _ in paused()]
    states = [[f"`{state}`", MEANING[state]] for state in State]
    parts = [
        "# States",
        "This page is generated by `docs/generate_states.py` from the code that decides. Do not edit it.",
        "## The states",
        table(["state", "meaning"], states),
        "A task has ended when it is `done`, `dead` or `cancelled`. Only a replay brings a dead letter back.",
        "## The diagram",
        diagram(),
        "## While it runs",
        "One column for each kind of task: a plain one, one with `limit=`, and one with `key=` under each `order=`.\n"
        "Where the key is paused, the attempt is recorded like the others and the task stays;\n"
        "the last two columns are about the rest.",
        table(["what happened", *(kind.title for kind in KINDS), "numbers", "left behind"], while_running),
        "The example policy waits 10 s once and then gives up. A crash counts against `crash_cap`, which is 3.",
        "## While it waits",
        "It is `delayed`, `ready` or `blocked`.",
        table(["what happened", "it becomes", "left behind"], while_waiting),
        "## At the head of a paused key",
        table(["what happened", "it becomes", "numbers", "left behind"], on_paused),
    ]
    return "\n\n".join(parts) + "\n"


MEANING = {
    State.DELAYED: "It is not due yet. A worker promotes it when it is.",
    State.READY: "It can be claimed at once.",
    State.BLOCKED: "It waits for its turn: in its ordering key, or in its limit group.",
    State.LEASED: "A worker has claimed it and runs it.",
    State.DONE: "Its handler returned.",
    State.DEAD: "It was given up, with its payload and every error: a dead letter.",
    State.CANCELLED: "It was cancelled, skipped or discarded, or it expired; the reason says which.",
}


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
