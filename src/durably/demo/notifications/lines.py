"""The lines of the ledger: what the shop accepted, and what the services and the SMTP server saw."""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a notification on its way over one channel; or to a worker.

    What an SMTP server writes down is read as one of these, too.
    """

    what: str
    """accepted, again (a key was used before), malformed, took, gone or killed"""
    notification: str = ""
    kind: str = ""
    key: str = ""
    to: str = ""
    """For the shop a person, for a service an address."""
    channel: str = ""
    note: str = ""
    """The id that a service is told."""
    mail: str = ""
    pid: int = 0
    """Who sent it."""
    subject: str = ""
    text: str = ""

    @property
    def route(self) -> tuple[str, str, str]:
        """Which notification, to whom, over which channel."""
        return self.notification, self.to, self.channel

    @property
    def thing(self) -> str:
        """What came: a mail, or what a service was told."""
        return self.mail or self.note
