"""A migrated store of each kind, with its tables open to be tampered with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durably import Durably
from tests.bad_input.raw import Raw, RawPostgres, RawSqlite


@pytest.fixture
def raw_sqlite(tmp_path: Path) -> Iterator[Raw]:
    path = tmp_path / "durably.db"
    with Durably(f"sqlite:///{path}") as app:
        app.migrate()
    raw = RawSqlite(path)
    yield raw
    raw.close()


@pytest.fixture
def raw_postgres(migrated_postgres_url: str) -> Iterator[Raw]:
    raw = RawPostgres(migrated_postgres_url)
    yield raw
    raw.close()


@pytest.fixture(params=["sqlite", "postgres"])
def raw(request: pytest.FixtureRequest) -> Raw:
    found: Raw = request.getfixturevalue(f"raw_{request.param}")
    return found
