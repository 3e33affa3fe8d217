"""Which library an object comes from, found without importing any."""

from __future__ import annotations

from typing import Any

LIBRARIES = frozenset({"sqlite3", "aiosqlite", "psycopg", "asyncpg", "sqlalchemy", "django"})


def origins(connection: Any) -> frozenset[str]:
    """The supported libraries that define the object's class or one of its bases."""
    return LIBRARIES & {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}


def unwrapped(connection: Any) -> Any:
    """The connection inside an observing proxy, such as the one that OpenTelemetry puts around sqlite3."""
    while not origins(connection) and (inner := getattr(connection, "__wrapped__", None)) is not None:
        connection = inner
    return connection


def described(connection: Any) -> str:
    """The object as an error message names it."""
    kind = type(connection)
    return f"a {kind.__module__}.{kind.__qualname__}"
