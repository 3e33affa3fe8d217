"""`durably tasks` and `durably why`: looking at tasks, and cancelling them."""

from __future__ import annotations

import argparse
import sys

from durably.app import Durably
from durably.cli.connect import on_store
from durably.cli.detail import as_data, as_text, reason, sentence
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer, note
from durably.cli.table import table
from durably.cli.words import relative
from durably.client.handle import Cancellation
from durably.client.info import TaskInfo
from durably.core.task import State, full_queue
from durably.errors import NotAllowed


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    own = group(commands, "tasks", "look at tasks, or cancel one", ["durably tasks list --state dead"])
    parser = command(
        own,
        "list",
        "tasks, newest first, and when they ended, began to run, fall due or were accepted",
        ["durably tasks list --state ready --queue billing", "durably tasks list --json --limit 1000"],
    )
    parser.add_argument("--state", choices=[state.value for state in State], help="only tasks in this state")
    parser.add_argument("--queue", help="only tasks of this queue")
    parser.add_argument("--task", metavar="NAME", help="only tasks of this name")
    parser.add_argument("--key", help="only tasks with this ordering key")
    parser.add_argument("--tag", help="only tasks with this tag")
    parser.add_argument("--before", metavar="ID", help="only tasks older than this one: the next page")
    limited(parser)
    on_store(parser, list_tasks)

    parser = command(own, "show", "one task with every failed attempt", ["durably tasks show 0190a5d1"])
    parser.add_argument("id", metavar="ID", help="the id, or its beginning")
    on_store(parser, show)

    example = "durably tasks cancel 0190a5d1 --reason 'the order was withdrawn'"
    parser = command(own, "cancel", "cancel a task: what waits ends, what runs is asked to stop", [example])
    parser.add_argument("id", metavar="ID", help="the id, or its beginning")
    parser.add_argument("--reason", default="cancelled by an operator", help="it is kept with the task")
    on_store(parser, cancel)

    parser = command(commands, "why", "why a task is not running, or not done", ["durably why 0190a5d1"])
    parser.add_argument("id", metavar="ID", help="the id, or its beginning")
    on_store(parser, why)


def list_tasks(app: Durably, options: argparse.Namespace) -> int:
    """`durably tasks list`."""
    before = None if options.before is None else app.tasks.find(options.before).id
    found = app.tasks.list(
        limit=options.limit,
        state=options.state,
        queue=options.queue,
        task=options.task,
        key=options.key,
        tag=options.tag,
        before=before,
    )
    answer(options, found, as_table(found) if found else "No tasks match.")
    if len(found) == options.limit and sys.stdout.isatty():
        note(f"{options.limit} are shown; --limit shows more, --before {found[-1].id} the next ones")
    return 0


def as_table(tasks: list[TaskInfo]) -> str:
    """Tasks, one per line."""
    rows = [
        (task.id, task.state, task.name, full_queue(task.namespace, task.queue), task.key, task.attempt, moment(task))
        for task in tasks
    ]
    return table(("ID", "STATE", "TASK", "QUEUE", "KEY", "TRIES", "WHEN"), rows, whole=("STATE", "TRIES", "WHEN"))


def moment(task: TaskInfo) -> str:
    """When it ended, began to run, falls due, or was accepted: what matters most for its state."""
    started = task.started_at if task.state == State.LEASED else None
    due = task.due_at if task.state == State.DELAYED else None
    return relative(task.finished_at or started or due or task.created_at)


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably tasks show`."""
    handle = app.tasks.find(options.id)
    facts = handle.info(), handle.attempts(), handle.why()
    answer(options, as_data(*facts), as_text(*facts))
    return 0


def cancel(app: Durably, options: argparse.Namespace) -> int:
    """`durably tasks cancel`."""
    handle = app.tasks.find(options.id)
    outcome = handle.cancel(options.reason)
    if outcome == Cancellation.ENDED:
        raise NotAllowed(f"task {handle.id} has already ended: it is {handle.state()}")
    told = "is cancelled" if outcome == Cancellation.CANCELLED else "is running and was asked to stop"
    answer(options, {"id": handle.id, "outcome": outcome}, f"Task {handle.id} {told}.")
    return 0


def why(app: Durably, options: argparse.Namespace) -> int:
    """`durably why`."""
    handle = app.tasks.find(options.id)
    found = handle.why()
    answer(options, {"id": handle.id, **reason(found)}, sentence(found.sentence))
    return 0
