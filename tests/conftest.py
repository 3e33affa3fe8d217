"""The databases that tests use: real ones, started when the first test asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

# Before anything of it is imported, so that a failing assertion of the suite shows its values.
pytest.register_assert_rewrite("durably.testing")

from durably import Durably  # noqa: E402 - see above
from durably.stores.postgres.store import PostgresStore  # noqa: E402 - see above
from durably.testing.servers import PostgresServer  # noqa: E402 - see above

TEMPLATE = "durably_template"
numbers = count(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a program that pip cannot install runs only when it is asked for by name."""
    asked_for = any("pgbouncer" in Path(argument).parts for argument in config.args)
    return True if collection_path.name == "pgbouncer" and not asked_for else None


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """PostgreSQL 18, shared by all tests of the session."""
    with PostgresServer(18, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres16() -> Iterator[PostgresServer]:
    """PostgreSQL 16, shared by all tests of the session."""
    with PostgresServer(16, durable=False) as server:
        yield server


@contextmanager
def fresh_database(server: PostgresServer, template: str = "template0") -> Iterator[str]:
    """The address of a database that exists for the block only."""
    name = f"test_{next(numbers)}"
    yield server.create_database(name, template=template)
    server.drop_database(name)


def migrated_template(server: PostgresServer) -> str:
    """The name of a database with Durably's schema, to make copies of."""
    store = PostgresStore(server.create_database(TEMPLATE))
    store.migrate()
    store.close()
    return TEMPLATE


@pytest.fixture(scope="session")
def postgres18_template(postgres18: PostgresServer) -> str:
    return migrated_template(postgres18)


@pytest.fixture(scope="session")
def postgres16_template(postgres16: PostgresServer) -> str:
    return migrated_template(postgres16)


@pytest.fixture
def postgres_url(postgres18: PostgresServer) -> Iterator[str]:
    """An empty database on PostgreSQL 18."""
    with fresh_database(postgres18) as url:
        yield url


@pytest.fixture
def migrated_postgres_url(postgres18: PostgresServer, postgres18_template: str) -> Iterator[str]:
    """A database with Durably's schema on PostgreSQL 18."""
    with fresh_database(postgres18, postgres18_template) as url:
        yield url


@pytest.fixture
def migrated_postgres16_url(postgres16: PostgresServer, postgres16_template: str) -> Iterator[str]:
    """A database with Durably's schema on PostgreSQL 16."""
    with fresh_database(postgres16, postgres16_template) as url:
        yield url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a SQLite database may be made."""
    return tmp_path / "durably.db"


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Durably]:
    """An application on each store."""
    url = f"sqlite:///{sqlite_path}"
    if request.param == "postgres":
        url = request.getfixturevalue("migrated_postgres_url")
    app = Durably(url)
    app.migrate()
    yield app
    app.close()
