"""A mail as it is stored: the envelope, and the source that every attempt sends unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import msgspec

from durably.core.brief import brief
from durably.core.delivery import Kind, Outcome
from durably.core.moment import as_datetime
from durably.deliveries.channel import Delivery
from durably.errors import BadOption
from durably.mail.addresses import UNFIT, address, listed
from durably.mail.attachments import Attachment, attach
from durably.mail.headers import checked, line, plain
from durably.mail.source import source, writing

MOST_RECIPIENTS = 1000
MOST_BYTES = 25 * 1024 * 1024
LINK = re.compile(r"https://[!-;=?-~]+")
MAILBOX = re.compile(r"mailto:[!-;=?-~]+")


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


@writing()
def letter(words: Words, id: str, now: int) -> Letter:
    """Write the mail. Its Message-ID follows from its id, so that it is the same whoever sends it, however often."""
    shown, envelope = address(words.sender, "sender")
    roles = {"to": words.to, "cc": words.cc, "bcc": words.bcc}
    named = {role: [address(one, role) for one in listed(given, role)] for role, given in roles.items()}
    recipients = everyone(spec for some in named.values() for _, spec in some)
    utf8 = not all(one.isascii() for one in (envelope, *recipients))
    message = EmailMessage(policy=SMTP.clone(cte_type="7bit", utf8=utf8))
    message["From"] = shown
    for role in ("to", "cc"):
        if named[role]:
            message[role.title()] = ", ".join(header for header, _ in named[role])
    message["Subject"] = line(words.subject, "subject")
    message["Date"] = format_datetime(as_datetime(now))
    message["Message-ID"] = message_id(id, envelope)
    if words.reply_to is not None:
        message["Reply-To"] = address(words.reply_to, "reply_to")[0]
    for header, value in {**_unsubscribing(words.unsubscribe), **checked(words.headers)}.items():
        message[header] = value
    _fill(message, words)
    return bounded(Letter(envelope, recipients, source(message), words.category))


def _fill(message: EmailMessage, words: Words) -> None:
    if words.text is None and words.html is None:
        raise BadOption("a mail needs a text, an HTML part, or both")
    if words.text is not None:
        message.set_content(plain(words.text, "text"))
    if words.html is not None:
        add = message.set_content if words.text is None else message.add_alternative
        add(plain(words.html, "html"), subtype="html")
    if not isinstance(words.attachments, Sequence):
        raise BadOption(f"attachments: {brief(words.attachments)} must be a list of Attachment")
    for one in words.attachments:
        attach(message, one)


def everyone(specs: Iterable[str]) -> list[str]:
    """Each of these once."""
    recipients = list(dict.fromkeys(specs))
    if not recipients:
        raise BadOption("to: a mail needs somebody to get it")
    if len(recipients) > MOST_RECIPIENTS:
        raise BadOption(f"to: a mail has at most {MOST_RECIPIENTS:,} recipients, and these are {len(recipients):,}")
    return recipients


def bounded(made: Letter) -> Letter:
    """The mail, if it is not too big to arrive."""
    if len(made.source) > MOST_BYTES:
        size = len(made.source) / 1024 / 1024
        raise BadOption(f"this mail takes {size:.0f} MB, and most servers refuse more than 25: link to what is big")
    return made


def message_id(id: str, sender: str) -> str:
    """How a mail is called, whoever sends it."""
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
