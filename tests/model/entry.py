"""One accepted task, as the model believes it to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ENDS = ("done", "dead", "cancelled")


class Error(NamedTuple):
    """An attempt that went wrong."""

    attempt: int
    outcome: str
    message: str


@dataclass
class Entry:
    """What is known of a task. `revision` counts every change, so a look at it can be told from a later one."""

    id: str
    name: str
    queue: str
    payload: bytes
    priority: int
    created_at: int
    state: str
    ready_at: int
    place: int
    key: str | None = None
    policy: str | None = None
    gate: str | None = None
    once: bool = False
    expires_at: int | None = None
    scope: str | None = None
    hook: bool = False
    keep: int | None = None
    attempt: int = 0
    spent: int = 0
    crashes: int = 0
    alone: bool = False
    token: int = 0
    session: str | None = None
    cancel: str | None = None
    reason: str | None = None
    result: bytes | None = None
    prune_at: int | None = None
    errors: list[Error] = field(default_factory=list)
    revision: int = 0
    missed_at: int | None = None
    """When a claim that had room for it first left it behind."""

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def line(self) -> tuple[str, str] | None:
        """The ordering key that it belongs to."""
        return None if self.key is None else (self.queue, self.key)

    @property
    def place_to_wait(self) -> str:
        """Where it waits once its time has come."""
        return "ready" if self.key is None and self.gate is None else "blocked"
