"""Mail as it is written: headers that nobody can inject into, parts, and an id that stays."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.policy import default
from typing import Any

import msgspec
import pytest

from durably.core.delivery import Kind
from durably.errors import BadOption
from durably.mail.attachments import Attachment
from durably.mail.letter import Letter, Words, letter
from durably.mail.results import Recipient, kept, outcome, waiting
from durably.mail.transports import Transport, transport

ID = "0190a5d1-ac96-774b-bcce-b302099a8057"
NOW = 1_700_000_000_000_000


def written(**given: Any) -> Letter:
    usual = {"sender": "Shop <shop@here.example>", "to": ["ann@x.example"], "subject": "Hello", "text": "It is there."}
    return letter(Words(**{**usual, **given}), ID, NOW)


def parsed(made: Letter) -> Any:
    return message_from_bytes(made.source, policy=default)


def test_a_mail_has_its_envelope_its_headers_and_an_id_that_stays() -> None:
    made = written(cc=["Bob <bob@x.example>"], bcc=["cyd@x.example", "ann@x.example"], headers={"X-Order": "7"})
    found = parsed(made)

    assert (made.sender, made.recipients) == ("shop@here.example", ["ann@x.example", "bob@x.example", "cyd@x.example"])
    assert (found["From"], found["To"], found["Cc"]) == (
        "Shop <shop@here.example>",
        "ann@x.example",
        "Bob <bob@x.example>",
    )
    assert (found["Bcc"], found["Subject"], found["X-Order"]) == (None, "Hello", "7")
    assert found["Message-ID"] == f"<{ID}@here.example>"
    assert found["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    assert b"cyd@" not in made.source
    assert written() == written()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Letter) == made


@pytest.mark.parametrize(
    "text", ["Grüße\n", "日本語\n", "ä" * 5000, "plain\n", "a\rb\nc\r\nd\n", f"{'long ' * 500}ä\n"]
)
def test_a_body_is_seven_bits_wide_and_its_lines_end_as_smtp_wants_it(text: str) -> None:
    made = written(text=text, html=f"<p>{text}</p>", attachments=[Attachment("räum.txt", text.encode(), "text/plain")])

    assert made.source.isascii()
    assert re.findall(rb"(?<!\r)\n|\r(?!\n)", made.source) == []
    assert max(map(len, made.source.split(b"\r\n"))) <= 998
    assert b"8bit" not in made.source
    assert parsed(made).get_body(("plain",)).get_content().splitlines() == text.splitlines()


def test_a_text_with_few_letters_outside_of_ascii_can_still_be_read_in_the_source() -> None:
    assert b"\r\nIt is on its way to K=C3=B6ln.\r\n" in written(text="It is on its way to Köln.\n" * 3).source


def test_parts_and_attachments_are_there() -> None:
    found = parsed(written(html="<p>Hi</p>", attachments=[Attachment("räum.pdf", b"%PDF", "application/pdf")]))

    assert found.get_body(("plain",)).get_content().strip() == "It is there."
    assert found.get_body(("html",)).get_content().strip() == "<p>Hi</p>"
    [attached] = found.iter_attachments()
    assert (attached.get_filename(), attached.get_content(), attached.get_content_type()) == (
        "räum.pdf",
        b"%PDF",
        "application/pdf",
    )
    assert parsed(written(text=None, html="<p>Hi</p>")).get_content_type() == "text/html"


EVIL = [
    "a\r\nBcc: x@y.example",
    "a\nb",
    "a\rb",
    "a\0b",
    "a\x1bb",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "a\ud800b",
    "=?utf-8?q?a=0D=0ABcc:_x@y.example?=",
    "=?utf-8?b?YQ0KQmNjOiB4?=",
    "=?utf-8?q?a=0D=0A=0D=0AAnother_body?=",
    "=?utf-8?q?a=00b?=",
]
"""What would be another header, or a body, for somebody; the last ones only once their words are decoded."""
FIELDS = ["sender", "to", "cc", "bcc", "subject", "header", "header name", "attachment", "attachment type", "reply_to"]


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("field", FIELDS)
def test_nothing_can_be_injected(field: str, evil: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "sender": {"sender": f"{evil} <a@b.example>"},
        "to": {"to": [f"{evil}@b.example"]},
        "cc": {"cc": [f"{evil} <a@b.example>"]},
        "bcc": {"bcc": evil},
        "subject": {"subject": evil},
        "header": {"headers": {"X-A": evil}},
        "header name": {"headers": {f"{evil} ": "x"}},
        "attachment": {"attachments": [Attachment(evil, b"")]},
        "attachment type": {"attachments": [Attachment("a", b"", f"text/plain; name={evil}")]},
        "reply_to": {"reply_to": f"{evil} <a@b.example>"},
    }
    with pytest.raises(BadOption):
        written(**fields[field])


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": []},
        {"to": 7},
        {"to": [f"a{n}@x.example" for n in range(1001)]},
        {"text": None},
        {"headers": {"To": "x@y.example"}},
        {"headers": {"Message-ID": "x"}},
        {"headers": {"Resent-Bcc": "x@y.example"}},
        {"headers": [("X-A", "b")]},
        {"headers": {"X-A": 7}},
        {"headers": {7: "x"}},
        {"subject": None},
        {"text": 5},
        {"text": None, "html": b"<p>Hi</p>"},
        {"text": "half of a pair: \ud800"},
        {"html": "half of a pair: \udfff"},
        {"reply_to": ["a@x.example"]},
        {"unsubscribe": 7},
        {"attachments": 7},
        {"attachments": ["a.pdf"]},
    ],
)
def test_what_makes_no_mail_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as caught:
        written(**wrong)
    assert "cannot be written" not in str(caught.value), "the reason must be one for people"


@pytest.mark.parametrize("field", ["subject", "text", "html", "header", "attachment"])
def test_half_of_a_pair_of_surrogates_is_called_so(field: str) -> None:
    half = "a\ud800b"
    given: dict[str, dict[str, Any]] = {
        "header": {"headers": {"X-A": half}},
        "attachment": {"attachments": [Attachment(half, b"")]},
    }

    with pytest.raises(BadOption, match="lone surrogates"):
        written(**given.get(field, {field: half}))


def test_what_python_itself_does_not_write_is_refused_with_its_reason() -> None:
    with pytest.raises(BadOption, match="this mail cannot be written: ValueError: There may be at most 1 sender"):
        written(headers={"Sender": "a@x.example", "sender": "b@x.example"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("smtp://mail.example", Transport("mail.example", 587, False, "require", None)),
        ("smtps://ann%40x@mail.example", Transport("mail.example", 465, True, "require", "ann@x")),
        ("smtp://localhost:2525?tls=none", Transport("localhost", 2525, False, "none", None)),
        ("smtp://[::1]:25/?tls=opportunistic", Transport("::1", 25, False, "opportunistic", None)),
        ("smtp://mail_relay.internal.:25", Transport("mail_relay.internal.", 25, False, "require", None)),
        ("smtp://Post.BÜCHER.example", Transport("post.xn--bcher-kva.example", 587, False, "require", None)),
    ],
)
def test_a_transport_is_read(given: str, expected: Transport) -> None:
    assert transport(given) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "mail.example",
        "http://mail.example",
        "smtp://",
        "smtp://a:b@mail.example",
        "smtp://m:99999",
        "smtp://m?tls=no",
        "smtp://m?x=1",
        "smtp://m/in",
        "smtp://m#x",
        "smtp://m:0",
        f"smtp://{'a' * 64}.example",
        f"smtp://{'a.' * 130}example",
        f"smtp://{'ä' * 60}.example",
        "smtp://mail..example",
        "smtp://.example",
        "smtp://ma il.example",
        "smtp://straße.example",
        "smtp://mail\u200d.example",
        "smtp://a%0D%0Ab@mail.example",
    ],
)
def test_what_is_no_transport_is_refused_without_its_password(wrong: str) -> None:
    with pytest.raises(BadOption) as caught:
        transport(wrong)
    assert ":b@" not in str(caught.value)


def test_recipients_are_kept_from_one_attempt_to_the_next() -> None:
    before = {"ann@x": {"state": "sent", "said": "250 ok"}, "gone@x": {"state": "sent"}}
    results = kept(["ann@x", "bob@x"], before)

    assert results == {"ann@x": Recipient("sent", "250 ok"), "bob@x": Recipient()}
    assert waiting(results) == ["bob@x"]
    assert kept(["ann@x"], "nonsense") == {"ann@x": Recipient()}


def test_a_mail_is_done_when_everybody_has_it_and_dead_when_somebody_never_will() -> None:
    sent, refused = Recipient("sent", "250 ok"), Recipient("refused", "550 5.1.1 no", suppress=True)
    greylisted, late = Recipient("waiting", "450 later", wait=300.0), Recipient("waiting", "451 busy")
    lost = Recipient("waiting", "no answer", unknown=True)

    assert outcome({"a": sent, "b": sent}).kind is Kind.OK
    dead = outcome({"a": sent, "b": refused})
    assert (dead.kind, dead.reason) == (Kind.PERMANENT, "1 of 2 recipients were refused: b: 550 5.1.1 no")
    assert dead.kept["b"] == {"state": "refused", "said": "550 5.1.1 no", "suppress": True}
    again = outcome({"a": greylisted, "b": refused})
    assert (again.kind, again.retry_after) == (Kind.TRANSIENT, 300.0)
    assert outcome({"a": greylisted, "b": late}).retry_after is None
    assert outcome({"a": late, "b": lost}).kind is Kind.UNKNOWN
    assert outcome({"a": late}).reason == "a: 451 busy"
    assert outcome({str(n): refused for n in range(5)}).reason.endswith("; and 2 more")
