"""Logs: a line for people in a terminal, JSON otherwise."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from durably.observe.events import Event

log = logging.getLogger("durably.tasks")

_COLOURS = {
    logging.DEBUG: "2",
    logging.INFO: "36",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31;1",
}
_WARN = {
    "crashed",
    "dead",
    "destination_disabled",
    "destination_gone",
    "destination_suspended",
    "fenced",
    "key_paused",
    "session_dead",
    "session_lost",
    "stuck",
    "unknown",
    "worker_stuck",
}
_QUIET = {"enqueued", "started", "completed", "promoted", "pruned"}


class ForPeople(logging.Formatter):
    """Time, level, message and the facts that belong to it."""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = f"{record.levelname.lower():8}"
        if self._colour:
            level = f"\033[{_COLOURS.get(record.levelno, '0')}m{level}\033[0m"
        facts = "".join(f" {key}={value}" for key, value in _facts(record).items())
        text = f"{when} {level} {record.getMessage()}{facts}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class ForPrograms(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "facts", {})


def configure(stream: TextIO | None = None, *, level: int = logging.INFO, json: bool | None = None) -> None:
    """Send Durably's logs to a stream: readable in a terminal, JSON where it is not one."""
    target = stream or sys.stderr
    terminal = target.isatty()
    handler = logging.StreamHandler(target)
    handler.setFormatter(ForPrograms() if (not terminal if json is None else json) else ForPeople(terminal))
    root = logging.getLogger("durably")
    root.handlers = [handler]
    root.setLevel(level)
    root.propagate = False


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def log_event(event: Event) -> None:
    """An event as a log line: quiet for what goes well, a warning for what a person should know."""
    level = logging.WARNING if event.kind in _WARN else logging.DEBUG if event.kind in _QUIET else logging.INFO
    if log.isEnabledFor(level):
        given = {name: _short(getattr(event, name)) for name in event.__struct_fields__ if name != "kind"}
        facts = {name: value for name, value in given.items() if value and (name, value) != ("count", 1)}
        log.log(level, event.kind, extra={"facts": facts})
