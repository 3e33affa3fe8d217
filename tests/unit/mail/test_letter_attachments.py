"""Files go with a mail as parts that every server takes."""

from __future__ import annotations

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest

from durably.errors import BadOption
from durably.mail.attachments import Attachment
from durably.mail.letter import Words, letter


def attached(one: Any) -> Any:
    """The part that an attachment becomes, and the source that it is in."""
    words = Words(sender="shop@here.example", to="ann@x.example", subject="Hello", text="x", attachments=[one])
    source = letter(words, "id", 0).source
    assert source.isascii()
    assert source.replace(b"\r\n", b"").translate(None, b"\r\n") == source.replace(b"\r\n", b"")
    [part] = message_from_bytes(source, policy=default).iter_attachments()
    return part


@pytest.mark.parametrize(
    "type",
    [
        "",
        "text",
        "/",
        "text/",
        "/plain",
        "text plain",
        "text/plain\r\nX-Evil: 1",
        "text/plain\n",
        "text/plain; charset",
        'text/plain; name="a\r\nb"',
        "text/plain; name=ü",
        "multipart/mixed",
        "Multipart/Alternative; boundary=x",
        "message/partial",
        "message/delivery-status",
        7,
        None,
    ],
)
def test_what_is_no_type_of_a_file_is_refused(type: Any) -> None:
    with pytest.raises(BadOption, match=r"attachment 'a\.pdf'"):
        attached(Attachment("a.pdf", b"x", type))


@pytest.mark.parametrize("data", ["text", None, 7, ["x"]])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(BadOption, match=r"attachment 'a\.pdf': its data must be bytes"):
        attached(Attachment("a.pdf", data))


@pytest.mark.parametrize("data", [b"\x00\xff\r\n.\n\r", bytearray(b"x"), memoryview(b"y"), b""])
def test_data_arrives_as_they_are(data: Any) -> None:
    part = attached(Attachment("a.pdf", data, "application/pdf"))

    assert (part.get_content(), part.get_content_type(), part.get_filename()) == (
        bytes(data),
        "application/pdf",
        "a.pdf",
    )


def test_a_type_keeps_its_parameters() -> None:
    part = attached(Attachment("a.ics", b"BEGIN:VCALENDAR", 'Text/Calendar; method=REQUEST; charset="utf-8"'))

    assert part.get_content_type() == "text/calendar"
    assert part["Content-Type"].params == {"method": "REQUEST", "charset": "utf-8"}


def a_message(text: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "bob@x.example", "cyd@x.example", "Before"
    made.set_content(text, cte="7bit" if text.isascii() else "8bit")
    return made


@pytest.mark.parametrize("text", ["It was there.\nYes.\n", "Grüße\n.\n"])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_a_mail_within_a_mail_stays_one(text: str, ends: bytes) -> None:
    data = a_message(text).as_bytes().replace(b"\n", ends)
    part = attached(Attachment("before.eml", data, "message/rfc822"))

    assert (part.get_content_type(), part["Content-Transfer-Encoding"]) == ("message/rfc822", "7bit")
    assert part.get_filename() == "before.eml"
    inner = part.get_content()
    assert (inner["Subject"], inner.get_content().splitlines()) == ("Before", text.splitlines())


@pytest.mark.parametrize("data", [b"Subject: x\n\n" + b"x" * 999, b"Subject: x\n\na\0b"])
def test_a_message_that_no_server_need_take_is_refused(data: bytes) -> None:
    with pytest.raises(BadOption, match="attach it as application/octet-stream"):
        attached(Attachment("a.eml", data, "message/rfc822"))
