"""From a URL to a store."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from durably.core.moment import Clock
from durably.errors import BadOption, StoreUnavailable
from durably.stores.protocol import Store


def open_store(
    url: str, *, schema: str = "durably", listen_url: str | None = None, clock: Clock | None = None
) -> Store:
    """The store that a URL names: `sqlite:///file.db`, `sqlite:////absolute/file.db`, `postgresql://...`."""
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        from durably.stores.sqlite.store import SqliteStore

        return SqliteStore(_sqlite_path(url), clock)
    if scheme in ("postgresql", "postgres"):
        try:
            from durably.stores.postgres.store import PostgresStore
        except ImportError as error:
            raise StoreUnavailable(f"PostgreSQL needs its driver: pip install 'durably[postgres]' ({error})") from error
        return PostgresStore(url, schema=schema, listen_url=listen_url)
    # What is no address may be anything, a password included: only what can be the name of a store is quoted.
    known = ":" in url and re.fullmatch(r"[a-z0-9+.]+", scheme)
    named = f"the store {scheme!r} is not known" if known else "this is no address of a store"
    raise BadOption(f"{named}; use sqlite:///file.db or postgresql://user@host/database")


def _sqlite_path(url: str) -> str:
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
        usable = not (parts.netloc or parts.query or parts.fragment or "\0" in path)
    except ValueError:
        usable = False
    if not usable:
        raise BadOption(
            "an SQLite address is a path and nothing else: write sqlite:///relative.db or sqlite:////absolute/path.db "
            "(three or four slashes), and in the path % as %25, ? as %3F and # as %23"
        )
    if path in ("", "/", "/:memory:"):
        return ":memory:"
    return path[1:]
