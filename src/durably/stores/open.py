"""From a URL to a store."""

from __future__ import annotations

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
    raise BadOption(
        f"the store {scheme or url!r}: is not known; use sqlite:///file.db or postgresql://user@host/database"
    )


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment:
        raise BadOption(f"{url!r}: write sqlite:///relative.db or sqlite:////absolute/path.db (three or four slashes)")
    if path in ("", "/", "/:memory:"):
        return ":memory:"
    return path[1:]
