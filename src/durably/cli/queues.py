"""`durably queues`: counts, opening and closing, and limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from durably.app import Durably
from durably.cli.connect import chosen_namespace, on_store
from durably.cli.grammar import Commands, Parser, command, group
from durably.cli.output import answer, note
from durably.cli.table import table
from durably.cli.usage import Usage
from durably.cli.words import limit as told_limit
from durably.core.limits import Gate
from durably.core.task import State, full_queue, split_queue

COLUMNS = {
    "READY": State.READY,
    "BLOCKED": State.BLOCKED,
    "DELAYED": State.DELAYED,
    "RUNNING": State.LEASED,
    "DONE": State.DONE,
    "DEAD": State.DEAD,
    "CANCELLED": State.CANCELLED,
}


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    own = group(commands, "queues", "queues: counts, pause, resume, drain, limits", ["durably queues list"])
    on_store(command(own, "list", "every queue with its counts and its limit", ["durably queues list"]), list_queues)
    for name, summary, run in (
        ("pause", "start nothing more from a queue; what runs goes on", pause),
        ("resume", "open a queue again", resume),
        ("drain", "run what was accepted until now; what comes later waits until the queue is resumed", drain),
    ):
        parser = command(own, name, summary, [f"durably queues {name} billing"])
        parser.add_argument("name", metavar="NAME", help="the queue")
        on_store(parser, run)
    parser = command(
        own,
        "limit",
        "limit how many tasks of a queue, or of a limit group, run at once or start per second",
        [
            "durably queues limit billing --concurrency 5",
            "durably queues limit tenant-7 --group --rate 20/s --burst 40",
            "durably queues limit billing --off",
        ],
    )
    parser.add_argument("name", metavar="NAME", help="the queue, or with --group the limit group")
    parser.add_argument("--concurrency", metavar="N", type=int, help="so many at once")
    parser.add_argument("--rate", metavar="N/s", help="so many starts per time: 20/s, 300/m, 1000/1h")
    parser.add_argument("--burst", metavar="N", type=int, help="so many starts at once after a pause")
    parser.add_argument("--group", action="store_true", help="NAME is a limit group: the limit= of tasks")
    parser.add_argument("--off", action="store_true", help="lift the limit")
    on_store(parser, limit)
    on_store(command(own, "limits", "every limit, of queues and of groups", ["durably queues limits"]), limits)


def list_queues(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues list`."""
    namespace = chosen_namespace(app, options)
    found = [queue for queue in app.queues.list() if namespace in (None, split_queue(queue.name)[0])]
    data = [
        {
            "name": queue.name,
            "state": queue.state,
            "counts": {state.value: queue.counts.get(state, 0) for state in State},
            "limit": None if queue.limit is None else as_data(queue.limit),
        }
        for queue in found
    ]
    rows = [
        (queue.name, queue.state, *(queue.counts.get(state, 0) for state in COLUMNS.values()), told_limit(queue.limit))
        for queue in found
    ]
    text = table(("QUEUE", "STATE", *COLUMNS, "LIMIT"), rows, whole=("QUEUE",)) if rows else "No queues yet."
    answer(options, data, text)
    return 0


def as_data(gate: Gate) -> dict[str, Any]:
    """A limit for programs; the rate is per second."""
    return {"concurrency": gate.concurrency, "rate": gate.rate, "burst": None if gate.rate is None else gate.burst}


def pause(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues pause`."""
    return _set(app, options, app.queues.pause, "paused", "is paused: nothing more starts, and what runs goes on")


def resume(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues resume`."""
    return _set(app, options, app.queues.resume, "active", "is open")


def drain(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues drain`."""
    told = "is draining: what was accepted until now runs, what comes later waits until it is resumed"
    return _set(app, options, app.queues.drain, "draining", told)


def _set(app: Durably, options: argparse.Namespace, do: Callable[[str], None], state: str, told: str) -> int:
    known = [queue.name for queue in app.queues.list()]
    do(options.name)
    name = _full(app, options.name)
    if name not in known:
        others = f"; there are {', '.join(known)}" if known else ""
        note(f"no task has been in a queue named {name!r} so far{others}")
    answer(options, {"queue": name, "state": state}, f"Queue {name} {told}.")
    return 0


def limit(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues limit`."""
    wanted = options.concurrency is not None or options.rate is not None
    if options.off == wanted or (options.off and options.burst is not None):
        raise Usage("give --concurrency, --rate or both; or --off, which lifts the limit")
    setting = app.limits.set if options.group else app.queues.limit
    setting(options.name, concurrency=options.concurrency, rate=options.rate, burst=options.burst)
    gate = f"g:{options.name}" if options.group else f"q:{_full(app, options.name)}"
    found = next((one for one in app.limits.list() if one.name == gate), None)
    data = {**_named(gate), "limit": None if found is None else as_data(found)}
    what = f"Limit group {options.name}" if options.group else f"Queue {_full(app, options.name)}"
    answer(options, data, f"{what} has no limit." if found is None else f"{what} is limited to {told_limit(found)}.")
    return 0


def limits(app: Durably, options: argparse.Namespace) -> int:
    """`durably queues limits`."""
    found = app.limits.list()
    rows = [(*_named(gate.name).values(), told_limit(gate)) for gate in found]
    text = table(("NAME", "KIND", "LIMIT"), rows, whole=("NAME",)) if rows else "No limits are set."
    answer(options, [{**_named(gate.name), "limit": as_data(gate)} for gate in found], text)
    return 0


def _named(gate: str) -> dict[str, str]:
    return {"name": gate[2:], "kind": "group" if gate.startswith("g:") else "queue"}


def _full(app: Durably, queue: str) -> str:
    return queue if "/" in queue else full_queue(app.namespace, queue)
