"""What can be chosen for a destination, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import msgspec

from durably.core.brief import brief
from durably.core.delivery import Rules
from durably.core.limits import parse_rate
from durably.core.moment import Duration, seconds
from durably.core.options import text
from durably.errors import BadOption


class RuleOptions(TypedDict, total=False):
    """What can be chosen for a destination."""

    order: Literal["fifo", "unordered"]
    schedule: Sequence[Duration]
    timeout: Duration
    concurrency: int
    rate: str | None
    policy: Literal["block", "overtake", "pause"]
    expires: Duration
    breaker: int
    cooldown: Duration
    jitter: float
    fallback: str | None
    gone_after: int | None


def rules_with(base: Rules, options: RuleOptions) -> Rules:
    """The rules with these options, checked."""
    changes: dict[str, Any] = {}
    for option, value in options.items():
        match option:
            case "order" | "policy":
                allowed = ("fifo", "unordered") if option == "order" else ("block", "overtake", "pause")
                if value not in allowed:
                    raise BadOption(f"{option}: {brief(value)} must be one of {', '.join(allowed)}")
                changes[option] = value
            case "schedule":
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise BadOption(f"schedule: {brief(value)} must be a list of waits, such as ['30s', '5m', '30m']")
                changes[option] = tuple(seconds(one, "schedule") for one in value)
            case "timeout" | "expires" | "cooldown":
                changes[option] = seconds(value, option)  # type: ignore[arg-type]
                if changes[option] <= 0:
                    raise BadOption(f"{option}: {brief(value)} must be longer than nothing")
            case "gone_after" if value is None:
                changes[option] = None
            case "concurrency" | "breaker" | "gone_after":
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise BadOption(f"{option}: {brief(value)} must be a whole number from 1")
                changes[option] = value
            case "rate":
                changes[option] = None if value is None else parse_rate(str(value))[0]
            case "jitter":
                if not isinstance(value, int | float) or not 0 <= value <= 1:
                    raise BadOption(f"jitter: {brief(value)} must be from 0 to 1")
                changes[option] = float(value)
            case "fallback":
                changes[option] = None if value is None else text(value, "fallback")
            case _:
                raise BadOption(f"there is no option {option!r} of a destination")
    chosen = msgspec.structs.replace(base, **changes)
    if chosen.fallback is not None and chosen.order == "fifo":
        raise BadOption("fallback: what goes elsewhere overtakes what waits here, so that it needs order='unordered'")
    return chosen
