"""Both stores, each with a ledger beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durably import Durably
from tests.crash.processes import Stage


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "sqlite":
        store = f"sqlite:///{tmp_path}/durably.db"
    else:
        store = request.getfixturevalue("migrated_postgres_url")
    return Stage(store, tmp_path)


@pytest.fixture
def shop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Durably]:
    """The same application in this process, to enqueue and to look."""
    app = Durably(stage.store)
    yield app
    app.close()
