"""`durably worker`: runs the tasks of an application, in a process that is replaced when it crashes."""

from __future__ import annotations

import argparse
import logging
import sys

from durably.app import Durably
from durably.cli import child
from durably.cli.grammar import Commands, Parser, command
from durably.cli.locate import find_app
from durably.cli.parent import keep_running
from durably.cli.usage import Usage
from durably.core.moment import seconds
from durably.core.task import full_queue, split_queue
from durably.errors import DurablyError
from durably.observe.logs import configure, log_event


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "worker",
        "run the tasks of an application",
        [
            "durably worker shop.tasks:app",
            "durably worker shop.tasks:app --queues billing,mail --concurrency 50",
            "durably worker shop.tasks:app --no-parent     under a process manager that restarts it, or in a debugger",
        ],
        work,
    )
    parser.add_argument("app", metavar="MODULE:APP", help="where the application is, for example shop.tasks:app")
    parser.add_argument("--queues", metavar="A,B", help="the queues to serve (those of the declared tasks)")
    parser.add_argument("--namespace", metavar="A,B", help="the namespaces to serve them in (the application's)")
    parser.add_argument("--concurrency", metavar="N", type=int, default=100, help="tasks at once (100)")
    parser.add_argument("--lease", metavar="TIME", default="30s", help="until a silent worker counts as dead (30s)")
    parser.add_argument("--heartbeat", metavar="TIME", help="how often the lease is renewed (a quarter of it)")
    parser.add_argument("--poll", metavar="TIME", default="1s", help="how often to look without being told (1s)")
    parser.add_argument("--grace", metavar="TIME", default="25s", help="what tasks get to finish at the end (25s)")
    parser.add_argument(
        "--ahead", metavar="N", type=int, default=1, help="tasks of an ordering key to take with one lease (1)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--log-json", dest="log_json", action="store_true", default=None, help="logs as JSON lines")
    form.add_argument("--log-text", dest="log_json", action="store_false", help="logs for people (in a terminal)")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what to log (info)"
    )
    alone = "without a parent process that restarts it; exit code 75 asks for a restart"
    parser.add_argument("--no-parent", action="store_true", help=alone)
    parser.add_argument("--control", type=int, help=argparse.SUPPRESS)


def work(options: argparse.Namespace) -> int:
    """`durably worker`."""
    configure(level=getattr(logging, options.log_level.upper()), json=options.log_json)
    try:
        if not options.no_parent and options.control is None:
            command = [sys.executable, "-m", "durably", *options.arguments]
            return keep_running(command, seconds(options.grace, "grace"))
        app = find_app(options.app)
        worker = app.worker(
            queues=queues_to_serve(app, options),
            concurrency=options.concurrency,
            lease=options.lease,
            heartbeat=options.heartbeat,
            poll=options.poll,
            grace=options.grace,
            ahead=options.ahead,
            recycle=True,
        )
    except DurablyError as error:
        raise Usage(str(error)) from error
    app.events.subscribe(log_event)
    return child.run(worker, options.control)


def queues_to_serve(app: Durably, options: argparse.Namespace) -> list[str] | None:
    """The queues that were asked for; None is the application's own choice."""
    if options.queues is None and options.namespace is None:
        return None
    declared = {split_queue(queue)[1] for queue in app.served_queues()}
    queues = declared if options.queues is None else _names(options.queues, "--queues")
    namespaces = [app.namespace] if options.namespace is None else _names(options.namespace, "--namespace")
    return sorted({name if "/" in name else full_queue(space, name) for space in namespaces for name in queues})


def _names(given: str, option: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise Usage(f"{option} {given!r}: write the names with commas between them, for example billing,mail")
    return names
