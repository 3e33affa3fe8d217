"""What the rest of the library needs of a store."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from durably.core.task import Draft
from durably.stores.start import Started
from durably.stores.statement import Operation, Queries

T = TypeVar("T")

BELIEVED = 0.005
"""For so many seconds after a look that saw nobody asleep, whoever enqueues may believe that it is still so."""
UNHEARD = 2 * BELIEVED
"""So many seconds after it fell asleep, a worker looks for tasks once more. By then whoever believed that it was awake
has committed, or looks again afterwards."""


class Finding(msgspec.Struct, frozen=True):
    """One line of `durably doctor`: what was looked at, whether it is well, and what to do if not."""

    check: str
    level: str
    """ok, warning or error"""
    detail: str
    advice: str = ""


class Wakeups(Protocol):
    """Hints that there may be something to claim. They can be lost; the poll behind them cannot."""

    async def wait(self, seconds: float) -> None:
        """Return after so many seconds, or earlier when something may have arrived."""
        ...

    def nudge(self) -> None:
        """Make the current or the next wait return at once."""
        ...

    async def close(self) -> None: ...


class Caller(Protocol):
    """A caller's own connection, inside its own transaction."""

    def run(self, op: Operation[T]) -> T: ...

    async def arun(self, op: Operation[T]) -> T: ...


class Store(Protocol):
    """A database that persists what was decided, and decides nothing."""

    queries: Queries
    sleeps: bool
    """Whether sessions announce that they sleep, so that an enqueue knows whether to notify."""
    threaded: bool
    """Whether it works in a thread of this process, which must get its turns beside the tasks."""

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        ...

    def run(self, op: Operation[T]) -> T:
        """Run an operation in a transaction of its own; collisions are repeated."""
        ...

    async def arun(self, op: Operation[T]) -> T:
        """The same without blocking the event loop."""
        ...

    def put(self, draft: Draft) -> bool:
        """Accept a plain draft that nobody has sent before, if there is a way that is shorter than `run`.

        False if there is none, or if it failed: it can then be accepted with `run`, even if it did land. A connection
        that broke is an error: then it must be accepted as one that was sent before. Nothing of it may take effect
        later.
        """
        ...

    def start(self, op: Operation[T]) -> Started[T]:
        """Begin what `run` does, and do not wait for it."""
        ...

    def private(self) -> Store:
        """A store on the same database with a connection of its own, for a thread that must not wait for others."""
        ...

    def caller(self, connection: Any) -> Caller:
        """The caller's connection as something that can run operations, once it is shown to be the right one."""
        ...

    def wakeups(self) -> Wakeups: ...

    def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied."""
        ...

    def pending(self) -> list[str]:
        """The migrations that are still to be applied."""
        ...

    def examine(self) -> list[Finding]:
        """What `durably doctor` asks of this kind of database."""
        ...

    def close(self) -> None:
        """Close what belongs to threads."""
        ...

    async def aclose(self) -> None:
        """Close what belongs to the running event loop; do so before the loop ends."""
        ...
