"""A message that somebody else has written: nothing in it misleads, and it is as wide as every server takes it."""

from __future__ import annotations

import re
from email import message_from_bytes, message_from_string
from email.header import Header
from email.message import EmailMessage, Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import Compat32, default
from typing import Any

import pytest

from durably.errors import BadOption
from durably.mail.letter import Letter
from durably.mail.ready import from_message


def a_message(kind: type[Message] = EmailMessage, **headers: Any) -> Message:
    """A message of one of the two kinds that Python has."""
    made = kind()
    for name, value in {"From": "shop@here.example", "To": "ann@x.example", "Subject": "Hello", **headers}.items():
        made[name] = value
    made.set_payload("It is there.\n")
    return made


def accepted(message: Message, **given: Any) -> Letter:
    return from_message(message, "id", 0, **given)


@pytest.mark.parametrize("kind", [Message, EmailMessage])
@pytest.mark.parametrize("name", ["X-A\r\nBcc: v@x.example\r\nX-B", "X-A\nB", "X\0", "X A", "X:", "Ü", "X\u2028", ""])
def test_a_header_cannot_bring_others_in_its_name(kind: type[Message], name: str) -> None:
    message = a_message(kind)
    message._headers.append((name, "v"))  # type: ignore[attr-defined]

    with pytest.raises(BadOption, match="is not the name of a header"):
        accepted(message)


@pytest.mark.parametrize(
    "value",
    [
        "x\r\nBcc: v@x.example",
        "x\nb",
        "x\rb",
        "x\0",
        "x\x85y",
        "x\u2028y",
        "x\u2029y",
        "x\r\n \r\n\r\nbody",
        "x\r\n \r\n y",
        "x\n \t\n y",
        "x\r\n ",
    ],
)
def test_a_header_cannot_bring_others_in_its_value(value: str) -> None:
    with pytest.raises(BadOption, match=r"X-A: .* must not have line breaks"):
        accepted(a_message(Message, **{"X-A": value}))


@pytest.mark.parametrize(
    "hidden", ["=?utf-8?q?a=0D=0ABcc:_x@y.example?=", "=?utf-8?q?a=00b?=", "=?utf-8?q?a=E2=80=A8b?="]
)
def test_an_encoded_word_cannot_hide_a_line_break(hidden: str) -> None:
    with pytest.raises(BadOption, match=r"X-A: .* must not have line breaks"):
        accepted(a_message(EmailMessage, **{"X-A": hidden}))


@pytest.mark.parametrize("name", ["Content-Description", "X-A\r\nX-B"])
def test_the_headers_of_parts_are_checked_too(name: str) -> None:
    message, part = MIMEMultipart(), MIMEText("x")
    message["From"], message["To"] = "shop@here.example", "ann@x.example"
    part[name] = "x\r\n\r\nAnother body"
    message.attach(part)

    with pytest.raises(BadOption, match=r"must not have line breaks|is not the name of a header"):
        accepted(message)


