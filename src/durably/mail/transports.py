"""Where a transport is: `smtp://user@mail.example.org:587`, and how carefully it is talked to."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption

PORTS = {"smtp": 587, "smtps": 465}
Tls = Literal["require", "opportunistic", "none"]


class Transport(msgspec.Struct, frozen=True):
    """An SMTP server that takes our mail."""

    host: str
    port: int
    implicit: bool
    """Whether TLS comes before the first word."""
    tls: Tls
    user: str | None


@lru_cache(1000)
def transport(address: str) -> Transport:
    """Read an address; the password is a secret of its destination, and never part of it."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        raise BadOption(
            "transport: it must look like smtp://user@mail.example.org:587, with a port below 65536"
        ) from None
    if parts.password is not None:
        raise BadOption("transport: the password is a secret: give it as password=, not in the address")
    if parts.scheme not in PORTS or not parts.hostname:
        raise BadOption(f"transport: {brief(address)} must look like smtp://user@mail.example.org:587, or smtps://")
    options = dict(parse_qsl(parts.query))
    tls = options.pop("tls", "require")
    if tls not in ("require", "opportunistic", "none") or options or parts.path not in ("", "/") or parts.fragment:
        raise BadOption(f"transport: {brief(address)}: only ?tls=require, opportunistic or none can follow the port")
    return Transport(
        parts.hostname,
        port or PORTS[parts.scheme],
        parts.scheme == "smtps",
        tls,  # type: ignore[arg-type]
        unquote(parts.username) if parts.username else None,
    )
