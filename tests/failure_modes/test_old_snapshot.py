"""A transaction that somebody forgot keeps every dead row in place: claims must not wade through them."""

from __future__ import annotations

import psycopg

from durably.stores.drive import drive
from durably.stores.operations.claim import Claim, Range, claim
from durably.stores.postgres.pool import BEGIN_POOLED
from durably.stores.postgres.store import PostgresStore
from durably.stores.statement import Rows, Statement, array_call
from durably.testing.world import World
from tests.conformance.postgres_world import StoppedPostgres
from tests.isolation.party import Connection, connect

ROUNDS, EACH = 30, 50


def claimed(connection: Connection, store: PostgresStore, session: str, floors: dict[Range, int]) -> tuple[Claim, int]:
    """A claim, and how many pages its statements touched."""
    pages = 0

    def execute(statement: Statement) -> Rows:
        nonlocal pages
        text, args = array_call(statement)
        connection.execute("SAVEPOINT before")
        [(plans,)] = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}".encode(), args).fetchall()
        connection.execute("ROLLBACK TO before")
        pages += plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
        cursor = connection.execute(text.encode(), args)
        return cursor.fetchall() if cursor.description is not None else []

    connection.execute(BEGIN_POOLED)
    found = drive(claim(session, ["default"], EACH, floors=floors).steps(store.queries), execute)
    connection.execute("COMMIT")
    return found, pages


def a_round(world: World, connection: Connection, session: str, floors: dict[Range, int]) -> int:
    assert isinstance(world.store, PostgresStore)
    world.accept(*(world.draft() for _ in range(EACH)))
    found, pages = claimed(connection, world.store, session, floors)
    assert len(found.tasks) == EACH
    floors.update(found.floors)
    world.finish(*found.tasks)
    world.advance(5)
    return pages


def test_claims_stay_cheap_while_an_old_transaction_keeps_every_dead_row(migrated_postgres_url: str) -> None:
    stopped = StoppedPostgres(migrated_postgres_url)
    with stopped.world("sync") as world, psycopg.connect(migrated_postgres_url) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT 1")
        session = world.session(lease=10**12)
        floors: dict[Range, int] = {}
        connection = connect(migrated_postgres_url, "worker")
        pages = [a_round(world, connection, session, floors) for _ in range(ROUNDS)]
        without = a_round(world, connection, session, {})
        connection.close()
    stopped.close()

    assert max(pages[-5:]) < 2 * max(pages[1:6]), pages
    assert without > max(pages[-5:]), "the floor makes the difference"
