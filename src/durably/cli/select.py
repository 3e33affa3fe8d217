"""Choosing tasks: ids that people shorten."""

from __future__ import annotations

from collections.abc import Sequence

from durably.app import Durably


def full_ids(app: Durably, starts: Sequence[str]) -> list[str]:
    """The ids that these beginnings stand for."""
    return [app.tasks.find(start).id for start in starts]
