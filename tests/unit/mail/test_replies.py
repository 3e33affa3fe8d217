"""What SMTP replies mean: every row of the rules."""

from __future__ import annotations

import pytest

from durably.core.delivery import Kind
from durably.mail.replies import GREYLISTED, Meaning, Reply, Stage, meaning

OK, LATER, NEVER = Meaning(Kind.OK), Meaning(Kind.TRANSIENT), Meaning(Kind.PERMANENT)
PERHAPS = Meaning(Kind.UNKNOWN)
OURS = Meaning(Kind.MISCONFIGURED)


@pytest.mark.parametrize(
    ("stage", "code", "text", "expected"),
    [
        (Stage.GREETING, 220, "ready", OK),
        (Stage.GREETING, 421, "busy", LATER),
        (Stage.GREETING, 554, "no service", LATER),
        (Stage.HELLO, 502, "what?", LATER),
        (Stage.TLS, 454, "not now", LATER),
        (Stage.AUTH, 235, "welcome", OK),
        (Stage.AUTH, 535, "5.7.8 wrong", OURS),
        (Stage.AUTH, 530, "5.7.0 log in", OURS),
        (Stage.AUTH, 454, "4.7.0 later", Meaning(Kind.THROTTLED)),
        (Stage.AUTH, 421, "bye", LATER),
        (Stage.MAIL, 250, "2.1.0 fine", OK),
        (Stage.MAIL, 354, "go on", LATER),
        (Stage.MAIL, 451, "4.3.0 later", LATER),
        (Stage.MAIL, 550, "5.7.1 no", NEVER),
        (Stage.MAIL, 530, "5.7.0 log in first", OURS),
        (Stage.RCPT, 250, "fine", OK),
        (Stage.RCPT, 251, "forwarded", OK),
        (Stage.RCPT, 252, "perhaps", OK),
        (Stage.RCPT, 450, "4.2.0 greylisted", Meaning(Kind.TRANSIENT, wait=GREYLISTED)),
        (Stage.RCPT, 451, "try again", Meaning(Kind.TRANSIENT, wait=GREYLISTED)),
        (Stage.RCPT, 452, "4.5.3 too many", Meaning(Kind.TRANSIENT, full=True)),
        (Stage.RCPT, 452, "too many", Meaning(Kind.TRANSIENT, full=True)),
        (Stage.RCPT, 452, "4.2.2 mailbox full", LATER),
        (Stage.RCPT, 550, "5.1.1 unknown", Meaning(Kind.PERMANENT, suppresses=True)),
        (Stage.RCPT, 550, "unknown", Meaning(Kind.PERMANENT, suppresses=True)),
        (Stage.RCPT, 553, "5.1.3 bad address", Meaning(Kind.PERMANENT, suppresses=True)),
        (Stage.RCPT, 556, "5.1.10 null MX", Meaning(Kind.PERMANENT, suppresses=True)),
        (Stage.RCPT, 550, "5.1.7 bad sender", NEVER),
        (Stage.RCPT, 550, "5.1.8 the domain of the sender is not known", NEVER),
        (Stage.RCPT, 550, "5.7.1 policy", NEVER),
        (Stage.RCPT, 552, "5.2.2 full", NEVER),
        (Stage.RCPT, 530, "5.7.0 log in", OURS),
        (Stage.RCPT, 421, "4.3.2 closing", LATER),
        (Stage.RCPT, 999, "noise", LATER),
        (Stage.DATA, 354, "go on", OK),
        (Stage.DATA, 250, "taken", LATER),
        (Stage.DATA, 334, "what?", LATER),
        (Stage.DATA, 451, "later", LATER),
        (Stage.DATA, 554, "5.5.1 nobody", NEVER),
        (Stage.DOT, 250, "2.0.0 queued", OK),
        (Stage.DOT, 354, "go on", PERHAPS),
        (Stage.DOT, 451, "4.3.0 later", LATER),
        (Stage.DOT, 554, "5.7.1 spam", NEVER),
    ],
)
def test_every_reply_has_a_meaning(stage: Stage, code: int, text: str, expected: Meaning) -> None:
    assert meaning(Reply(stage, code, text)) == expected


@pytest.mark.parametrize(
    ("code", "text", "enhanced"),
    [(550, "5.1.1 no", "5.1.1"), (550, "5.1.1", "5.1.1"), (550, "4.1.1 no", ""), (550, "5.1.1no", ""), (250, "", "")],
)
def test_an_enhanced_code_counts_if_it_fits(code: int, text: str, enhanced: str) -> None:
    assert Reply(Stage.RCPT, code, text).enhanced == enhanced


def test_a_reply_is_told_on_one_line_and_cut() -> None:
    assert str(Reply(Stage.RCPT, 550, "5.1.1 no\nsuch   user\0")) == "550 5.1.1 no such user\ufffd"
    assert len(str(Reply(Stage.RCPT, 550, "x" * 10_000))) < 400
