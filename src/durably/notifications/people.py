"""Whom a notification is for, and when that person does not want to be disturbed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption

CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


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
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadOption(
            f"timezone: {brief(name)} is not known here; it must look like Europe/Berlin "
            "(where the system has no time zones: pip install tzdata)"
        ) from None


def quiet_for(person: Person, now: datetime) -> float:
    """Seconds until the quiet hours of a person are over; 0 outside of them."""
    if person.quiet is None:
        return 0.0
    begin, end = (_time(one) for one in person.quiet)
    local = now.astimezone(zone(person.timezone))
    clock = local.time().replace(tzinfo=None)
    inside = begin <= clock < end if begin <= end else clock >= begin or clock < end
    if not inside:
        return 0.0
    over = datetime.combine(local.date(), end, local.tzinfo)
    if over <= local:
        over = datetime.combine(local.date() + timedelta(days=1), end, local.tzinfo)
    return max((over.astimezone(UTC) - now.astimezone(UTC)).total_seconds(), 1.0)


def _time(text: str) -> time:
    found = CLOCK.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadOption(f"quiet: {brief(text)} must be a time of the day, such as 22:00")
    return time(int(found[1]), int(found[2]))
