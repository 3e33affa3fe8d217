"""What can be said about a task when it is declared, and again when it is enqueued. Everything is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from durably.core.brief import brief
from durably.core.moment import Duration, micros, moment, seconds
from durably.core.retry import Retry
from durably.core.task import DEFAULT_NAMESPACE, DEFAULT_PRIORITY, Options, Policy, Scope, full_queue, pack_options
from durably.errors import BadOption

NAME_LIMIT = 200
TAG_LIMIT = 20


class Unique(msgspec.Struct, frozen=True):
    """A unique key and how long it is taken: until the claim, until the end, for a period, or forever.

    The second enqueue with the same key and the same arguments answers with the first task's handle; with other
    arguments it is a `Conflict`.
    """

    key: str
    scope: str = Scope.LIVE
    period: Duration | None = None

    def checked(self) -> Unique:
        """Itself, once it makes sense."""
        text(self.key, "unique")
        if self.period is not None:
            if seconds(self.period, "unique period") <= 0:
                raise BadOption("unique: the period must be longer than nothing")
            return Unique(self.key, Scope.PERIOD, self.period)
        choice(self.scope, Scope, "unique scope")
        if self.scope == Scope.PERIOD:
            raise BadOption("unique: scope 'period' needs period=, for example Unique('report', period='1h')")
        return self


class DeclaredOptions(TypedDict, total=False):
    """The options of `@app.task(...)`."""

    queue: str
    namespace: str
    priority: int
    key: str | None
    order: str
    limit: str | None
    unique: str | Unique | None
    retry: Retry
    timeout: Duration | None
    expires: Duration | None
    retention: Duration | None
    tags: Sequence[str]
    at_most_once: bool
    crash_cap: int
    on_dead: Any


class CallOptions(DeclaredOptions, total=False):
    """The options of `task.using(...)`: those of the declaration, and those that make sense for one call only."""

    delay: Duration
    at: datetime
    within: Any


class Settings(msgspec.Struct, frozen=True, gc=False):
    """Checked options, in the form in which a draft needs them."""

    queue: str = "default"
    namespace: str = DEFAULT_NAMESPACE
    priority: int = DEFAULT_PRIORITY
    key: str | None = None
    policy: str | None = None
    gate: str | None = None
    unique: Unique | None = None
    retry: Retry | None = None
    timeout: float | None = None
    expires: int | None = None
    tags: str | None = None
    once: bool = False
    due_in: int = 0
    at: int | None = None
    options: Options = Options()
    packed: bytes | None = None
    within: Any = None

    @property
    def full_queue(self) -> str:
        """The queue's name across namespaces."""
        return full_queue(self.namespace, self.queue)

    @property
    def plain(self) -> bool:
        """Whether a task needs nothing of it but its queue and its priority, as most do."""
        return (
            self.key is None
            and self.unique is None
            and self.gate is None
            and self.due_in == 0
            and self.at is None
            and self.packed is None
            and self.tags is None
            and self.expires is None
            and self.policy is None
            and not self.once
        )


def text(value: Any, what: str) -> str:
    """A name that every store can keep."""
    if not isinstance(value, str) or not value or len(value) > NAME_LIMIT:
        raise BadOption(f"{what}: {brief(value)} must be text of 1 to {NAME_LIMIT} characters")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise BadOption(f"{what}: {brief(value)} must not contain NUL or lone surrogates")
    return str.__str__(value)


def queue_name(value: Any, what: str) -> str:
    """A queue or namespace: as other names, but without the slash that separates the two."""
    if "/" in text(value, what):
        raise BadOption(f"{what}: {brief(value)} must not contain '/'; use namespace= for that")
    return str(value)


def choice(value: Any, kinds: type[Scope] | type[Policy], what: str) -> str:
    """One of a fixed set of words."""
    allowed = [member.value for member in kinds]
    if value not in allowed:
        raise BadOption(f"{what}: {brief(value)} is not one of {', '.join(allowed)}")
    return str(value)


