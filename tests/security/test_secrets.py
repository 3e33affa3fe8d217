"""A password in an address never comes out again: not in errors, logs, tracebacks, `--json` or a repr."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from durably import Durably
from durably.stores.postgres.address import redacted
from durably.stores.postgres.store import PostgresStore
from tests.support.command import in_process

CANARY = "hunter2canary"
SPELLED = "%68unter2canary"
"""The same, with a letter that is percent-encoded."""
UNREACHABLE = "127.0.0.1:1/nowhere"

ADDRESSES = {
    "uri": f"postgresql://app:{CANARY}@{UNREACHABLE}",
    "uri without a user": f"postgresql://:{CANARY}@{UNREACHABLE}",
    "short scheme": f"postgres://app:{CANARY}@{UNREACHABLE}",
    "percent-encoded": f"postgresql://app:{SPELLED}@{UNREACHABLE}",
    "query parameter": f"postgresql://app@{UNREACHABLE}?password={CANARY}",
    "query parameter with an encoded name": f"postgresql://app@{UNREACHABLE}?p%61ssword={CANARY}",
    "query parameter among others": f"postgresql://app@{UNREACHABLE}?sslmode=prefer&password={CANARY}&application_name=x",
    "password of a certificate": f"postgresql://app@{UNREACHABLE}?sslpassword={CANARY}",
    "two hosts": f"postgresql://app:{CANARY}@127.0.0.1:1,127.0.0.1:2/nowhere",
    "no database": f"postgresql://app:{CANARY}@127.0.0.1:1",
    "at sign in the password": f"postgresql://app:x@{CANARY}@{UNREACHABLE}",
    "slash in the password": f"postgresql://app:1/{CANARY}@{UNREACHABLE}",
    "slash and no number in the password": f"postgresql://app:x/{CANARY}@{UNREACHABLE}",
    "question mark in the password": f"postgresql://app:x?{CANARY}@{UNREACHABLE}",
    "hash in the password": f"postgresql://app:x#{CANARY}@{UNREACHABLE}",
    "colon in the password": f"postgresql://app:x:{CANARY}@{UNREACHABLE}",
    "broken percent sign": f"postgresql://app:{CANARY}%zz@{UNREACHABLE}",
    "encoded NUL": f"postgresql://app:{CANARY}%00@{UNREACHABLE}",
    "space in the password": f"postgresql://app:x {CANARY}@{UNREACHABLE}",
    "broken bracket": f"postgresql://app:{CANARY}@[::1/nowhere",
    "unknown parameter": f"postgresql://app:{CANARY}@{UNREACHABLE}?nonsense={CANARY}",
    "wrong port": f"postgresql://app:{CANARY}@127.0.0.1:port/nowhere",
    "another driver": f"postgresql+psycopg://app:{CANARY}@{UNREACHABLE}",
    "another store": f"mysql://root:{CANARY}@{UNREACHABLE}",
    "a typing error": f"postgresql//app:{CANARY}@{UNREACHABLE}",
    "no scheme": f"app:{CANARY}@{UNREACHABLE}",
    "keywords": f"host=127.0.0.1 port=1 dbname=nowhere user=app password={CANARY}",
    "keywords in quotes": f"host=127.0.0.1 port=1 password = 'x {CANARY}'",
    "keywords with a broken quote": f"host=127.0.0.1 port=1 password='{CANARY}",
    "sqlite with credentials": f"sqlite://app:{CANARY}@host/file.db",
    "sqlite with a key": f"sqlite:///file.db?key={CANARY}",
}


def told(error: BaseException) -> str:
    """Everything that anyone could print of an error, with all that led to it."""
    parts = ["".join(traceback.format_exception(error)), repr(error), str(error)]
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            parts.append(told(cause))
    return "\n".join(parts)


def tried(action: Callable[[], Any]) -> str:
    """What comes out of an action, whether it works or not."""
    try:
        return repr(action())
    except Exception as error:
        return told(error)


def uses(make: Callable[[], Durably]) -> list[str]:
    """What comes out of opening a store, and of everything that fails because nobody is there."""
    said = [tried(make)]
    try:
        app = make()
    except Exception:
        return said

    @app.task
    async def work() -> None: ...

    said += [repr(app), repr(app.store), str(app.store.address), repr(work), repr(vars(work))]
    for action in (work.enqueue, app.migrate, app.tick, app.tasks.list, app.store.pending, app.store.examine):
        said.append(tried(action))
    said.append(tried(lambda: asyncio.run(work.aenqueue())))
    said.append(tried(lambda: app.handle("01890a5d-ac96-774b-bcce-b302099a8057").info()))
    said.append(tried(lambda: work.using(within=object()).enqueue()))
    app.close()
    return said


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_a_password_never_comes_out_again(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    said = uses(lambda: Durably(address))
    said += [tried(lambda: PostgresStore("postgresql://127.0.0.1:1/x", listen_url=address).address)]
    said += [tried(lambda: asyncio.run(_listen(address)))]
    durably = in_process(capsys)
    for look in (("tasks", "list"), ("doctor",), ("doctor", "--json"), ("tasks", "list", "--json"), ("migrate",)):
        ran = durably(*look, "--store", address)
        assert ran.code in (1, 2), (look, ran)
        said += [ran.out, ran.err]
    monkeypatch.setenv("DURABLY_STORE", address)
    ran = durably("queues", "list")
    said += [ran.out, ran.err, caplog.text]

    for one in said:
        assert CANARY not in one
        assert SPELLED not in one


async def _listen(address: str) -> None:
    """A worker that listens there hears nothing, and says so in its log."""
    wakeups = PostgresStore("postgresql://127.0.0.1:1/x", listen_url=address).wakeups()
    await wakeups.wait(0.2)
    await wakeups.close()


def test_an_address_is_shown_with_everything_but_its_secrets() -> None:
    assert (
        redacted("postgresql://app:x@host:5432/db?sslmode=require")
        == "postgresql://app:***@host:5432/db?sslmode=require"
    )
    assert redacted("postgresql://app@host/db") == "postgresql://app@host/db"
    assert redacted("postgresql:///db?host=/run&password=x") == "postgresql:///db?host=/run&password=***"
    assert redacted("host=h password='a \\' b' user=u") == "host=h password=*** user=u"


def test_a_password_with_every_odd_character_works_when_it_is_encoded(migrated_postgres_url: str) -> None:
    password = "p%40%2F%3A%3F%23%25%20w"
    with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE odd LOGIN SUPERUSER PASSWORD 'p@/:?#% w'")
    try:
        _, _, rest = migrated_postgres_url.partition("@")
        with Durably(f"postgresql://odd:{password}@{rest}") as app:
            assert app.queues.list() == []
            assert app.store.address == f"postgresql://odd:***@{rest}"
    finally:
        with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE odd")
