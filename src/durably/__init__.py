"""Durably: everything that must eventually happen, happens."""

from durably.app import Durably
from durably.client.bulk import Bulk
from durably.client.definition import Call, DeadLetter, Definition
from durably.client.handle import Cancellation, Handle
from durably.client.info import AttemptInfo, Progress, TaskInfo
from durably.core.codec import Codec
from durably.core.explain import Why
from durably.core.options import Unique
from durably.core.retry import Retry
from durably.core.task import State
from durably.errors import (
    BadOption,
    BadPayload,
    BadSignature,
    Conflict,
    Discard,
    DurablyError,
    MissingPackage,
    NotAllowed,
    NoTransaction,
    Permanent,
    Refused,
    ResultExpired,
    ResultTimeout,
    RetryAfter,
    RetryTransaction,
    SchemaOutdated,
    SessionLost,
    Snooze,
    StoreRejected,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    UnknownTask,
    Unresolved,
    WrongConnection,
)
from durably.observe.events import Event
from durably.worker.context import Context, current
from durably.worker.worker import Worker

__all__ = [
    "AttemptInfo",
    "BadOption",
    "BadPayload",
    "BadSignature",
    "Bulk",
    "Call",
    "Cancellation",
    "Codec",
    "Conflict",
    "Context",
    "DeadLetter",
    "Definition",
    "Discard",
    "Durably",
    "DurablyError",
    "Event",
    "Handle",
    "MissingPackage",
    "NoTransaction",
    "NotAllowed",
    "Permanent",
    "Progress",
    "Refused",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "RetryTransaction",
    "SchemaOutdated",
    "SessionLost",
    "Snooze",
    "State",
    "StoreRejected",
    "StoreUnavailable",
    "TaskCancelled",
    "TaskFailed",
    "TaskInfo",
    "Unique",
    "UnknownTask",
    "Unresolved",
    "Why",
    "Worker",
    "WrongConnection",
    "current",
]