def settings(base: Settings, given: CallOptions) -> Settings:
    """The settings that result when these options are given on top of `base`; BadOption where they make no sense."""
    unknown = given.keys() - CallOptions.__annotations__.keys() - DeclaredOptions.__annotations__.keys()
    if unknown:
        known = sorted(CallOptions.__annotations__.keys() | DeclaredOptions.__annotations__.keys())
        raise BadOption(f"there is no option {', '.join(sorted(unknown))}; the options are {', '.join(known)}")
    changes: dict[str, Any] = {}
    travelling: dict[str, Any] = {}
    for option, value in given.items():
        _read(option, value, changes, travelling)
    if "delay" in given and "at" in given:
        raise BadOption("give delay or at, not both")
    if travelling.get("on_dead") is not None and travelling["on_dead_queue"] is None:
        travelling["on_dead_queue"] = full_queue(changes.get("namespace", base.namespace), "default")
    if travelling:
        options = msgspec.structs.replace(base.options, **travelling)
        changes |= {"options": options, "packed": pack_options(options)}
    return msgspec.structs.replace(base, **changes)


def _read(option: str, value: Any, changes: dict[str, Any], travelling: dict[str, Any]) -> None:
    match option:
        case "queue" | "namespace":
            changes[option] = queue_name(value, option)
        case "priority":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 9:
                raise BadOption(f"priority: {brief(value)} must be from 0 (last) to 9 (first)")
            changes["priority"] = int(value)
        case "key":
            changes["key"] = None if value is None else text(value, "key")
        case "order":
            changes["policy"] = None if choice(value, Policy, "order") == Policy.BLOCK else value
        case "limit":
            changes["gate"] = None if value is None else text(value, "limit")
        case "unique":
            unique = Unique(value) if isinstance(value, str) else value
            if unique is not None and not isinstance(unique, Unique):
                raise BadOption(f"unique: {brief(value)} must be text or Unique(...)")
            changes["unique"] = None if unique is None else unique.checked()
        case "retry":
            if not isinstance(value, Retry):
                raise BadOption(
                    f"retry: {brief(value)} is not a policy; use Retry.exponential(...), Retry.after(...) ..."
                )
            changes["retry"] = value
        case "timeout":
            changes["timeout"] = None if value is None else _positive(value, "timeout")
        case "expires":
            changes["expires"] = None if value is None else micros(_positive(value, "expires"))
        case "retention":
            travelling["retention"] = None if value is None else seconds(value, "retention")
        case "tags":
            changes["tags"] = _tags(value)
        case "at_most_once":
            changes["once"] = bool(value)
        case "crash_cap":
            if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 100:
                raise BadOption(f"crash_cap: {brief(value)} must be a whole number from 2 to 100")
            travelling["crash_cap"] = value
        case "delay":
            changes |= {"due_in": micros(seconds(value, "delay")), "at": None}
        case "at":
            if not isinstance(value, datetime):
                raise BadOption(f"at: {brief(value)} must be a datetime with a time zone; for a duration use delay=")
            changes |= {"at": moment(value), "due_in": 0}
        case "on_dead":
            travelling["on_dead"] = None if value is None else text(getattr(value, "name", value), "on_dead")
            travelling["on_dead_queue"] = getattr(value, "home_queue", None)
        case _:
            changes[option] = value


def _positive(value: Duration, what: str) -> float:
    found = seconds(value, what)
    if found <= 0:
        raise BadOption(f"{what}: {brief(value)} must be longer than nothing")
    return found


def _tags(value: Any) -> str | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadOption(f"tags: {brief(value)} must be a list of texts")
    found = [text(tag, "tags") for tag in value]
    if len(found) > TAG_LIMIT:
        raise BadOption(f"tags: {len(found)} are too many; {TAG_LIMIT} are allowed")
    return msgspec.json.encode(found).decode() if found else None
