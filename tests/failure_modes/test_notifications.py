"""Notifications are hints: nobody is notified who is awake, and a connection that went silent is found out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from durably import Durably
from durably.stores.operations.claim import sleep, wake
from durably.stores.operations.sweep import open_session
from durably.stores.postgres import listen
from durably.testing.servers import SUPERUSER, PostgresServer
from tests.conftest import fresh_database
from tests.support.proxy import Proxy

NEVER = 3600


def test_an_enqueue_notifies_only_where_someone_sleeps(migrated_postgres_url: str) -> None:
    app = Durably(migrated_postgres_url)

    @app.task
    async def work() -> None: ...

    @app.task(queue="elsewhere")
    async def other() -> None: ...

    app.store.run(open_session("worker", 3_600_000_000, "here", 1, "{}"))
    with psycopg.connect(migrated_postgres_url, autocommit=True) as listener:
        listener.execute("LISTEN durably")

        def heard() -> list[str]:
            listener.execute("SELECT pg_notify('durably', 'end')")
            found = []
            for notice in listener.notifies():
                if notice.payload == "end":
                    break
                found.append(notice.payload)
            return found

        work.enqueue()
        assert heard() == [], "nobody sleeps, so a commit need not queue up behind others to notify"
        app.store.run(sleep("worker", ["default"]))
        other.enqueue()
        assert heard() == []
        app.enqueue_many(work.call() for _ in range(500))
        assert heard() == ["default"], "once per flush, not once per task"
        app.store.run(wake("worker"))
        work.enqueue()
        assert heard() == []
    app.close()


class Always(random.Random):
    """Chance that always strikes."""

    def random(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(18, tcp=True, durable=False) as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with fresh_database(server) as url:
        app = Durably(url)
        app.migrate()
        app.close()
        yield url


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def listening_through(proxy: Proxy, url: str) -> Durably:
    """An application that talks to the server itself, and listens through the proxy."""
    netloc, plain = f"{SUPERUSER}@127.0.0.1:{proxy.port}", "sslmode=disable&gssencmode=disable"
    return Durably(url, listen_url=urlsplit(url)._replace(netloc=netloc, query=plain).geturl())


async def listens(url: str) -> None:
    """Wait until the worker listens."""
    query = "SELECT 1 FROM pg_stat_activity WHERE query IN ('LISTEN durably', 'SELECT pg_notify($1, $2)')"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(query).fetchone() is None:  # noqa: ASYNC110 - the server cannot signal
            await asyncio.sleep(0.01)


def test_a_notification_connection_that_is_half_open_is_found_and_replaced(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "CHECK_EVERY", 0.2)
    app = listening_through(proxy, url)
    asleep = asyncio.Event()
    wait = listen.Notifications.wait

    async def tells(self: listen.Notifications, seconds: float) -> None:
        asleep.set() if seconds > 60 else asleep.clear()
        await wait(self, seconds)
        asleep.clear()

    monkeypatch.setattr(listen.Notifications, "wait", tells)

    @app.task
    async def work(number: int) -> int:
        return number

    async def story() -> list[int]:
        worker = app.worker(poll=NEVER)
        serving = asyncio.create_task(worker.run())
        results = [await (await work.aenqueue(1)).aresult(120)]
        await listens(url)
        await asleep.wait()
        assert proxy.silence(0.99, Always()) == 1
        results.append(await (await work.aenqueue(2)).aresult(120))
        worker.stop()
        await serving
        await app.aclose()
        return results

    assert asyncio.run(story()) == [1, 2]


def test_a_worker_leaves_though_its_notification_connection_is_half_open(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "CHECK_EVERY", 0.01)
    app = listening_through(proxy, url)

    async def story() -> None:
        worker = app.worker(poll=0.05, queues=["default"])
        serving = asyncio.create_task(worker.run())
        await listens(url)
        proxy.silence(0.99, Always())
        await asyncio.sleep(0.1)  # long enough to be in the middle of a check; if not, it is only an easier case
        worker.stop()
        await serving
        await app.aclose()

    asyncio.run(story())
