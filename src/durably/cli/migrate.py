"""`durably migrate`: bring the schema up to date."""

from __future__ import annotations

import argparse

from durably.app import Durably
from durably.cli.connect import on_store
from durably.cli.grammar import Commands, Parser, command
from durably.cli.output import answer
from durably.cli.words import counted


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "migrate",
        "create the tables, or bring them up to date",
        ["durably migrate --store postgresql://app@db/shop", "durably migrate --check"],
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is to be done")
    on_store(parser, migrate, may_create=True, any_schema=True)


def migrate(app: Durably, options: argparse.Namespace) -> int:
    """`durably migrate`."""
    where = app.store.address
    if options.check:
        pending = app.store.pending()
        told = f"{where}: {counted(len(pending), 'migration')} to apply: {', '.join(pending)}"
        answer(options, {"store": where, "pending": pending}, told if pending else f"{where} is up to date.")
        return 1 if pending else 0
    applied = app.migrate()
    told = f"{where}: applied {', '.join(applied)}." if applied else f"{where} is up to date."
    answer(options, {"store": where, "applied": applied}, told)
    return 0
