"""Whoever gets the lock of a server process knows that it has come to its end."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from durably.stores.postgres.lifeline import let_end, tie
from durably.stores.postgres.pool import Connection, Pool


def opened(url: str) -> Connection:
    connection, _ = Pool(url).take()
    return connection


def lives(connection: Connection) -> bool:
    try:
        return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


@pytest.mark.parametrize("postgres", ["postgres18", "postgres16"])
def test_the_process_is_ended_and_gone(postgres: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(postgres).url()
    with opened(url) as lost, opened(url) as bystander, opened(url) as connection:
        tie(bystander)
        let_end(connection, tie(lost))

        assert not lives(lost)
        assert lives(bystander)


def test_one_that_is_gone_already_is_as_good(postgres_url: str) -> None:
    with opened(postgres_url) as connection:
        with opened(postgres_url) as lost:
            lifeline = tie(lost)
        let_end(connection, lifeline)


@pytest.fixture
def login(postgres_url: str) -> Iterator[str]:
    """The address of somebody who logs in as one role and acts as another."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE acts")
        connection.execute("CREATE ROLE logs_in LOGIN IN ROLE acts")
        connection.execute("ALTER ROLE logs_in SET role = 'acts'")
        yield postgres_url.replace("postgres@", "logs_in@", 1)
        connection.execute("DROP ROLE logs_in, acts")


def test_whoever_acts_as_another_role_may_end_what_is_theirs(login: str) -> None:
    with opened(login) as lost, opened(login) as connection:
        let_end(connection, tie(lost))

        assert not lives(lost)
        assert connection.execute("SELECT current_user::text").fetchone() == ("acts",)


def test_without_the_right_to_end_it_one_waits_until_it_ends_by_itself(
    postgres_url: str, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC")
    monkeypatch.setattr("durably.stores.postgres.lifeline.PATIENCE", "1ms")
    with opened(login) as connection:
        with opened(login) as lost:
            lifeline = tie(lost)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                let_end(connection, lifeline)
            assert lives(lost)
        monkeypatch.undo()
        let_end(connection, lifeline)
