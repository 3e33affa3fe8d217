"""What an application hears about letters that are none, and about people who have odd addresses."""

from __future__ import annotations

import io
from email.message import EmailMessage
from typing import Any

import pytest

from durably import BadOption, Durably
from durably.mail import Attachment
from durably.mail.local import Console
from durably.mail.sifted import Sifted

ANN = "ann@x.example"


@pytest.fixture
def mailing(app: Durably) -> Durably:
    app.mail.sender = "Shop <shop@here.example>"
    app.deliveries.channels["console"] = Sifted(Console(io.StringIO()), app.mail.suppressions)
    app.mail.add_transport("main", "console:")
    return app


@pytest.mark.parametrize("wrong", [5, None, b"order-7", ["order-7"]])
def test_what_is_no_id_of_a_mail_is_said(mailing: Durably, wrong: Any) -> None:
    for find in (mailing.mail.get, mailing.mail.source, mailing.mail.resend):
        with pytest.raises(BadOption, match="must be the id of a mail, or its key"):
            find(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": "=?utf-8?q?a=0D=0ABcc:_eve@evil.example?="},
        {"subject": "a\u2028b"},
        {"text": 5},
        {"headers": ["X-A"]},
        {"attachments": [Attachment("a", "x")]},  # type: ignore[arg-type]
        {"to": "ann@straße.example"},
        {"to": 5},
    ],
)
def test_a_letter_that_is_none_is_not_accepted(mailing: Durably, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        mailing.mail.send(**{"to": ANN, "subject": "Hello", "text": "x", **wrong})

    assert mailing.mail.list() == []


def test_a_message_that_misleads_is_not_accepted(mailing: Durably) -> None:
    message = EmailMessage()
    message["From"], message["To"] = "shop@here.example", ANN
    message["Subject"] = "=?utf-8?q?a=0D=0ABcc:_eve@evil.example?="
    message.set_content("x")

    with pytest.raises(BadOption, match=r"Subject: .* must not have line breaks"):
        mailing.mail.send(message)
    assert mailing.mail.list() == []


@pytest.mark.parametrize(
    ("listed", "to"),
    [
        ('"a@b"@x.example', '"A@B"@x.example'),
        ('"ann"@x.example', ANN),
        (ANN, '"ann"@x.example'),
        ("a..b@x.example", '"a..b"@x.example'),
        ("ann@bücher.example", "ann@xn--bcher-kva.example"),
    ],
)
def test_an_address_on_the_list_gets_no_mail_however_it_is_written(mailing: Durably, listed: str, to: str) -> None:
    mailing.mail.suppressions.add(listed, note="asked")
    sent = mailing.mail.send(to=to, subject="Hello", text="x")
    mailing.drain()

    found = mailing.mail.get(sent.id)
    assert (found.state, found.recipients[0].state) == ("cancelled", "suppressed")
    assert found.reason is not None
    assert found.reason.startswith(f"{found.recipients[0].address}: suppressed since ")
    assert mailing.mail.suppressions.remove(to)
