"""The lines of the ledger: what was published, and what the receivers saw."""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message was published to a peer, or arrived there, or its sender was killed."""

    what: str
    """published, took, refused, unsigned or killed"""
    peer: str
    message: str = ""
    number: int = 0
    """Messages are numbered as they are published, from 1."""
    pid: int = 0
    """Who sent it."""

    @property
    def delivery(self) -> tuple[str, str]:
        """Which message to whom."""
        return self.message, self.peer


def arrivals(lines: list[Line]) -> list[Line]:
    """What reached a peer and was signed as it should be."""
    return [line for line in lines if line.what in ("took", "refused")]
