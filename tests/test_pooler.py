"""Durably behind a pooler that gives every transaction another server connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from durably.stores.operations.accept import accept
from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore
from tests.support.pooled_store import PooledStore, draft
from tests.support.pooler import Pooler

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url) as running:
        yield running


@pytest.fixture
def pooled_url(pooler: Pooler) -> str:
    return pooler.url


@pytest.fixture
def client(pooled_url: str) -> Iterator[Connection]:
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def value(connection: Connection, query: str) -> Any:
    [(found,)] = connection.execute(query.encode()).fetchall()
    return found


class TestThePooler:
    """It really is as unkind as it says."""

    def test_a_transaction_stays_on_one_backend_and_the_next_gets_another(self, client: Connection) -> None:
        with client.transaction():
            first = {value(client, "SELECT pg_backend_pid()") for _ in range(3)}
        with client.transaction():
            second = {value(client, "SELECT pg_backend_pid()") for _ in range(3)}
        third, fourth = value(client, "SELECT pg_backend_pid()"), value(client, "SELECT pg_backend_pid()")
        assert len(first) == len(second) == 1
        assert len({*first, *second}) == 2
        assert third != fourth

    def test_a_setting_of_the_session_is_lost_to_its_client_and_leaks_to_another(
        self, client: Connection, pooled_url: str
    ) -> None:
        client.execute("SET statement_timeout = '77s'")
        assert value(client, "SHOW statement_timeout") == "0"
        with psycopg.connect(pooled_url, autocommit=True) as stranger:
            assert "77s" in [value(stranger, "SHOW statement_timeout") for _ in range(2)]

    def test_a_setting_of_the_transaction_holds_until_its_end(self, client: Connection) -> None:
        with client.transaction():
            client.execute("SET LOCAL statement_timeout = '77s'")
            assert value(client, "SHOW statement_timeout") == "77s"
        assert [value(client, "SHOW statement_timeout") for _ in range(2)] == ["0", "0"]

    def test_a_client_that_prepares_statements_is_caught(self, client: Connection) -> None:
        client.prepare_threshold = 0
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            client.execute("SELECT %s::int", [1])

    def test_an_error_ends_the_transaction_and_not_the_connection(self, client: Connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero), client.transaction():
            client.execute("SELECT 1 / 0")
        assert value(client, "SELECT 1") == 1

    def test_a_pipeline_stays_together(self, client: Connection) -> None:
        with client.pipeline(), client.transaction():
            cursors = [client.execute("SELECT pg_backend_pid() WHERE %s", [True]) for _ in range(3)]
        assert len({cursor.fetchall()[0] for cursor in cursors}) == 1
        assert value(client, "SELECT 1") == 1

    def test_rows_can_be_copied_in(self, client: Connection, pooler: Pooler) -> None:
        client.execute("CREATE TABLE numbers (number int)")
        with client.cursor().copy("COPY numbers FROM STDIN") as copy:
            for number in range(3):
                copy.write_row([number])
        assert value(client, "SELECT sum(number) FROM numbers") == 3
        assert sum(pooler.transactions.values()) == 3

    def test_what_a_client_leaves_open_is_rolled_back(self, client: Connection, pooled_url: str) -> None:
        client.execute("CREATE TABLE numbers (number int)")
        careless = psycopg.connect(pooled_url)
        careless.execute("INSERT INTO numbers VALUES (1)")
        careless.close()
        client.execute("ALTER TABLE numbers ADD COLUMN other int")
        assert value(client, "SELECT count(*) FROM numbers") == 0

    def test_clients_that_hold_transactions_do_not_wait_for_each_other(self, pooled_url: str) -> None:
        with (
            psycopg.connect(pooled_url) as one,
            psycopg.connect(pooled_url) as two,
            psycopg.connect(pooled_url) as three,
        ):
            backends = {value(connection, "SELECT pg_backend_pid()") for connection in (one, two, three)}
        assert len(backends) == 3

    async def test_a_query_can_be_cancelled(self, pooled_url: str) -> None:
        async with await psycopg.AsyncConnection.connect(pooled_url, autocommit=True) as connection:
            query = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
            while not query.done():
                await connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                await query


class TestTheStore(PooledStore):
    """Durably works behind it."""

    async def test_it_really_was_spread_over_backends(self, store: PostgresStore, pooler: Pooler) -> None:
        one = draft()
        store.run(accept([one]))
        assert [task.id for task in store.run(get([one.id]))] == [one.id]
        assert len(pooler.transactions) >= 2

    async def test_it_is_recognised_and_nothing_is_prepared(self, store: PostgresStore) -> None:
        [finding] = [finding for finding in store.examine() if finding.check == "connection"]
        assert "through a pooler" in finding.detail
        assert store.pool.direct


class TestAPoolerThatCannotBeRecognised(PooledStore):
    """It shows the client a process id of the server, and the next transaction runs elsewhere."""

    @pytest.fixture
    def pooled_url(self, postgres_url: str) -> Iterator[str]:
        with Pooler(postgres_url, tells=True) as running:
            yield running.url

    async def test_it_is_found_out_by_what_it_loses(self, store: PostgresStore) -> None:
        for _ in range(3):
            store.run(accept([draft()]))
        assert not store.pool.direct
