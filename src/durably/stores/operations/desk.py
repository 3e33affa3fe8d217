"""One claim at work: whose it is, where it may look, and what it may still take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durably.core.task import Task
from durably.stores.operations.gatekeeper import Gatekeeper
from durably.stores.operations.keys import Behind

PRIORITIES = range(9, -1, -1)

Line = tuple[str, str]
"""A queue, and a limit group that has unkeyed tasks waiting in it."""


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A queue that may be claimed from: what was created after the cutoff stays."""

    queue: str
    cutoff: int
    limited: bool


class Desk(msgspec.Struct, frozen=True, gc=False):
    """One claim: whose it is, where it may look, and which gates it holds."""

    session: str
    lanes: dict[str, Lane]
    groups: list[tuple[str, str, bool]]
    keeper: Gatekeeper
    alone: bool
    lonely: bool
    """Whether a task on its last crash life waits, which a claim takes only with `alone`, and then nothing else."""
    now: int
    ahead: int = 1
    """How many tasks of a key are taken at once."""
    crowded: bool = False
    """Whether there may be more limit groups than it looks at."""
    behind: Behind = msgspec.field(default_factory=dict)
    """The followers of the heads that were taken."""

    def queue_left(self, lane: Lane, room: int) -> int:
        """How many more tasks may come from this queue."""
        return self.keeper.left(f"q:{lane.queue}", room) if lane.limited else room

    def lines(self) -> list[Line]:
        """Where unkeyed tasks of limit groups wait."""
        return [(queue, gate) for queue, gate, is_line in self.groups if is_line]

    def ranges(self, lanes: Sequence[Lane]) -> list[tuple[Lane, int]]:
        """Where to look, in that order: every priority of every lane."""
        return [(lane, priority) for priority in PRIORITIES for lane in lanes]

    def admitted(self, task: Task) -> Task:
        """The task, with the permits that it needs taken; that of a line is noted with its lease."""
        if task.gate is not None and task.key is None:
            self.keeper.use(f"g:{task.gate}")
        elif task.gate is not None:
            self.keeper.take(f"g:{task.gate}", task.id, task.token)
        if self.lanes[task.queue].limited:
            self.keeper.take(f"q:{task.queue}", task.id, task.token)
            return msgspec.structs.replace(task, limited=True)
        return task
