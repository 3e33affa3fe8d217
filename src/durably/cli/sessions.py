"""`durably sessions`: the workers that the store knows."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec

from durably.app import Durably
from durably.cli.connect import on_store
from durably.cli.grammar import Commands, Parser, command
from durably.cli.output import answer
from durably.cli.table import table
from durably.cli.words import relative
from durably.core.explain import SessionFacts
from durably.core.moment import as_datetime

MOMENTS = ("started_at", "beat_at", "expires_at")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = command(commands, "sessions", "the workers, and when they were last heard of", ["durably sessions"])
    on_store(parser, list_sessions)


def list_sessions(app: Durably, options: argparse.Namespace) -> int:
    """`durably sessions`."""
    found = app.sessions.list()
    rows = [
        (
            session.id,
            status(session),
            session.where,
            session.concurrency,
            relative(as_datetime(session.started_at)),
            relative(as_datetime(session.beat_at)),
            ", ".join(session.queues),
        )
        for session in found
    ]
    text = "No workers. Start one with `durably worker module:app`."
    if rows:
        text = table(
            ("SESSION", "STATE", "WHERE", "SLOTS", "STARTED", "HEARD OF", "QUEUES"), rows, whole=("STATE", "HEARD OF")
        )
    answer(options, [as_data(session) for session in found], text)
    return 0


def lives(session: SessionFacts) -> bool:
    """Whether the worker is believed to live, by this host's clock."""
    return session.state == "live" and as_datetime(session.expires_at) >= datetime.now(UTC)


def status(session: SessionFacts) -> str:
    """What a person should think of it."""
    if session.state != "live":
        return "gone"
    if not lives(session):
        return "lease over"
    return f"live, {session.stuck} stuck" if session.stuck else "live"


def as_data(session: SessionFacts) -> dict[str, Any]:
    """A session for programs."""
    moments = {name: as_datetime(getattr(session, name)) for name in MOMENTS}
    return {**msgspec.structs.asdict(session), **moments}
