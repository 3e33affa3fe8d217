"""`durably demo`: the story of a few thousand tasks and one killed worker; or of messages to peers, mail, or people."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from durably.cli.connect import DEMO
from durably.cli.grammar import Commands, Parser, command
from durably.deliveries.vault import VARIABLE, new_key
from durably.demo.files import begin
from durably.errors import MissingPackage

NEEDS = {
    "deliveries": ("deliveries over HTTP need", "http", ("aiohttp", "cryptography")),
    "mail": ("mail needs", "smtp", ("aiosmtplib", "jinja2")),
    "notifications": ("notifications over HTTP and mail need", "http,smtp", ("aiohttp", "aiosmtplib", "jinja2")),
}
"""What each of the other stories cannot be told without, and the extras that bring it."""
STORIES = """
Besides tasks, there are other things to watch:
  deliveries     messages to peers: one is dead, and one refuses
  mail           letters through SMTP servers that say later, no, or nothing at all
  notifications  what people are told in their inbox, by mail, push and SMS"""


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "demo",
        "watch thousands of tasks survive a killed worker, in under a minute",
        ["durably demo", "durably demo --keep /tmp/demo.db", *(f"durably demo {about}" for about in NEEDS)],
        demo,
    )
    parser.description = f"{parser.description}\n{STORIES}"
    parser.add_argument("about", nargs="?", choices=[*NEEDS], help="what to watch instead of tasks")
    parser.add_argument("--keep", metavar="PATH", default=DEMO, help=f"where to keep the database (./{DEMO})")
    short = "a tenth of the tasks, or a quarter of the messages to peers; the others are short as they are"
    parser.add_argument("--fast", action="store_true", help=short)


def demo(options: argparse.Namespace) -> int:
    """`durably demo`. The stories are imported once the files are made that they open."""
    if options.about is not None:
        _check(*NEEDS[options.about])
    place = begin(Path(options.keep))
    match options.about:
        case "deliveries":
            os.environ[VARIABLE] = new_key()  # It seals the secrets, and nobody keeps it.
            from durably.demo.deliveries.story import tell as tell_of_deliveries

            return tell_of_deliveries(place, fast=options.fast)
        case "mail":
            from durably.demo.mail.story import tell as tell_of_mail

            return tell_of_mail(place)
        case "notifications":
            from durably.demo.notifications.story import tell as tell_of_notifications

            return tell_of_notifications(place)
    from durably.demo.story import tell

    return tell(place, fast=options.fast)


def _check(who: str, extras: str, packages: Sequence[str]) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(f"{who} {package}: install it with `pip install 'durably[{extras}]'`")
