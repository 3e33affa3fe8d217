"""The address of a server: read before it is used, and shown without its secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from durably.errors import BadOption

SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})

_SECRET = re.compile(rf"(?i)\b({'|'.join(sorted(SECRETS))})(\s*=\s*)('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])*)", re.DOTALL)


def checked(address: str) -> str:
    """The address, if the driver reads it as it was meant; a password in the wrong place would end up in messages."""
    if not _readable(address):
        # Nothing of it is quoted, and the driver's own error is not kept: both would show the password.
        raise BadOption(
            "the PostgreSQL address cannot be read: write it like postgresql://user:password@host:5432/database, and "
            "in the password % as %25, @ as %40, / as %2F and : as %3A"
        )
    return address


def _readable(address: str) -> bool:
    try:
        parts = conninfo_to_dict(address)
    except (psycopg.Error, UnicodeError, ValueError):
        return False
    if any(port and not port.isdecimal() for port in str(parts.get("port", "")).split(",")):
        return False
    if "://" not in address:
        return True
    _, _, rest = address.partition("://")
    place = rest.partition("?")[0] if "@" not in rest.partition("/")[0] else rest.partition("@")[2].partition("?")[0]
    return "@" not in place


def redacted(address: str) -> str:
    """The address without its secrets."""
    if "://" not in address:
        return _SECRET.sub(r"\1\2***", address)
    scheme, _, rest = address.partition("://")
    head, slash, tail = rest.partition("/")
    credentials, at, host = head.rpartition("@")
    user, colon, _ = credentials.partition(":")
    place, question, query = f"{host}{slash}{tail}".partition("?")
    shown = [_parameter(part) for part in query.split("&")]
    return f"{scheme}://{user}{':***' if colon else ''}{at}{place}{question}{'&'.join(shown)}"


def _parameter(part: str) -> str:
    name, equals, _ = part.partition("=")
    return f"{name}{equals}***" if unquote(name).strip().lower() in SECRETS else part
