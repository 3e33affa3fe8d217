"""The way to the server and back: whatever is sent comes back, and whatever goes wrong has a name."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from durably.stores.postgres.pool import Pool
from durably.stores.postgres.wire import Exchange, Wire
from durably.stores.statement import Rows

Run = Callable[..., Rows]


def run_in_thread(pool: Pool, text: str, *args: Any) -> Rows:
    with pool.connection() as connection:
        return connection.wire.run(text, args)


def run_in_loop(pool: Pool, text: str, *args: Any) -> Rows:
    async def story() -> Rows:
        try:
            async with pool.aconnection() as connection:
                return await connection.wire.arun(text, args)
        finally:
            await pool.aclose()

    return asyncio.run(story())


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    pool = Pool(postgres_url)
    yield pool
    pool.close()


KINDS = "SELECT $1::text, $2::bytea, $3::bigint, $4::boolean, $5::double precision, $6::text, $7::int[], $8::text[]"


def test_whatever_is_sent_comes_back(pool: Pool, run: Run) -> None:
    values = ("žluťoučký", b"\0\xff", -(2**62), False, 0.1, None, [1, None, 3], ['a "b" \\', None])

    assert run(pool, KINDS, *values) == [values]


def test_a_statement_runs_again_under_the_plan_it_was_prepared_with(pool: Pool) -> None:
    with pool.connection() as connection:
        for number in range(3):
            assert connection.wire.run("SELECT $1::int", [number]) == [(number,)]
        assert connection.wire.run("SELECT count(*) FROM pg_prepared_statements", []) == [(2,)]


def test_what_does_not_fit_into_the_socket_at_once_arrives_whole(pool: Pool, run: Run) -> None:
    large = os.urandom(1 << 20) * 40

    assert run(pool, "SELECT $1::bytea", large) == [(large,)]


def test_a_statement_without_rows_answers_with_none(pool: Pool, run: Run) -> None:
    assert run(pool, "SET application_name = 'wire'") == []


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("SELECT 1 / $1::int", psycopg.errors.DivisionByZero, "division by zero"),
        ("SELECT no_such_column", psycopg.errors.UndefinedColumn, "no_such_column"),
        ("DO $$ BEGIN RAISE 'odd' USING ERRCODE = 'XY123'; END $$", psycopg.DatabaseError, "odd"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", psycopg.OperationalError, "terminat"),
    ],
)
def test_an_error_has_the_servers_name_and_words(
    pool: Pool, run: Run, text: str, kind: type[psycopg.Error], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(pool, text, *([0] if "$1" in text else []))

    assert run(pool, "SELECT 'well'") == [("well",)]


def in_transaction(wire: Wire, text: str, *args: Any) -> Exchange[Rows]:
    rows = yield from wire.call_after("BEGIN", text, args)
    yield from wire.tell("COMMIT")
    return rows


def test_a_statement_can_go_out_with_the_begin_of_its_transaction(pool: Pool) -> None:
    with pool.connection() as connection:
        for number in range(3):
            assert connection.wire.drive(in_transaction(connection.wire, "SELECT $1::int", number)) == [(number,)]
            assert connection.info.transaction_status == TransactionStatus.IDLE


def test_what_goes_out_at_once_may_be_larger_than_the_socket(pool: Pool) -> None:
    large = os.urandom(1 << 20) * 40
    with pool.connection() as connection:
        for _ in range(2):
            assert connection.wire.drive(in_transaction(connection.wire, "SELECT $1::bytea", large)) == [(large,)]


def test_a_failure_of_what_went_out_at_once_has_its_name_and_spoils_nothing(pool: Pool) -> None:
    divided = "SELECT 1 / $1::int"
    with pool.connection() as connection:
        connection.wire.drive(in_transaction(connection.wire, divided, 1))
    with pytest.raises(psycopg.errors.DivisionByZero), pool.connection() as connection:
        connection.wire.drive(in_transaction(connection.wire, divided, 0))
    with pool.connection() as connection:
        assert connection.wire.drive(in_transaction(connection.wire, divided, 1)) == [(1,)]
        assert connection.wire.run("SELECT count(*) FROM pg_prepared_statements", []) == [(2,)]


def test_a_connection_that_dies_in_the_middle_is_told_of_and_thrown_away(pool: Pool, postgres_url: str) -> None:
    fatal = "SELECT pg_terminate_backend(CASE WHEN $1::bool THEN pg_backend_pid() ELSE 0 END)"
    with pool.connection() as connection:
        connection.wire.drive(in_transaction(connection.wire, fatal, False))
    with pytest.raises(psycopg.OperationalError), pool.connection() as dying:
        dying.wire.drive(in_transaction(dying.wire, fatal, True))
    assert dying.closed
    with pool.connection() as connection:
        assert connection.wire.drive(in_transaction(connection.wire, "SELECT $1::int", 1)) == [(1,)]


def test_a_text_with_nul_is_refused_and_not_cut_off(pool: Pool, run: Run) -> None:
    for value in ("a\0b", ["a\0b"]):
        with pytest.raises(psycopg.DataError, match="NUL"):
            run(pool, "SELECT $1", value)


def test_it_speaks_the_encoding_of_the_connection(postgres_url: str, run: Run) -> None:
    pool = Pool(psycopg.conninfo.make_conninfo(postgres_url, client_encoding="LATIN1"))
    assert run(pool, "SELECT $1::text, length($1::text)", "née") == [("née", 3)]
    with pytest.raises(UnicodeEncodeError):
        run(pool, "SELECT $1::text", "č")
    pool.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever runs the tests in the background has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_wait_and_the_connection(pool: Pool) -> None:
    def interrupt() -> None:
        with psycopg.connect(pool._conninfo, autocommit=True) as watch:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            while watch.execute(query).fetchone() == (0,):
                pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), pool.connection() as connection:
        connection.wire.run("SELECT pg_sleep(600)::text", [])
    thread.join()

    assert connection.closed


def test_whoever_gives_up_in_the_middle_watches_no_socket_any_more(pool: Pool) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with pool.aconnection() as connection:
            socket = connection.pgconn.socket
            waiting = asyncio.ensure_future(connection.wire.arun("SELECT pg_sleep(600)::text", []))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not loop.remove_reader(socket)
            await connection.close()
        await pool.aclose()

    asyncio.run(story())
