"""What an SMTP reply means: for one recipient, or for the whole transport. Pure.

The first digit decides, the enhanced code refines.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from durably.core.delivery import Kind
from durably.core.task import clean

GREYLISTED = 300.0
"""Seconds until another try with a server that wants to see whether we come back."""
GO_ON = 354
"""The server wants the source."""
CLOSING = 421
"""The server closes the connection."""
ABOUT_THE_SENDER = ("5.1.7", "5.1.8")
"""What is wrong is the address of the sender, whoever is named."""
SHOWN = 300
ENHANCED = re.compile(r"^([245])\.(\d{1,3})\.(\d{1,3})(?:\s|$)")


class Stage(StrEnum):
    """How far a mail came."""

    GREETING = "greeting"
    HELLO = "hello"
    TLS = "tls"
    AUTH = "auth"
    RESET = "reset"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"
    """After the last line: what was sent before may have been taken."""


class Reply(msgspec.Struct, frozen=True):
    """What a server said at a stage."""

    stage: Stage
    code: int
    text: str = ""

    @property
    def enhanced(self) -> str:
        """Its enhanced status code, such as 5.1.1; empty if it gave none, or one that does not fit."""
        found = ENHANCED.match(self.text)
        return found[0].strip() if found and int(found[1]) == self.code // 100 else ""

    def __str__(self) -> str:
        return clean(f"{self.code} {' '.join(self.text.split())}".strip(), SHOWN)


class Meaning(msgspec.Struct, frozen=True):
    """What a reply means: for the recipients whom it concerns, or for the transport."""

    kind: Kind
    wait: float | None = None
    """Seconds until it makes sense to ask again."""
    suppresses: bool = False
    """The address will never work."""
    full: bool = False
    """This transaction takes no more recipients; the others can be sent at once in another one."""


OK = Meaning(Kind.OK)
LATER = Meaning(Kind.TRANSIENT)
NEVER = Meaning(Kind.PERMANENT)
PERHAPS = Meaning(Kind.UNKNOWN)
"""It makes no sense, and the source had been sent."""


def meaning(reply: Reply) -> Meaning:
    """What a reply means."""
    code, enhanced = reply.code, reply.enhanced
    if reply.stage is Stage.AUTH:
        return _of_auth(code)
    if reply.stage is Stage.RCPT:
        return _of_recipient(code, enhanced)
    if reply.stage is Stage.MAIL and code == 530:
        return Meaning(Kind.MISCONFIGURED)
    if reply.stage is Stage.DOT and 300 <= code < 400:
        return PERHAPS
    if code == GO_ON if reply.stage is Stage.DATA else 200 <= code < 300:
        return OK
    opening = reply.stage in (Stage.GREETING, Stage.HELLO, Stage.TLS)
    return NEVER if 500 <= code < 600 and not opening else LATER


def _of_auth(code: int) -> Meaning:
    if 200 <= code < 300:
        return OK
    if code == 454:
        return Meaning(Kind.THROTTLED)
    return Meaning(Kind.MISCONFIGURED) if 500 <= code < 600 else LATER


def _of_recipient(code: int, enhanced: str) -> Meaning:
    if code in (250, 251, 252):
        return OK
    if code == 530:
        return Meaning(Kind.MISCONFIGURED)
    if code == 452 and enhanced in ("", "4.5.3"):
        return Meaning(Kind.TRANSIENT, full=True)
    if code in (450, 451):
        return Meaning(Kind.TRANSIENT, wait=GREYLISTED)
    if 500 <= code < 600:
        if enhanced in ABOUT_THE_SENDER:
            return NEVER
        never_works = enhanced.startswith("5.1.") or (not enhanced and code in (550, 553))
        return Meaning(Kind.PERMANENT, suppresses=never_works)
    return LATER
