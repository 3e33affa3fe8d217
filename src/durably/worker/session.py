"""The worker's one lease: its session, and the heartbeat that renews it."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

from durably.core.moment import micros
from durably.errors import BadOption, DurablyError
from durably.stores.operations.sweep import beat
from durably.stores.protocol import Store

log = logging.getLogger("durably.session")

BEATS_PER_LEASE = 4


class Session:
    """What a worker knows about its own lease. All moments are on the monotonic clock."""

    def __init__(self, session_id: str, lease: float, now: float) -> None:
        self.id = session_id
        self.lease = lease
        self.lost = False
        self._acknowledged = now
        self._reachable_since = now

    def opened(self, now: float) -> None:
        """The store has answered that the session is there: from now on it is known to be in reach."""
        self._reachable_since = now

    def acknowledge(self, sent: float, now: float) -> None:
        """A beat that was sent at `sent` was answered. After a gap, what others did meanwhile is not judged at once."""
        if now - self._acknowledged > self.lease / 2:
            self._reachable_since = now
        self._acknowledged = sent

    def may_start(self, now: float) -> bool:
        """Whether a handler may begin: not once a lease has passed since the last acknowledged beat."""
        return not self.lost and now - self._acknowledged < self.lease

    def may_judge(self, now: float) -> bool:
        """Whether others may be declared dead: the store must have been in reach for a full lease."""
        return self.may_start(now) and now - self._reachable_since >= self.lease


def check_lease(lease: float, interval: float) -> None:
    """Refuse a heartbeat that could miss its lease by one hiccup."""
    if lease <= 0 or interval <= 0 or lease / interval < BEATS_PER_LEASE:
        raise BadOption(
            f"lease {lease:g} s, a heartbeat every {interval:g} s: a lease must have room for {BEATS_PER_LEASE} beats"
        )


class Pulse:
    """The event loop's sign of life, written by the loop and read by the heartbeat thread."""

    def __init__(self, now: float) -> None:
        self.last = now
        self.thread = threading.get_ident()

    def touch(self, now: float) -> None:
        self.last = now


class Heartbeat(threading.Thread):
    """Renews the session from a thread and a connection of its own, so that a busy loop cannot starve it.

    A loop that has been blocked for a whole lease is as good as dead: then the beat stops and the stack is logged.
    """

    def __init__(
        self,
        store: Store,
        session: Session,
        interval: float,
        pulse: Pulse,
        now: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(name="durably-heartbeat", daemon=True)
        self._store = store.private()
        self._shared = self._store is store
        self._session = session
        self._interval = interval
        self._pulse = pulse
        self._now = now
        self._on_lost = on_lost
        self._stopped = threading.Event()

    def run(self) -> None:
        wait = self._interval
        while not self._stopped.wait(wait):
            if self._now() - self._pulse.last > self._session.lease:
                self._report_blocked()
                wait = self._interval
                continue
            try:
                sent = self._now()
                if not self._store.run(beat(self._session.id, micros(self._session.lease))):
                    self._session.lost = True
                    log.warning("session %s is no longer live", self._session.id)
                    self._on_lost()
                    break
                self._session.acknowledge(sent, self._now())
                wait = self._interval
            except DurablyError as error:
                log.warning("the heartbeat could not be written, trying again: %s", error)
                wait = max(self._interval / 4, 0.05)
        if not self._shared:
            self._store.close()

    def stop(self) -> None:
        """Stop beating; the session stays until it is closed or runs out."""
        self._stopped.set()

    def _report_blocked(self) -> None:
        frame = sys._current_frames().get(self._pulse.thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        log.error(
            "the event loop has been blocked for %.0f s, so this worker stops renewing its lease; it hangs here:\n%s",
            self._now() - self._pulse.last,
            stack,
        )
