"""A mail as it is stored: the envelope, and the source that every attempt sends unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from email.headerregistry import Address
from email.message import EmailMessage, Message
from email.policy import SMTP
from email.utils import format_datetime, getaddresses
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.delivery import Kind, Outcome
from durably.core.moment import as_datetime
from durably.deliveries.channel import Delivery
from durably.errors import BadOption

MOST_RECIPIENTS = 1000
MOST_BYTES = 25 * 1024 * 1024
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
UNFIT = re.compile(r"[\x00-\x20\x7f<>,;]")
NAME = re.compile(r"[!-9;-~]+")
FOLD = re.compile(r"\r?\n(?=[ \t])")
LINES = re.compile(rb"\r?\n|\r")
LINK = re.compile(r"https://[!-;=?-~]+")
MAILBOX = re.compile(r"mailto:[!-;=?-~]+")
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
        "subject",
        "to",
    }
)


class Attachment(msgspec.Struct, frozen=True):
    """A file that goes with a mail."""

    name: str
    data: bytes
    type: str = "application/octet-stream"


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a transport sends: to whom, in whose name, and the bytes."""

    sender: str
    recipients: list[str]
    source: bytes
    category: str = ""
    """What people can unsubscribe from."""
    author: str = ""
    """The address in From, where it is another than the sender."""


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What a mail says, and to whom, before it is written."""

    sender: str
    to: str | Sequence[str]
    cc: str | Sequence[str] = ()
    bcc: str | Sequence[str] = ()
    subject: str
    text: str | None = None
    html: str | None = None
    reply_to: str | None = None
    headers: Mapping[str, str] = {}
    attachments: Sequence[Attachment] = ()
    unsubscribe: str | None = None
    category: str = ""


def read(delivery: Delivery) -> Letter | Outcome:
    """The mail that is to be delivered; if it is none, what that means."""
    try:
        found = msgspec.msgpack.decode(delivery.message.body, type=Letter)
    except msgspec.MsgspecError as error:
        return Outcome(kind=Kind.PERMANENT, reason=f"this is not a mail: {error}", asked=False)
    if any(UNFIT.search(one) for one in (found.sender, *found.recipients)):
        return Outcome(kind=Kind.PERMANENT, reason="this is not a mail: an address in it is none", asked=False)
    return found


def address(given: str, what: str) -> tuple[str, str]:
    """A mailbox as it is written in a header, and as the envelope has it."""
    if not isinstance(given, str) or CONTROL.search(given):
        raise BadOption(f"{what}: {brief(given)} must be an address, without line breaks or other control characters")
    name, spec = "", given.strip()
    if spec.endswith(">") and "<" in spec:
        name, _, spec = spec[:-1].rpartition("<")
    local, at, domain = spec.strip().rpartition("@")
    try:
        # As DNS has it: then only a name before the @ that is not ASCII needs a server that knows of such names.
        known = domain if domain.isascii() else domain.encode("idna").decode("ascii")
        found = Address(name.strip().strip('"'), local, known)
    except (ValueError, IndexError) as error:
        raise BadOption(f"{what}: {brief(given)} is not an address: {error}") from None
    if not (at and local and domain) or UNFIT.search(found.addr_spec):
        raise BadOption(f"{what}: {brief(given)} is not an address; write ann@example.org or Ann <ann@example.org>")
    return str(found), found.addr_spec


def letter(words: Words, id: str, now: int) -> Letter:
    """Write the mail. Its Message-ID follows from its id, so that it is the same whoever sends it, however often."""
    shown, envelope = address(words.sender, "sender")
    roles = {"to": words.to, "cc": words.cc, "bcc": words.bcc}
    everyone = {name: [address(one, name) for one in _listed(given, name)] for name, given in roles.items()}
    recipients = _everyone(spec for some in everyone.values() for _, spec in some)
    if words.text is None and words.html is None:
        raise BadOption("a mail needs a text, an HTML part, or both")
    message = EmailMessage(policy=SMTP.clone(utf8=not all(one.isascii() for one in (envelope, *recipients))))
    message["From"] = shown
    for name in ("to", "cc"):
        if everyone[name]:
            message[name.title()] = ", ".join(header for header, _ in everyone[name])
    message["Subject"] = _line(words.subject, "subject")
    message["Date"] = format_datetime(as_datetime(now))
    message["Message-ID"] = _message_id(id, envelope)
    if words.reply_to is not None:
        message["Reply-To"] = address(words.reply_to, "reply_to")[0]
    for header, value in {**_unsubscribing(words.unsubscribe), **_checked(words.headers)}.items():
        message[header] = value
    _fill(message, words)
    return _bounded(Letter(envelope, recipients, message.as_bytes(), words.category))


def from_message(
    message: Message, id: str, now: int, *, sender: str | None = None, to: Sequence[str] = (), category: str = ""
) -> Letter:
    """A mail that somebody else has written. Its envelope is what its headers say, unless it is given."""
    for header, value in message.items():
        if CONTROL.search(FOLD.sub("", str(value))):
            raise BadOption(f"{header}: {brief(str(value))} must not have line breaks or other control characters")
    authors = message.get_all("From", [])
    if len(authors) != 1:
        raise BadOption(f"From: a message has one, and this one has {len(authors)}")
    _, author = address(getaddresses([str(authors[0])])[0][1], "From")
    envelope = author if sender is None else address(sender, "sender")[1]
    named = [str(one) for role in ("To", "Cc", "Bcc") for one in message.get_all(role, [])]
    recipients = _everyone(address(one, "to")[1] for one in (to or [spec for _, spec in getaddresses(named)]))
    written = copy(message)
    del written["Bcc"]
    if "Date" not in written:
        written["Date"] = format_datetime(as_datetime(now))
    if "Message-ID" not in written:
        written["Message-ID"] = _message_id(id, envelope)
    source = LINES.sub(b"\r\n", written.as_bytes())
    return _bounded(Letter(envelope, recipients, source, category, "" if author == envelope else author))


def _fill(message: EmailMessage, words: Words) -> None:
    first = words.html if words.text is None else words.text
    message.set_content(first, subtype="html" if words.text is None else "plain")
    if words.text is not None and words.html is not None:
        message.add_alternative(words.html, subtype="html")
    for one in words.attachments:
        kind, _, subtype = one.type.partition("/")
        message.add_attachment(
            one.data, maintype=kind, subtype=subtype or "octet-stream", filename=_line(one.name, "attachment")
        )


def _everyone(specs: Iterable[str]) -> list[str]:
    recipients = list(dict.fromkeys(specs))
    if not recipients:
        raise BadOption("to: a mail needs somebody to get it")
    if len(recipients) > MOST_RECIPIENTS:
        raise BadOption(f"to: a mail has at most {MOST_RECIPIENTS:,} recipients, and these are {len(recipients):,}")
    return recipients


def _bounded(made: Letter) -> Letter:
    if len(made.source) > MOST_BYTES:
        size = len(made.source) / 1024 / 1024
        raise BadOption(f"this mail takes {size:.0f} MB, and most servers refuse more than 25: link to what is big")
    return made


def _message_id(id: str, sender: str) -> str:
    return f"<{id}@{sender.rpartition('@')[2]}>"


def _unsubscribing(link: str | None) -> dict[str, str]:
    """One click, as RFC 8058 has it; a mailbox is for people whose programs know nothing else."""
    if link is None:
        return {}
    if isinstance(link, str) and LINK.fullmatch(link):
        return {"List-Unsubscribe": f"<{link}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
    if isinstance(link, str) and MAILBOX.fullmatch(link):
        return {"List-Unsubscribe": f"<{link}>"}
    raise BadOption(f"unsubscribe: {brief(link)} must be an https: link that takes a POST, or a mailto: link")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    return {_header(name): _line(value, f"headers: {name}") for name, value in headers.items()}


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
