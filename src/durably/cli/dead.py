"""`durably dead`: look at dead letters, give them a new cycle, or forget them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from durably.app import Durably
from durably.cli import tasks
from durably.cli.connect import on_store
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer
from durably.cli.select import full_ids
from durably.cli.table import table
from durably.cli.usage import Usage
from durably.cli.words import counted, relative
from durably.client.info import TaskInfo
from durably.core.task import State, full_queue
from durably.errors import NotAllowed

CHOICES = ("queue", "task", "key", "destination")
NOTHING = "No dead letters match."


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    own = group(commands, "dead", "dead letters: look, replay, forget", ["durably dead list"])
    parser = command(own, "list", "dead letters, newest first", ["durably dead list --queue billing --json"])
    _filters(parser)
    limited(parser)
    on_store(parser, list_dead)

    parser = command(own, "show", "one dead letter with its payload and every error", ["durably dead show 0190a5d1"])
    parser.add_argument("id", metavar="ID", help="the id, or its beginning")
    on_store(parser, show)

    parser = command(
        own,
        "replay",
        "give dead letters a new cycle of attempts, in the order in which they were accepted",
        [
            "durably dead replay 0190a5d1",
            "durably dead replay --task charge --rate 20/s",
            "durably dead replay --destination acme --dry-run",
        ],
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids, or their beginnings")
    _filters(parser)
    _dry_run(parser)
    parser.add_argument("--rate", metavar="N/s", help="not faster than this, for example 20/s")
    parser.add_argument("--all", action="store_true", help="every dead letter")
    on_store(parser, replay)

    parser = command(
        own,
        "purge",
        "forget dead letters for good",
        ["durably dead purge 0190a5d1", "durably dead purge --task charge --older-than 30d --yes"],
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids, or their beginnings")
    _filters(parser)
    _dry_run(parser)
    parser.add_argument("--older-than", metavar="AGE", help="only those that died longer ago, for example 30d")
    parser.add_argument("--all", action="store_true", help="every dead letter")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    on_store(parser, purge)


def _filters(parser: Parser) -> None:
    parser.add_argument("--queue", help="only those of this queue")
    parser.add_argument("--task", metavar="NAME", help="only those of this name")
    parser.add_argument("--key", help="only those with this ordering key")
    parser.add_argument("--destination", metavar="NAME", help="only deliveries to this destination")


def _dry_run(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say how many it would be")


def list_dead(app: Durably, options: argparse.Namespace) -> int:
    """`durably dead list`."""
    found = app.dead.list(**_which(options), limit=options.limit)
    answer(options, found, _table(found) if found else "No dead letters.")
    return 0


def _table(letters: list[TaskInfo]) -> str:
    rows = [
        (
            letter.id,
            letter.name,
            full_queue(letter.namespace, letter.queue),
            letter.key,
            letter.attempt,
            "" if letter.finished_at is None else relative(letter.finished_at),
            letter.reason,
        )
        for letter in letters
    ]
    return table(("ID", "TASK", "QUEUE", "KEY", "TRIES", "DIED", "REASON"), rows, whole=("TRIES", "DIED"))


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably dead show`."""
    handle = app.tasks.find(options.id)
    if (state := handle.state()) != State.DEAD:
        raise NotAllowed(f"task {handle.id} is {state}, not a dead letter; see `durably tasks show {handle.id}`")
    return tasks.show(app, options)


def replay(app: Durably, options: argparse.Namespace) -> int:
    """`durably dead replay`."""
    _chosen_at_all(options)
    ids = full_ids(app, options.ids)
    replayed = app.dead.replay(*ids, **_which(options), rate=options.rate, dry_run=options.dry_run)
    _tell(options, replayed, "replayed", "Replayed", "Would replay")
    return 0


def purge(app: Durably, options: argparse.Namespace) -> int:
    """`durably dead purge`."""
    _chosen_at_all(options)
    ids = full_ids(app, options.ids)
    if not options.dry_run:
        _confirm(options, ids, options.namespace or (None if app.namespace == "default" else app.namespace))
    purged = app.dead.purge(
        *ids, **_which(options), older_than=options.older_than, everything=options.all, dry_run=options.dry_run
    )
    _tell(options, purged, "purged", "Forgot", "Would forget")
    return 0


def _which(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in CHOICES}


def _tell(options: argparse.Namespace, count: int, name: str, done: str, would: str) -> None:
    told = f"{would if options.dry_run else done} {counted(count, 'dead letter')}."
    answer(options, {"matching" if options.dry_run else name: count}, told if count else NOTHING)


def _chosen_at_all(options: argparse.Namespace) -> None:
    """Nobody replays or forgets everything by leaving something out."""
    given = [name for name, value in vars(options).items() if value and name in (*CHOICES, "older_than")]
    if options.ids and (given or options.all):
        raise Usage("give ids, or say which by --queue, --task and the like; not both")
    if options.all and given:
        raise Usage(f"--all means every dead letter; leave it out, or leave out --{given[0].replace('_', '-')}")
    if not (options.ids or given or options.all):
        raise Usage("which dead letters? Give ids, or --queue, --task and the like; --all means every one")


def _confirm(options: argparse.Namespace, ids: list[str], namespace: str | None) -> None:
    if options.yes:
        return
    if options.json or not sys.stdin.isatty():
        raise Usage("forgetting dead letters cannot be undone: add --yes to do it without being asked")
    what = counted(len(ids), "dead letter") if ids else "every dead letter"
    what += "".join(
        f" {words} {value}"
        for words, value in (
            ("of queue", options.queue),
            ("of task", options.task),
            ("of key", options.key),
            ("of destination", options.destination),
            ("older than", options.older_than),
            ("of namespace", namespace),
        )
        if value
    )
    if input(f"Forget {what} for good? [y/N] ").strip().lower() not in ("y", "yes"):
        raise NotAllowed("nothing was forgotten")
