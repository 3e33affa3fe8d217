"""The proxy does to connections what a bad network does, and the server has committed what it says it has."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import psycopg
import pytest

from durably.testing.servers import PostgresServer
from tests.support.proxy import ANYTHING, Proxy, split

CHANCE = random.Random(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(18, tcp=True, durable=False) as server:
        yield server


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with psycopg.connect(server.url()) as direct:
        direct.execute("DROP TABLE IF EXISTS notes")
        direct.execute("CREATE TABLE notes (text text)")
    with Proxy(server.port) as proxy:
        yield proxy


def connect(proxy: Proxy, *, autocommit: bool = False) -> psycopg.Connection[tuple[str]]:
    address = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"
    return psycopg.connect(address, autocommit=autocommit)


def notes(server: PostgresServer) -> list[str]:
    with psycopg.connect(server.url()) as direct:
        return [text for (text,) in direct.execute("SELECT text FROM notes ORDER BY text").fetchall()]


def test_messages_are_split_wherever_the_bytes_were_cut() -> None:
    data = b"C\0\0\0\x0bCOMMIT\0" + b"Z\0\0\0\x05I"
    for place in range(len(data)):
        first, rest = split(data[:place])
        second, rest = split(rest + data[place:])

        assert [(message.kind, message.body) for message in first + second] == [(b"C", b"COMMIT\0"), (b"Z", b"I")]
        assert rest == b""


def test_everything_passes_while_nothing_is_wrong(proxy: Proxy, server: PostgresServer) -> None:
    with connect(proxy) as client:
        client.execute("INSERT INTO notes SELECT repeat('x', 100000) FROM generate_series(1, 20)")
        rows = client.execute("SELECT text FROM notes").fetchall()

    assert {len(text) for (text,) in rows} == {100_000}
    assert len(notes(server)) == 20


def test_a_lost_reply_leaves_the_client_in_doubt_and_the_commit_in_place(proxy: Proxy, server: PostgresServer) -> None:
    with connect(proxy) as client:
        client.execute("INSERT INTO notes VALUES ('committed')")
        proxy.lose_replies(1)
        with pytest.raises(psycopg.OperationalError):
            client.commit()

    assert proxy.lost == {"COMMIT": 1}
    assert notes(server) == ["committed"]


def test_the_reply_of_a_write_outside_of_a_transaction_is_lost_as_well(proxy: Proxy, server: PostgresServer) -> None:
    with connect(proxy, autocommit=True) as client:
        proxy.lose_replies(1, ANYTHING)
        with pytest.raises(psycopg.OperationalError):
            client.execute("WITH made AS (INSERT INTO notes VALUES ('committed')) SELECT 1")

    assert (proxy.lost, notes(server)) == ({"SELECT": 1}, ["committed"])


def test_a_write_within_a_transaction_keeps_its_reply(proxy: Proxy, server: PostgresServer) -> None:
    with connect(proxy) as client:
        client.execute("SELECT 1")
        proxy.lose_replies(1, ANYTHING)
        client.execute("INSERT INTO notes VALUES ('not yet')")
        assert proxy.lost == {}
        client.rollback()

    assert notes(server) == []


def test_a_cut_connection_is_an_error_and_the_next_one_works(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.execute("SELECT 1")
        assert proxy.cut(1.0, CHANCE) == 1
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    with connect(proxy) as client:
        client.execute("SELECT 1")


@pytest.mark.parametrize("cut", [False, True])
def test_after_a_silence_the_request_arrives_late_or_never(proxy: Proxy, server: PostgresServer, cut: bool) -> None:
    outcome: list[str] = []

    def write(client: psycopg.Connection[tuple[str]]) -> None:
        try:
            client.execute("INSERT INTO notes VALUES ('late')")
            outcome.append("written")
        except psycopg.OperationalError:
            outcome.append("failed")

    with connect(proxy, autocommit=True) as client:
        assert proxy.silence(1.0, CHANCE) == 1
        writing = threading.Thread(target=write, args=[client])
        writing.start()
        writing.join(0.3)
        assert (writing.is_alive(), notes(server)) == (True, [])
        proxy.speak(cut=cut)
        writing.join()

    assert (outcome, notes(server)) == ((["failed"], []) if cut else (["written"], ["late"]))
