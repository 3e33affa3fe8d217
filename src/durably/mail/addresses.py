"""Mailboxes: as people write them, as headers show them, and as the envelope has them, in one spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from durably.core.brief import brief
from durably.errors import BadOption
from durably.mail.domains import dns_name
from durably.mail.headers import CONTROL, plain

UNFIT = re.compile(r"[\x00-\x20\x7f<>,;]")
"""What an envelope cannot have in an address."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r'[()<>@,:;.\\"\[\]]')
_ATOM = r'[^\s()<>@,:;.\\"\[\]]+'
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_DOTS = re.compile(rf"(?:{_ATOM}|\.)+")
_DOMAIN = re.compile(r"(?i)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*|\[(?:ipv6:)?[0-9a-f:.]+\]")


def address(given: str, what: str) -> tuple[str, str]:
    """A mailbox as it is written in a header, and as the envelope has it."""
    if not isinstance(given, str) or CONTROL.search(given):
        raise BadOption(f"{what}: {brief(given)} must be an address, without line breaks or other control characters")
    name, spec = "", plain(given, what).strip()
    if spec.endswith(">") and "<" in spec:
        name, _, spec = spec[:-1].rpartition("<")
    local, at, domain = spec.strip().rpartition("@")
    user = _user(local) if at else None
    if user is not None and not domain.isascii():
        domain = _in_ascii(domain, given, what)
    if user is None or not _DOMAIN.fullmatch(domain):
        raise BadOption(f"{what}: {brief(given)} is not an address; write ann@example.org or Ann <ann@example.org>")
    found = f"{user}@{domain}"
    return _named(name.strip(), found), found


def listed(given: Any, what: str) -> list[str]:
    """An address, or several, as a list."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence):
        raise BadOption(f"{what}: {brief(given)} must be an address, or a list of addresses")
    return list(given)


def _user(local: str) -> str | None:
    """What stands before the @, with quotes only if it needs them; None if that is nobody."""
    quoted = _QUOTED.fullmatch(local)
    if quoted is None and not _DOTS.fullmatch(local):
        return None
    user = local if quoted is None else _ESCAPED.sub(r"\1", quoted[1])
    if not user or UNFIT.search(user):
        return None
    return user if _LOCAL.fullmatch(user) else _in_quotes(user)


def _in_ascii(domain: str, given: str, what: str) -> str:
    """As DNS has it: then only a name before the @ that is not ASCII needs a server that knows of such names."""
    found = dns_name(domain)
    if found is None:
        why = "its domain does not stand for exactly one name in DNS; write the domain in ASCII (xn--...)"
        raise BadOption(f"{what}: {brief(given)} is not an address: {why}")
    return found


def _named(name: str, spec: str) -> str:
    if not name:
        return spec
    quoted = _QUOTED.fullmatch(name)
    shown = name if quoted is None else _ESCAPED.sub(r"\1", quoted[1])
    return f"{_in_quotes(shown) if _SPECIAL.search(shown) else shown} <{spec}>"


def _in_quotes(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
