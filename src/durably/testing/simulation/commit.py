"""One commit as the rules see it: who made it, and the store before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from durably.stores.statement import Operation
from durably.testing.simulation.process import Process
from durably.testing.simulation.snapshot import Lease, Snapshot

Complaints = Iterator[str]


class Commit(msgspec.Struct, frozen=True):
    """One commit: who made it, and the store before and after."""

    process: Process
    op: Operation[Any]
    answer: Any
    now: int
    before: Snapshot
    after: Snapshot

    @property
    def leased(self) -> list[Lease]:
        """The leases that are new."""
        return [lease for task, lease in self.after.leases.items() if self.before.leases.get(task) != lease]
