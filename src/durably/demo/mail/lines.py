"""The lines of the ledger: what the shop accepted, and what the SMTP servers did with it."""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to one recipient of a mail, to a worker, or to a server."""

    what: str
    """accepted, again (a key was used before), took, refused, later, full, killed, locked or unlocked"""
    to: str = ""
    mail: str = ""
    key: str = ""
    server: str = ""
    pid: int = 0
    """Who sent it."""
    subject: str = ""
    text: str = ""
    """What the plain part says."""
    bytes: str = ""
    """A hash over everything that came after DATA."""
    said: str = ""
    """What the server answered."""

    @property
    def delivery(self) -> tuple[str, str]:
        """Which mail to whom."""
        return self.mail, self.to
