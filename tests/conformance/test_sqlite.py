"""The conformance suite on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durably.stores.sqlite.store import SqliteStore
from durably.testing.clock import ManualClock
from durably.testing.conformance import Suite
from durably.testing.world import World


class TestSqlite(Suite):
    @pytest.fixture(params=["sync", "async"])
    def world(self, request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[World]:
        clock = ManualClock()
        world = World(SqliteStore(str(sqlite_path), clock), clock, clock.advance, request.param)
        yield world
        world.close()


class TestSqliteInMemory(Suite):
    @pytest.fixture(params=["sync"])
    def world(self, request: pytest.FixtureRequest) -> Iterator[World]:
        clock = ManualClock()
        world = World(SqliteStore(":memory:", clock), clock, clock.advance, request.param)
        yield world
        world.close()
