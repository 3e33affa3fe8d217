"""`current()`: what a running handler can know about itself, and say."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from durably.client.definition import Call
from durably.client.engine import Engine
from durably.client.info import Progress, readable
from durably.core.codec import encode
from durably.core.task import Draft, Task, clean
from durably.errors import BadOption, DurablyError, SessionLost
from durably.stores.operations.commit import set_progress


class Known(Protocol):
    """What runs here. Its context is made for whoever asks for it, and most do not."""

    @property
    def context(self) -> Context: ...


_current: ContextVar[Known] = ContextVar("durably_current")


def current() -> Context:
    """The task that is running here; only a handler has one."""
    try:
        return _current.get().context
    except LookupError:
        raise DurablyError("current() works only inside a running task") from None


class Context:
    """One attempt of one task, from the inside."""

    __slots__ = (
        "_cancelled",
        "_engine",
        "_leaving",
        "_lend",
        "_noted",
        "_spawned",
        "_task",
        "cancel_reason",
        "deadline",
        "lent",
        "pending_progress",
    )

    def __init__(
        self,
        engine: Engine,
        task: Task,
        noted: Callable[[Context], None],
        lend: Callable[[Context], None],
        deadline: float | None = None,
    ) -> None:
        self._engine = engine
        self._task = task
        self._noted = noted
        self._lend = lend
        self._leaving: Any = None
        self._cancelled = False
        self._spawned: list[Draft] = []
        self.deadline = deadline
        """When the attempt will be timed out, on the monotonic clock; None without a timeout."""
        self.lent = False
        """Whether another task has its slot."""
        self.pending_progress: str | None = None
        self.cancel_reason: str | None = None

    @property
    def id(self) -> str:
        """The task's id: the same at every attempt, so it can serve as an idempotency key."""
        return self._task.id

    @property
    def name(self) -> str:
        return self._task.name

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def key(self) -> str | None:
        return self._task.key

    @property
    def attempt(self) -> int:
        """The lifetime number of this attempt, from 1."""
        return self._task.attempt

    @property
    def spent(self) -> int:
        """The number of this attempt in its cycle: a replay begins anew."""
        return self._task.spent

    @property
    def crashes(self) -> int:
        """How many attempts of this cycle ended with the death of their worker."""
        return self._task.crashes

    @property
    def token(self) -> int:
        """The fence token: it rises with every claim, so a system that remembers the highest can refuse a zombie."""
        return self._task.token

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for the task to be cancelled. Threads should look here now and then."""
        return self._cancelled

    @property
    def details(self) -> Any:
        """What an earlier attempt saved, or None."""
        return readable(self._task.details, self._engine.codec)

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Say how far it has come. It is written soon, in the background; the last word counts."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadOption(f"progress: {fraction!r} must be from 0 to 1")
        self.pending_progress = msgspec.json.encode(Progress(fraction, clean(message, 500))).decode()
        self._noted(self)

    def save(self, details: Any) -> None:
        """Keep details for the next attempt; they are durable when this returns. For handlers in threads."""
        self._kept(self._engine.store.run(self._saving(details)), details)

    async def asave(self, details: Any) -> None:
        """Keep details for the next attempt; they are durable when this returns."""
        self._kept(await self._engine.store.arun(self._saving(details)), details)

    def leave(self, details: Any) -> None:
        """Keep details for the next attempt: they are written with what becomes of this one, unless it succeeds.

        What is left last counts. Unlike `save` it costs nothing now, and a crash forgets it.
        """
        self._leaving = details

    @property
    def left(self) -> bytes | None:
        """What `leave` was called with, as it is stored."""
        return None if self._leaving is None else self.packed(self._leaving)

    def lend(self) -> None:
        """While this only waits for somebody slow, let another task begin in its place. For coroutines."""
        self._lend(self)

    def then(self, call: Call[Any]) -> str:
        """Enqueue a successor that is accepted with this task's completion, or not at all; its id."""
        draft = self._engine.respawn(call.draft(), self._task.id, self._task.attempt, len(self._spawned))
        self._spawned.append(draft)
        return draft.id

    @property
    def successors(self) -> tuple[Draft, ...]:
        """What `then` was called with."""
        return tuple(self._spawned)

    def ask_to_stop(self, reason: str) -> None:
        """Raise the cancel flag."""
        self.cancel_reason = reason
        self._cancelled = True

    def _saving(self, details: Any) -> Any:
        data = self.packed(details)
        progress, self.pending_progress = self.pending_progress, None
        return set_progress(self._task.id, self._task.token, progress, data)

    def _kept(self, kept: bool, details: Any) -> None:
        if not kept:
            raise SessionLost(f"task {self._task.id} belongs to another worker by now: its details were not saved")
        self._task = msgspec.structs.replace(self._task, details=self.packed(details))

    def packed(self, details: Any) -> bytes:
        """Details as they are stored."""
        return self._engine.payload(self._task.name, encode(details, f"the details of {self._task.name!r}"))


enter = _current.set
"""Make it the current one in this contextvars context."""
