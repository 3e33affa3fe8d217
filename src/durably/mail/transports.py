"""Where a transport is: `smtp://user@mail.example.org:587`, and how carefully it is talked to."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption
from durably.mail.domains import dns_name
from durably.mail.headers import CONTROL

_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
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
        raise BadOption("transport: an address is no place for a password; give it apart, as password= or --password")
    if parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise BadOption(f"transport: {brief(address)} must look like smtp://user@mail.example.org:587, or smtps://")
    options = dict(parse_qsl(parts.query))
    tls = options.pop("tls", "require")
    if tls not in ("require", "opportunistic", "none") or options or parts.path not in ("", "/") or parts.fragment:
        raise BadOption(f"transport: {brief(address)}: only ?tls=require, opportunistic or none can follow the port")
    user = unquote(parts.username) if parts.username else None
    if user is not None and CONTROL.search(user):
        raise BadOption(f"transport: {brief(address)}: no user has control characters in its name")
    return Transport(
        _host(parts.hostname),
        port or PORTS[parts.scheme],
        parts.scheme == "smtps",
        tls,  # type: ignore[arg-type]
        user,
    )


def _host(given: str) -> str:
    """The host as it is looked up: an address, or a name that DNS can have."""
    try:
        return str(ip_address(given))
    except ValueError:
        found = given if given.isascii() else dns_name(given)
    if found is None or not _HOST.fullmatch(found):
        raise BadOption(
            f"transport: {brief(given)} is not a host; write letters, digits and hyphens between single dots, "
            "63 at most, and other scripts in ASCII (xn--...)"
        )
    return found
