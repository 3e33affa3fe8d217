"""PostgreSQL with a clock that tests can set: `durably.now()` is replaced by one that reads a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from durably.core.moment import SECOND
from durably.stores.postgres.store import PostgresStore
from durably.testing.clock import START, ManualClock
from durably.testing.world import World

STOPPED_CLOCK = b"""
CREATE OR REPLACE FUNCTION durably.now() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT value::bigint FROM durably.meta WHERE name = 'test_clock' $$;
"""
EMPTY = b"""
TRUNCATE durably.tasks, durably.history, durably.attempts, durably.unique_keys, durably.turns, durably.keys,
         durably.lines, durably.gates, durably.permits, durably.claims, durably.prunes, durably.sessions,
         durably.sleepers, durably.queues, durably.cancel_requests, durably.destinations, durably.messages,
         durably.deliveries, durably.mails, durably.suppressions, durably.templates, durably.notifications,
         durably.routes, durably.digests, durably.throttles, durably.preferences, durably.inbox;
"""


class StoppedPostgres:
    """A migrated database whose clock stands still; `world` empties it first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("INSERT INTO durably.meta VALUES ('test_clock', '0')")
        self._connection.execute(STOPPED_CLOCK)

    @contextmanager
    def world(self, face: str) -> Iterator[World]:
        self._connection.execute(EMPTY)
        clock = ManualClock()
        self._set(START)

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            self._set(clock.now())

        world = World(PostgresStore(self._url), clock, advance, face)
        yield world
        world.close()

    def _set(self, now: int) -> None:
        assert now > SECOND
        self._connection.execute("UPDATE durably.meta SET value = %s WHERE name = 'test_clock'", [str(now)])

    def close(self) -> None:
        self._connection.close()
