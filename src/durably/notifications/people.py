"""Whom a notification is for, and when that person does not want to be disturbed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption
from durably.mail.templates import fallbacks

CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
SHIFT = timedelta(hours=2)
"""No clock is put forward or back by more."""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A recipient as the application knows it: where each channel finds it, and how it is spoken to."""

    addresses: Mapping[str, str] = {}
    """The address for each channel."""
    locale: str = ""
    timezone: str = "UTC"
    quiet: tuple[str, str] | None = None
    """From when until when nothing but what is critical comes through, such as ("22:00", "07:00")."""


def zone(name: str) -> tzinfo:
    """The time zone of that name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise BadOption(
            f"timezone: {brief(name)} is not known here; it must look like Europe/Berlin "
            "(where the system has no time zones: pip install tzdata)"
        ) from None


def usable(person: Person) -> tuple[Person, list[str]]:
    """The same person, with what is usual instead of what makes no sense; and what that was."""
    checks: dict[str, Callable[[Any], object]] = {"locale": fallbacks, "timezone": zone, "quiet": _hours}
    usual, odd = Person(), {}
    for name, check in checks.items():
        given = getattr(person, name)
        try:
            if given != getattr(usual, name):
                check(given)
        except BadOption as error:
            odd[name] = str(error)
    if not odd:
        return person, []
    instead = {name: getattr(usual, name) for name in odd}
    return msgspec.structs.replace(person, **instead), [f"{error} (it is ignored)" for error in odd.values()]


def quiet_for(person: Person, now: datetime) -> float:
    """Seconds until the quiet hours of a person are over; 0 outside of them."""
    if person.quiet is None:
        return 0.0
    begin, end = _hours(person.quiet)
    home = zone(person.timezone)

    def quiet(moment: datetime) -> bool:
        clock = moment.astimezone(home).time()
        return begin <= clock < end if begin <= end else clock >= begin or clock < end

    if not quiet(now):
        return 0.0
    # The clock on the wall may jump or repeat an hour that night: what it could change is taken minute by minute.
    local = now.astimezone(home)
    left = timedelta(hours=end.hour - local.hour, minutes=end.minute - local.minute) % DAY
    sure = left - SHIFT if SHIFT < left < DAY - SHIFT else timedelta()
    over = now.astimezone(UTC).replace(second=0, microsecond=0) + sure
    while quiet(over):
        over += MINUTE
    return max((over - now).total_seconds(), 1.0)


def _hours(given: Any) -> tuple[time, time]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise BadOption(f'quiet: {brief(given)} must be two times of the day, such as ("22:00", "07:00")')
    return _time(given[0]), _time(given[1])


def _time(text: Any) -> time:
    found = CLOCK.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadOption(f"quiet: {brief(text)} must be a time of the day, such as 22:00")
    return time(int(found[1]), int(found[2]))
