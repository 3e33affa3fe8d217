"""A mail as it is stored: the envelope, and the source that every attempt sends unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.moment import as_datetime
from durably.errors import BadOption

MOST_RECIPIENTS = 1000
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NAME = re.compile(r"[!-9;-~]+")
OWN = frozenset(
    {
        "bcc",
        "cc",
        "content-transfer-encoding",
        "content-type",
        "date",
        "from",
        "message-id",
        "mime-version",
        "subject",
        "to",
    }
)


class Attachment(msgspec.Struct, frozen=True):
    """A file that goes with a mail."""

    name: str
    data: bytes
    type: str = "application/octet-stream"


class Letter(msgspec.Struct, frozen=True):
    """What an SMTP transport sends: to whom, in whose name, and the bytes."""

    sender: str
    recipients: list[str]
    source: bytes


def address(given: str, what: str) -> tuple[str, str]:
    """A mailbox as it is written in a header, and as the envelope has it."""
    if not isinstance(given, str) or CONTROL.search(given):
        raise BadOption(f"{what}: {brief(given)} must be an address, without line breaks or other control characters")
    name, spec = "", given.strip()
    if spec.endswith(">") and "<" in spec:
        name, _, spec = spec[:-1].rpartition("<")
    local, at, domain = spec.strip().rpartition("@")
    try:
        found = Address(name.strip().strip('"'), local, domain)
    except (ValueError, IndexError) as error:
        raise BadOption(f"{what}: {brief(given)} is not an address: {error}") from None
    if not (at and local and domain) or re.search(r"[\s<>,;]", found.addr_spec):
        raise BadOption(f"{what}: {brief(given)} is not an address; write ann@example.org or Ann <ann@example.org>")
    return str(found), found.addr_spec


def letter(
    *,
    id: str,
    now: int,
    sender: str,
    to: Sequence[str],
    cc: Sequence[str] = (),
    bcc: Sequence[str] = (),
    subject: str,
    text: str | None,
    html: str | None = None,
    headers: Mapping[str, str] | None = None,
    attachments: Sequence[Attachment] = (),
) -> Letter:
    """Write the mail. Its Message-ID follows from its id, so that it is the same whoever sends it, however often."""
    shown, envelope = address(sender, "sender")
    everyone = {name: [address(one, name) for one in _listed(given, name)] for name, given in _roles(to, cc, bcc)}
    recipients = list(dict.fromkeys(spec for some in everyone.values() for _, spec in some))
    if not recipients:
        raise BadOption("to: a mail needs somebody to get it")
    if len(recipients) > MOST_RECIPIENTS:
        raise BadOption(f"to: a mail has at most {MOST_RECIPIENTS:,} recipients, and these are {len(recipients):,}")
    if text is None and html is None:
        raise BadOption("a mail needs a text, an HTML part, or both")
    message = EmailMessage(
        policy=SMTP.clone(utf8=not envelope.isascii() or any(not one.isascii() for one in recipients))
    )
    message["From"] = shown
    for name in ("to", "cc"):
        if everyone[name]:
            message[name.title()] = ", ".join(header for header, _ in everyone[name])
    message["Subject"] = _line(subject, "subject")
    message["Date"] = format_datetime(as_datetime(now))
    message["Message-ID"] = f"<{id}@{envelope.rpartition('@')[2]}>"
    for header, value in (headers or {}).items():
        message[_header(header)] = _line(value, f"headers: {header}")
    message.set_content(html if text is None else text, subtype="html" if text is None else "plain")
    if text is not None and html is not None:
        message.add_alternative(html, subtype="html")
    for one in attachments:
        kind, _, subtype = one.type.partition("/")
        message.add_attachment(
            one.data, maintype=kind, subtype=subtype or "octet-stream", filename=_line(one.name, "attachment")
        )
    return Letter(envelope, recipients, message.as_bytes())


def _roles(to: Any, cc: Any, bcc: Any) -> list[tuple[str, Any]]:
    return [("to", to), ("cc", cc), ("bcc", bcc)]


def _listed(given: Any, what: str) -> list[str]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence):
        raise BadOption(f"{what}: {brief(given)} must be an address, or a list of addresses")
    return list(given)


def _line(text: str, what: str) -> str:
    if not isinstance(text, str) or CONTROL.search(text):
        raise BadOption(f"{what}: {brief(text)} must be text, without line breaks or other control characters")
    return text


def _header(name: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadOption(f"headers: {brief(name)} is not the name of a header")
    if name.lower() in OWN:
        raise BadOption(f"headers: {name} is set by the mail itself")
    return name
