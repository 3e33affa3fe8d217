"""A transition as data: what a task was, what it becomes, and what follows from it."""

from __future__ import annotations

import msgspec

from durably.core.task import ENDS, Attempt, Draft, State, Task


class Change(msgspec.Struct, frozen=True, gc=False):
    """A decided transition. A store applies it whole if the task's version is still `task.version`, else not at all.

    It carries the difference only. Waits (`due_in`, `keep_for`) are relative: the store's clock makes them moments.
    """

    task: Task
    state: State
    spent: int
    crashes: int
    alone: bool = False
    due_in: int = 0
    rejoin: bool = False
    pause: bool = False
    cancel: str | None = None
    reason: str | None = None
    result: bytes | None = None
    attempt: Attempt | None = None
    spawned: tuple[Draft, ...] = ()
    keep_for: int | None = None
    started_ago: int = 0
    details: bytes | None = None
    """What the attempt leaves behind for the next one; None leaves what was there."""

    @property
    def ends(self) -> bool:
        """Whether the task leaves the hot table."""
        return self.state is State.DONE or self.state in ENDS


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The change was committed."""

    change: Change


class Stale(msgspec.Struct, frozen=True, gc=False):
    """The task was no longer what the change was decided on; nothing was written."""

    change: Change
    current: Task | None


Verdict = Applied | Stale
