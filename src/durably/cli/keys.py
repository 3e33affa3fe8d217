"""`durably keys`: what waits behind what, and how to let it go on."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from durably.app import Durably
from durably.cli.connect import chosen_namespace, on_store
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer
from durably.cli.table import table
from durably.cli.tasks import as_table
from durably.cli.words import counted, printable, relative
from durably.core.explain import KeyFacts
from durably.core.moment import as_datetime
from durably.core.task import split_queue
from durably.errors import NotAllowed


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    own = group(commands, "keys", "ordering keys: look, pause, resume, skip", ["durably keys list --state paused"])
    parser = command(own, "list", "keys with tasks waiting", ["durably keys list --state paused"])
    parser.add_argument("--queue", help="only keys of this queue")
    parser.add_argument("--state", choices=["ready", "leased", "paused"], help="only keys in this state")
    limited(parser)
    on_store(parser, list_keys)
    for name, summary, run in (
        ("show", "a key and the tasks that wait in it, the head first", show),
        ("pause", "stop a key before its next task", pause),
        ("resume", "let the head of a paused key try again, with new attempts", resume),
        ("skip", "take the head out of a paused key, so that the others go on", skip),
    ):
        parser = command(own, name, summary, [f"durably keys {name} billing customer-7"])
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("key", metavar="KEY")
        if name == "pause":
            parser.add_argument("--reason", default="by an operator", help="it is shown by `why`")
        if name == "skip":
            parser.add_argument("--reason", default="", help="it is kept with the skipped task")
        on_store(parser, run)


def list_keys(app: Durably, options: argparse.Namespace) -> int:
    """`durably keys list`."""
    namespace = chosen_namespace(app, options)
    found = app.keys.list(queue=options.queue, state=options.state, limit=options.limit)
    found = [key for key in found if namespace in (None, split_queue(key.queue)[0])]
    rows = [(key.queue, key.key, _state(key), key.waiting, key.reason) for key in found]
    text = "No ordering keys wait. A key appears here once a worker has seen it."
    if rows:
        text = table(("QUEUE", "KEY", "STATE", "WAITING", "REASON"), rows, whole=("STATE", "WAITING"))
    answer(options, [as_data(key) for key in found], text)
    return 0


def _state(key: KeyFacts) -> str:
    if key.state == "ready" and (moment := relative(as_datetime(key.ready_at))).startswith("in "):
        return f"waits, due {moment}"
    return {"leased": "running"}.get(key.state, key.state)


def as_data(key: KeyFacts) -> dict[str, Any]:
    """A key for programs."""
    return {**msgspec.structs.asdict(key), "ready_at": as_datetime(key.ready_at)}


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably keys show`."""
    key, waiting = app.keys.show(options.queue, options.key)
    reason = f": {printable(key.reason)}" if key.reason else ""
    head = f"Key {printable(key.key)} of queue {printable(key.queue)}: {_state(key)}{reason}"
    text = f"{head}; {counted(key.waiting, 'task')}, the head first.\n\n{as_table(waiting)}"
    answer(options, {**as_data(key), "tasks": waiting}, text)
    return 0


def pause(app: Durably, options: argparse.Namespace) -> int:
    """`durably keys pause`."""
    if not app.keys.pause(options.queue, options.key, options.reason):
        raise NotAllowed(
            f"key {options.key!r} of queue {options.queue!r} cannot be paused now: it has no task waiting, one of its "
            "tasks is running, or it is paused already; see `durably keys list`"
        )
    return _told(options, None, "is paused")


def resume(app: Durably, options: argparse.Namespace) -> int:
    """`durably keys resume`."""
    task = app.keys.resume(options.queue, options.key)
    return _told(options, task, f"goes on; its head {task} has new attempts")


def skip(app: Durably, options: argparse.Namespace) -> int:
    """`durably keys skip`."""
    task = app.keys.skip(options.queue, options.key, options.reason)
    return _told(options, task, f"goes on without {task}, which is cancelled")


def _told(options: argparse.Namespace, task: str | None, what: str) -> int:
    data = {"queue": options.queue, "key": options.key, "task": task}
    answer(options, data, f"Key {printable(options.key)} of queue {printable(options.queue)} {what}.")
    return 0
