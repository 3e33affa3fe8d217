"""A mail that somebody else has written: it is sent as it is, once its envelope is known and nothing in it misleads."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from email.message import Message
from email.utils import format_datetime, getaddresses

from durably.core.brief import brief
from durably.core.moment import as_datetime
from durably.errors import BadOption
from durably.mail.addresses import address, listed
from durably.mail.letter import Letter, bounded, everyone, message_id
from durably.mail.source import source, writing

HIDDEN = ("Bcc", "Resent-Bcc")
"""Whom nobody else may see."""


@writing()
def from_message(
    message: Message, id: str, now: int, *, sender: str | None = None, to: str | Sequence[str] = (), category: str = ""
) -> Letter:
    """The mail as it is stored. Its envelope is what its headers say, unless it is given."""
    author = _author(message)
    envelope = author if sender is None else address(sender, "sender")[1]
    named = [str(one) for role in ("To", "Cc", "Bcc") for one in message.get_all(role, [])]
    chosen = listed(to, "to") or [spec for _, spec in getaddresses(named) if spec]
    recipients = everyone(address(one, "to")[1] for one in chosen)
    written = copy(message)
    for name in HIDDEN:
        del written[name]
    if "Date" not in written:
        written["Date"] = format_datetime(as_datetime(now))
    if "Message-ID" not in written:
        written["Message-ID"] = message_id(id, envelope)
    return bounded(Letter(envelope, recipients, source(written), category, "" if author == envelope else author))


def _author(message: Message) -> str:
    fields = message.get_all("From", [])
    if len(fields) != 1:
        raise BadOption(f"From: a message has one, and this one has {len(fields)}")
    named = [spec for _, spec in getaddresses([str(fields[0])]) if spec]
    if not named:
        raise BadOption(f"From: {brief(str(fields[0]))} names nobody; write ann@example.org or Ann <ann@example.org>")
    return address(named[0], "From")[1]
