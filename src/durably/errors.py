"""Every exception that Durably raises, and the ones that a handler raises to say what should happen next."""

from __future__ import annotations


class DurablyError(Exception):
    """The root of everything that Durably raises on its own account."""


class TaskFailed(DurablyError):
    """The task is a dead letter: its handler gave up, or every attempt was used."""


class TaskCancelled(DurablyError):
    """The task was cancelled, expired, skipped or discarded; the message says which, and why."""


class ResultTimeout(DurablyError, TimeoutError):
    """The task had not ended within the time that the caller was willing to wait."""


class ResultExpired(DurablyError):
    """The task is not known: its retention has passed, or it never existed in this store."""


class Conflict(DurablyError):
    """The unique key is taken by a task with another name or other arguments."""


class NoTransaction(DurablyError):
    """`within=` was given a connection on which no transaction is open."""


class WrongConnection(DurablyError):
    """`within=` was given a connection to another database, or one of a kind that is not supported."""


class RetryTransaction(DurablyError):
    """Two transactions collided on one unique key: roll yours back and run it again."""


class StoreUnavailable(DurablyError):
    """The database could not be reached, is full, or stayed locked.

    `fleeting` says that the connection broke: trying again may help, and what was sent may have landed.
    """

    def __init__(self, message: str, *, fleeting: bool = False) -> None:
        super().__init__(message)
        self.fleeting = fleeting


class StoreRejected(DurablyError):
    """The database refused a value; nothing of that batch was written."""


class SchemaOutdated(StoreUnavailable):
    """The database has no Durably schema, or not the version that this library needs."""


class BadPayload(DurablyError, ValueError):
    """The arguments or the result cannot be stored: wrong type, not representable, or too large."""


class BadOption(DurablyError, ValueError):
    """An option has a value that makes no sense; the message says which values do."""


class UnknownTask(DurablyError, LookupError):
    """There is no task, queue, key or declaration of that name."""


class NotAllowed(DurablyError):
    """The command does not fit the state that the task, key or queue is in."""


class Refused(DurablyError):
    """The address guard does not let this URL, host or address through. Trying again cannot help."""


class Unresolved(DurablyError):
    """The name has no address at the moment. Trying again may help."""


class BadSignature(DurablyError):
    """Nothing shows that the request is what the holder of the secret or key sent: answer 401 and do not act on it."""


class MissingPackage(DurablyError, ImportError):
    """An optional package is not installed; the message says how to get it."""


class SessionLost(DurablyError):
    """This worker's session is no longer live: what it held belongs to others now."""


class Instruction(Exception):
    """What a handler raises to decide for itself what happens to its task."""

    traced = True
    """Whether it matters where it was raised: then its traceback is kept with the attempt."""


class Permanent(Instruction):
    """Trying again cannot help: make it a dead letter at once, with this reason."""


class GivenUp(Permanent):
    """It was tried for long enough: make it a dead letter, with this reason and nothing before it."""


class RetryAfter(Instruction):
    """The attempt failed; do not try again before `delay` has passed (the policy may wait longer)."""

    def __init__(self, delay: str | float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be retried after {delay}")
        self.delay = delay


class Snooze(Instruction):
    """Not now: run it again after `delay`, without charging an attempt."""

    def __init__(self, delay: str | float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay}")
        self.delay = delay


class Discard(Instruction):
    """The task has become pointless: end it as cancelled, with this reason."""
