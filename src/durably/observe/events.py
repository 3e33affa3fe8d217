"""One event for every transition: what metrics, traces and tests listen to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

log = logging.getLogger("durably.events")


Kind = Literal[
    "enqueued",
    "promoted",
    "started",
    "completed",
    "failed",
    "timed_out",
    "snoozed",
    "discarded",
    "cancel_requested",
    "cancelled",
    "released",
    "expired",
    "unknown",
    "crashed",
    "dead",
    "key_paused",
    "replayed",
    "resumed",
    "skipped",
    "fenced",
    "stuck",
    "pruned",
    "destination_active",
    "destination_throttled",
    "destination_suspended",
    "destination_disabled",
    "destination_gone",
    "destination_alarming",
    "session_lost",
    "session_dead",
    "worker_started",
    "worker_stopped",
    "worker_stuck",
]


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something happened. `kind` says what; the rest is there when it applies."""

    kind: Kind
    task: str = ""
    name: str = ""
    queue: str = ""
    attempt: int = 0
    session: str | None = None
    duration: float = 0.0
    """Seconds that the attempt ran."""
    delay: float = 0.0
    """Seconds until it is tried again."""
    reason: str | None = None
    error: str | None = None
    count: int = 1


Subscriber = Callable[[Event], Any]


class Events:
    """Hands every event to every subscriber; a subscriber that fails harms nobody."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self.observed = False
        """Whether anyone listens, so that an event need not be made for nobody."""

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on, in the thread where it happens; the answer unsubscribes."""
        self._subscribers.append(subscriber)
        self.observed = True

        def unsubscribe() -> None:
            self._subscribers.remove(subscriber)
            self.observed = bool(self._subscribers)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("an event subscriber failed on %s", event.kind)
