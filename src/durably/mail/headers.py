"""What may stand in a header: one line each, so that nobody can write another header, or a body, into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from durably.core.brief import brief
from durably.errors import BadOption

CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
"""Control characters, and whatever else some reader takes for the end of a line."""
NAME = re.compile(r"[!-9;-~]+")
OWN = frozenset(
    {
        "bcc",
        "cc",
        "content-transfer-encoding",
        "content-type",
        "date",
        "from",
        "list-unsubscribe",
        "list-unsubscribe-post",
        "message-id",
        "mime-version",
        "reply-to",
        "resent-bcc",
        "subject",
        "to",
    }
)


def line(given: str, what: str) -> str:
    """Text that fits on one line."""
    if not isinstance(given, str) or CONTROL.search(given):
        raise BadOption(f"{what}: {brief(given)} must be text, without line breaks or other control characters")
    return plain(given, what)


def plain(given: str, what: str) -> str:
    """Text that can be written; half of a surrogate pair cannot."""
    if not isinstance(given, str):
        raise BadOption(f"{what}: {brief(given)} must be text")
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        raise BadOption(f"{what}: {brief(given)} has lone surrogates, which are no characters: decode it as UTF-8")
    return given


def checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that somebody adds to a mail."""
    if not isinstance(headers, Mapping):
        raise BadOption(f"headers: {brief(headers)} must be a mapping, like {{'X-Order': '7'}}")
    return {_name(name): line(value, f"headers: {name}") for name, value in headers.items()}


def _name(given: Any) -> str:
    if not isinstance(given, str) or not NAME.fullmatch(given):
        raise BadOption(f"headers: {brief(given)} is not the name of a header")
    if given.lower() in OWN:
        raise BadOption(f"headers: {given} is not for you to set: send() has an option for it, or writes it itself")
    return given
