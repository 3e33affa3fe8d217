"""The task: what was accepted, and how far it has come."""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.retry import Retry
from durably.errors import BadOption


class State(StrEnum):
    """Where a task is. The last three are ends: a task that reached one changes no more, except by a replay."""

    DELAYED = "delayed"
    READY = "ready"
    BLOCKED = "blocked"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


ENDS = frozenset({State.DONE, State.DEAD, State.CANCELLED})
DEFAULT_PRIORITY = 5


class Policy(StrEnum):
    """What happens to the tasks behind a failing head of an ordering key."""

    BLOCK = "block"
    OVERTAKE = "overtake"
    PAUSE = "pause"


class Scope(StrEnum):
    """How long a unique key is taken."""

    WAITING = "waiting"
    LIVE = "live"
    PERIOD = "period"
    FOREVER = "forever"


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What travels with the task because someone other than its declaring code must know it."""

    retry: Retry | None = None
    timeout: float | None = None
    retention: float | None = None
    crash_cap: int = 3
    on_dead: str | None = None
    on_dead_queue: str | None = None


NO_OPTIONS = Options()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Options).decode


def pack_options(options: Options) -> bytes | None:
    """The options as bytes; nothing at all when they are the defaults."""
    return None if options == NO_OPTIONS else _encode(options)


def unpack_options(packed: bytes | None) -> Options:
    """The options that travel with a task. Unreadable ones are an error of that task, see `lifecycle.spoil`."""
    return NO_OPTIONS if packed is None else _decode(packed)


class Task(msgspec.Struct, frozen=True, gc=False):
    """One row, live or ended. Times are microseconds since 1970 on the store's clock.

    Four numbers count different things: `version` is the compare-and-set, `attempt` the lifetime number that people
    see, `spent` the budget of this cycle, and `crashes` how often a process died while it ran.
    """

    id: str
    seq: int
    version: int
    name: str
    queue: str
    state: str
    priority: int
    ready_at: int
    key: str | None
    policy: str | None
    gate: str | None
    payload: bytes
    options: bytes | None
    tags: str | None
    once: bool
    alone: bool
    attempt: int
    spent: int
    crashes: int
    token: int
    session: str | None
    created_at: int
    started_at: int | None
    expires_at: int | None
    cancel: str | None
    unique_scope: str | None
    unique_key: str | None
    progress: str | None
    details: bytes | None
    place: bytes | None = None
    """Where the store put the row at its claim, if that helps to find it again; it may have moved since."""
    finished_at: int | None = None
    reason: str | None = None
    result: bytes | None = None
    limited: bool = False
    """Whether this lease took a permit of its queue's limit; only the claim knows."""

    def __eq__(self, other: object) -> bool:
        """Whether all is the same but the place."""
        return isinstance(other, Task) and self._without_place() == other._without_place()

    def __ne__(self, other: object) -> bool:
        """The opposite, which a struct does not conclude by itself."""
        return not self == other

    def _without_place(self) -> tuple[Any, ...]:
        fields = msgspec.structs.astuple(self)
        return fields[:_PLACE] + fields[_PLACE + 1 :]

    __hash__ = None  # type: ignore[assignment]

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDS

    @property
    def namespace(self) -> str:
        """The namespace that its queue belongs to."""
        return split_queue(self.queue)[0]


_PLACE = Task.__struct_fields__.index("place")


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A task that is about to be accepted. Waits are relative, so that the store's clock decides."""

    id: str
    name: str
    queue: str
    payload: bytes
    priority: int = DEFAULT_PRIORITY
    due_in: int = 0
    at: int | None = None
    key: str | None = None
    policy: str | None = None
    gate: str | None = None
    options: bytes | None = None
    tags: str | None = None
    once: bool = False
    expires_in: int | None = None
    unique_scope: str | None = None
    unique_key: str | None = None
    fingerprint: str | None = None
    unique_for: int | None = None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt did not succeed, in text that every store can keep."""

    kind: str
    message: str
    trace: str = ""
    permanent: bool = False
    retry_after: float = 0.0
    certain: bool = True
    """Of a permanent one: whether trying again is known to be useless, or nobody wants to any more."""

    @classmethod
    def of(
        cls, error: BaseException, *, permanent: bool = False, retry_after: float = 0.0, certain: bool = True
    ) -> Failure:
        """The failure that an exception stands for. It never raises, whatever the exception does."""
        kind = type(error).__qualname__
        module = type(error).__module__
        full = kind if module == "builtins" else f"{module}.{kind}"
        try:
            message = str(error)
        except Exception:
            message = "(the exception could not be turned into text)"
        try:
            trace = "".join(traceback.format_exception(error))
        except Exception:
            trace = ""
        return cls(clean(full, 200), clean(message, 2_000), clean(trace, 20_000), permanent, retry_after, certain)


def clean(text: str, limit: int) -> str:
    """Text that every database takes: no NUL, no lone surrogates, the middle cut out when it is too long."""
    if not isinstance(text, str):
        raise BadOption(f"{brief(text)} must be text")
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt that did not end the task well; a first-try success leaves none."""

    attempt: int
    outcome: str
    failure: Failure
    session: str | None
    token: int
    started_ago: int = 0


class AttemptRow(msgspec.Struct, frozen=True, gc=False):
    """An attempt as the store kept it."""

    task: str
    attempt: int
    outcome: str
    kind: str
    message: str
    trace: str
    session: str | None
    token: int
    started_at: int | None
    finished_at: int


DEFAULT_NAMESPACE = "default"


def full_queue(namespace: str, queue: str) -> str:
    """A queue's name across namespaces: plain in the default one, else `namespace/queue`."""
    return queue if namespace == DEFAULT_NAMESPACE else f"{namespace}/{queue}"


def split_queue(name: str) -> tuple[str, str]:
    """The namespace and the queue of a full name."""
    namespace, slash, queue = name.partition("/")
    return (namespace, queue) if slash else (DEFAULT_NAMESPACE, name)


def restore(row: tuple[Any, ...]) -> Task:
    """A task from a row in the order of its fields."""
    return Task(*row)