class Talkative(Compat32):
    """A policy that writes more than it was given."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        return super().fold_binary(name, value) + (b"X-More: 1\n" if name == "Subject" else b"")


def test_a_header_that_becomes_several_in_the_source_is_refused() -> None:
    message = a_message(Message)
    message.policy = Talkative()

    with pytest.raises(BadOption, match="would become several"):
        accepted(message)


@pytest.mark.parametrize("value", ["x\r\n y", "x\n\ty", "x\t y", "x\r\n  y\r\n z", Header("Grüße", "utf-8")])
def test_a_header_may_be_folded(value: Any) -> None:
    assert accepted(a_message(Message, **{"X-A": value})).source.count(b"X-A: ") == 1


def test_a_message_that_was_read_somewhere_is_sent_on() -> None:
    read = message_from_string(
        "From: shop@here.example\nTo: ann@x.example,\n\tbob@x.example\nSubject: a\n b\n"
        'Content-Type: multipart/mixed;\n\tboundary="-"\n\n---\n\nx\n-----\n'
    )

    made = accepted(read)

    assert made.recipients == ["ann@x.example", "bob@x.example"]
    assert message_from_bytes(made.source, policy=default)["Subject"] == "a b"


@pytest.mark.parametrize("kind", [Message, EmailMessage])
@pytest.mark.parametrize("name", ["Bcc", "Resent-Bcc", "RESENT-BCC"])
def test_whom_nobody_may_see_nobody_sees(kind: type[Message], name: str) -> None:
    message = a_message(kind, **{name: "secret@x.example"})

    made = accepted(message)

    assert b"secret" not in made.source
    assert message[name] == "secret@x.example"
    assert ("secret@x.example" in made.recipients) == (name == "Bcc")


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"From": ""}, {}),
        ({"From": "nobody:;"}, {}),
        ({"From": "shop"}, {}),
        ({"From": "shop@straße.example"}, {}),
        ({"To": ""}, {}),
        ({"To": "undisclosed-recipients:;"}, {}),
        ({"To": "ann@straße.example"}, {}),
        ({}, {"to": 5}),
        ({}, {"to": [None]}),
        ({}, {"sender": 5}),
        ({}, {"sender": "<>"}),
    ],
)
def test_a_message_to_or_from_nobody_is_refused(headers: dict[str, str], given: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as caught:
        accepted(a_message(Message, **headers), **given)
    assert "cannot be written" not in str(caught.value), "the reason must be one for people"


def eight_bits() -> dict[str, Message]:
    """Messages whose content is wider than ASCII, as different programs write them."""
    new, old, bare, binary = EmailMessage(), MIMEText("Grüße\n", "plain", "utf-8"), Message(), MIMEMultipart()
    new.set_content("Grüße\n", cte="8bit")
    del old["Content-Transfer-Encoding"]
    old["Content-Transfer-Encoding"] = "8bit"
    old.set_payload("Grüße\n".encode().decode("ascii", "surrogateescape"))
    bare["Content-Type"] = "text/plain; charset=iso-8859-1"
    bare.set_payload("Grüße\n".encode("latin-1").decode("ascii", "surrogateescape"))
    part = MIMEApplication(b"", _encoder=lambda part: None)
    part.set_payload("Grüße\n".encode().decode("ascii", "surrogateescape"))
    binary.attach(part)
    read = message_from_bytes(b"Content-Type: text/plain; charset=utf-8\n\nGr\xc3\xbc\xc3\x9fe\n", policy=default)
    found = {"new": new, "old": old, "bare": bare, "binary": binary, "read": read}
    for one in found.values():
        one["From"], one["To"] = "shop@here.example", "ann@x.example"
    return found


@pytest.mark.parametrize("name", eight_bits())
def test_a_body_becomes_seven_bits_wide_and_says_the_same(name: str) -> None:
    message = eight_bits()[name]
    before = message.as_bytes()

    source = accepted(message).source

    assert source.isascii()
    assert re.findall(rb"(?<!\r)\n|\r(?!\n)", source) == []
    [leaf] = [part for part in message_from_bytes(source).walk() if not part.is_multipart()]
    data = leaf.get_payload(decode=True)
    assert isinstance(data, bytes)
    assert data.decode("latin-1" if name == "bare" else "utf-8").splitlines() == ["Grüße"]
    assert message.as_bytes() == before


def test_a_header_outside_of_ascii_is_encoded() -> None:
    read = message_from_bytes(b"From: shop@here.example\nTo: ann@x.example\nSubject: Gr\xc3\xbc\xc3\x9fe\n\nx\n")

    assert accepted(read).source.isascii()


@pytest.mark.parametrize("content", ["grüße", "\ud800"], ids=["text without a charset", "half of a pair"])
def test_what_cannot_be_written_is_refused_with_a_reason(content: str) -> None:
    message = a_message(Message)
    message.set_payload(content)

    with pytest.raises(BadOption, match=r"cannot be written|not in which charset"):
        accepted(message)


def test_a_part_that_is_not_encoded_as_it_says_is_refused() -> None:
    message = a_message(Message, **{"Content-Transfer-Encoding": "base64"})
    message.set_payload(b"Gr\xfc\xdfe".decode("ascii", "surrogateescape"))

    with pytest.raises(BadOption, match="cannot be written"):
        accepted(message)


def test_what_is_between_the_parts_must_be_ascii() -> None:
    message = MIMEMultipart()
    message["From"], message["To"] = "shop@here.example", "ann@x.example"
    message.attach(MIMEText("x"))
    message.preamble = b"Gr\xfc\xdfe".decode("ascii", "surrogateescape")

    with pytest.raises(BadOption, match="outside of ASCII"):
        accepted(message)
