"""The catalogue: every kind of notification that an application sends, and how each is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.limits import parse_rate
from durably.core.moment import Duration, seconds
from durably.core.options import text
from durably.errors import BadOption
from durably.stores.operations.notify import INBOX


class Kind(msgspec.Struct, frozen=True):
    """One kind of notification, checked."""

    name: str
    channels: dict[str, float]
    """The channels, and the seconds after which each is tried."""
    schema: Any = None
    """The type of its data, as msgspec has it."""
    critical: bool = False
    """Whether it comes through whatever its recipient wants."""
    templates: dict[str, str] = {}
    """The template for each channel."""
    fallback: dict[str, str] = {}
    """The channel to try when one is confirmed not to reach anybody."""
    digest: dict[str, float] = {}
    """The channels whose notifications are collected, and for how many seconds."""
    throttle: tuple[int, float] | None = None
    """So many for each recipient and channel, in so many seconds."""
    cancel_on_read: bool = False
    """Whether what is still on its way is called off when its recipient has read it in the inbox."""
    category: str = ""
    """What recipients can unsubscribe from, by mail."""


class Catalogue(Mapping[str, Kind]):
    """The kinds by their names."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self.unchecked: list[Kind] = []
        """Those of which nobody knows yet whether there is everything that they name."""

    def __getitem__(self, name: str) -> Kind:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def add(
        self,
        name: str,
        channels: Sequence[str] | Mapping[str, Duration],
        *,
        schema: Any = None,
        critical: bool = False,
        templates: Mapping[str, str] | None = None,
        fallback: Mapping[str, str] | None = None,
        digest: Duration | Mapping[str, Duration] | None = None,
        throttle: str | None = None,
        cancel_on_read: bool = False,
        category: str = "",
    ) -> Kind:
        """Declare a kind."""
        if name in self._kinds:
            raise BadOption(f"kind: {brief(name)} is already declared")
        ways = _ways(channels)
        kind = Kind(
            text(name, "kind"),
            ways,
            schema,
            critical,
            _names(templates or {}, "templates"),
            _names(fallback or {}, "fallback"),
            _windows(digest, ways),
            None if throttle is None else _throttle(throttle),
            cancel_on_read,
            "" if category == "" else text(category, "category"),
        )
        if cancel_on_read and INBOX not in ways:
            raise BadOption(f"kind {name!r}: cancel_on_read needs the channel {INBOX!r}, in which it can be read")
        for one, other in kind.fallback.items():
            if one == other or (one not in ways and one not in kind.fallback.values()):
                raise BadOption(f"kind {name!r}: fallback: from {one!r} to {other!r} leads nowhere")
        for what, named in (("templates", kind.templates), ("digest", kind.digest)):
            for one in named.keys() - ways.keys() - set(kind.fallback.values()):
                raise BadOption(f"kind {name!r}: {what}: {one!r} is none of its channels: {', '.join(ways)}")
        self._kinds[name] = kind
        self.unchecked.append(kind)
        return kind

    def check(self, channels: Collection[str], templates: Collection[str]) -> None:
        """Refuse kinds that name a channel or a template that is not there; those that are new since the last time."""
        for kind in self.unchecked:
            for way in (*kind.channels, *kind.fallback.values()):
                if way not in channels:
                    known = ", ".join(sorted(channels))
                    raise BadOption(
                        f"kind {kind.name!r}: there is no channel {way!r}, only {known}; "
                        "put yours into notifications.channels"
                    )
            for template in kind.templates.values():
                if template not in templates:
                    raise BadOption(
                        f"kind {kind.name!r}: there is no template {template!r}: see `durably mail templates`"
                    )
        self.unchecked.clear()


def _ways(channels: Any) -> dict[str, float]:
    if isinstance(channels, Mapping):
        found = {text(name, "channels"): seconds(wait, f"channels: {name}") for name, wait in channels.items()}
    elif isinstance(channels, Sequence) and not isinstance(channels, str):
        found = {text(name, "channels"): 0.0 for name in channels}
    else:
        raise BadOption(f"channels: {brief(channels)} must be a list of names, or names with delays")
    if not found:
        raise BadOption("channels: a kind needs at least one")
    return found


def _names(given: Mapping[str, str], what: str) -> dict[str, str]:
    return {text(name, what): text(value, what) for name, value in given.items()}


def _windows(digest: Any, ways: Mapping[str, float]) -> dict[str, float]:
    """The inbox collects by itself."""
    if digest is None:
        return {}
    given = digest if isinstance(digest, Mapping) else {way: digest for way in ways if way != INBOX}
    found = {text(name, "digest"): seconds(window, "digest") for name, window in given.items()}
    for name, window in found.items():
        if window <= 0 or name == INBOX:
            raise BadOption(f"digest: {name!r} cannot be collected for {window:g} seconds")
    return found


def _throttle(given: str) -> tuple[int, float]:
    """ "5/1h": how many, in which time."""
    rate, count = parse_rate(given)
    if count != int(count):
        raise BadOption(f"throttle: {brief(given)} must be a whole number in a time, such as 5/1h")
    return int(count), count / rate
