"""Both stores, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durably.stores.sqlite.store import SqliteStore
from durably.testing.clock import ManualClock
from durably.testing.world import World
from tests.conformance.postgres_world import StoppedPostgres


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[World]:
    if request.param == "postgres":
        stopped = StoppedPostgres(request.getfixturevalue("migrated_postgres_url"))
        with stopped.world("async") as world:
            yield world
        stopped.close()
        return
    clock = ManualClock()
    world = World(SqliteStore(str(sqlite_path), clock), clock, clock.advance, "async")
    yield world
    world.close()
