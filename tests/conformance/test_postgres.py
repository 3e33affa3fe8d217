"""The conformance suite on PostgreSQL 18 and 16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durably.testing.conformance import Suite
from durably.testing.servers import PostgresServer
from durably.testing.world import World
from tests.conformance.postgres_world import StoppedPostgres
from tests.conftest import fresh_database


@pytest.fixture(scope="module")
def stopped18(postgres18: PostgresServer, postgres18_template: str) -> Iterator[StoppedPostgres]:
    with fresh_database(postgres18, postgres18_template) as url:
        stopped = StoppedPostgres(url)
        yield stopped
        stopped.close()


@pytest.fixture(scope="module")
def stopped16(postgres16: PostgresServer, postgres16_template: str) -> Iterator[StoppedPostgres]:
    with fresh_database(postgres16, postgres16_template) as url:
        stopped = StoppedPostgres(url)
        yield stopped
        stopped.close()


class TestPostgres18(Suite):
    @pytest.fixture(params=["sync", "async"])
    def world(self, request: pytest.FixtureRequest, stopped18: StoppedPostgres) -> Iterator[World]:
        with stopped18.world(request.param) as world:
            yield world


class TestPostgres16(Suite):
    @pytest.fixture(params=["async"])
    def world(self, request: pytest.FixtureRequest, stopped16: StoppedPostgres) -> Iterator[World]:
        with stopped16.world(request.param) as world:
            yield world
