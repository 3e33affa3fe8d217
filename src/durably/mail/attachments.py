"""Files that go with a mail, as parts that every server takes and every reader opens."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption
from durably.mail.headers import line
from durably.mail.source import source, with_crlf

LONGEST_LINE = 998
"""So many bytes a server takes in one line, without its end."""
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_TYPE = re.compile(rf'({_TOKEN})/({_TOKEN})((?: *; *{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*)')


class Attachment(msgspec.Struct, frozen=True):
    """A file that goes with a mail."""

    name: str
    data: bytes
    type: str = "application/octet-stream"


def attach(message: EmailMessage, one: Attachment) -> None:
    """Add a file to a mail."""
    if not isinstance(one, Attachment):
        raise BadOption(f"attachments: {brief(one)} must be an Attachment, from durably.mail")
    name = line(one.name, "attachment")
    if not isinstance(one.data, bytes | bytearray | memoryview):
        raise BadOption(f"attachment {brief(name)}: its data must be bytes, and are of type {type(one.data).__name__}")
    kind, subtype, params = _type(one)
    within = kind == "message"
    message.add_attachment(
        _message(one) if within else bytes(one.data),
        maintype=kind,
        subtype=subtype,
        params=params,
        filename=name,
        cte="7bit" if within else "base64",
    )


def _type(one: Attachment) -> tuple[str, str, dict[str, str]]:
    """What kind of a file it is, and the parameters that belong to that."""
    found = _TYPE.fullmatch(one.type) if isinstance(one.type, str) else None
    if found is None:
        raise BadOption(f"attachment {brief(one.name)}: {brief(one.type)} is not a type; write it like application/pdf")
    kind, subtype = found[1].lower(), found[2].lower()
    if kind == "multipart" or (kind == "message" and subtype != "rfc822"):
        raise BadOption(
            f"attachment {brief(one.name)}: {one.type} is not the type of a file; "
            "write application/octet-stream, or message/rfc822 for a whole mail"
        )
    return kind, subtype, dict(default.header_factory("content-type", one.type).params)


def _message(one: Attachment) -> bytes:
    """A mail within the mail: no encoding is allowed around it, only within its own parts."""
    data = with_crlf(bytes(one.data))
    if not data.isascii():
        data = source(message_from_bytes(data))
    if not data.isascii() or b"\0" in data or any(len(each) > LONGEST_LINE for each in data.split(b"\r\n")):
        raise BadOption(
            f"attachment {brief(one.name)}: this cannot be part of a mail as {one.type}; "
            "attach it as application/octet-stream"
        )
    return data
