"""Each store and the model go through the same stories, and agree on every row after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from durably.testing.world import World
from tests.model.telling import Teller
from tests.model.worlds import EmptiedPostgres, in_memory

STORIES = {"sqlite": 100, "postgres": 25}


@pytest.fixture
def emptied(migrated_postgres_url: str) -> Iterator[Callable[[], World]]:
    """A database on PostgreSQL 18 that is emptied for every story."""
    postgres = EmptiedPostgres(migrated_postgres_url)
    yield postgres.world
    postgres.close()


def test_sqlite_does_what_the_model_does(examples: int | None, seed: int) -> None:
    Teller(in_memory).tell(examples or STORIES["sqlite"], seed)


def test_postgres_does_what_the_model_does(emptied: Callable[[], World], examples: int | None, seed: int) -> None:
    Teller(emptied).tell(examples or STORIES["postgres"], seed)
