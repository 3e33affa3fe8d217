"""What became of each recipient of a mail, and what that means for the mail. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Delivery
from durably.mail.letter import Letter

SHOWN = 3
"""So many recipients are named in a reason."""


class Recipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a mail to one recipient stands."""

    state: Literal["waiting", "sent", "refused", "suppressed"] = "waiting"
    said: str = ""
    """What the server said last about it."""
    unknown: bool = False
    """Whether an attempt may have reached it whose answer did not come."""
    wait: float | None = None
    """Seconds for which its server wants to be left alone."""
    suppress: bool = False
    """Whether the address will never work."""


Results = dict[str, Recipient]


def kept(addresses: list[str], before: Any) -> Results:
    """The recipients of a mail as the attempt before has left them."""
    try:
        known = msgspec.convert(before or {}, Results)
    except msgspec.ValidationError:
        known = {}
    return {address: known.get(address, Recipient()) for address in addresses}


def begin(delivery: Delivery, letter: Letter) -> Results:
    """The recipients as an attempt finds them."""
    results = kept(letter.recipients, delivery.kept)
    return tried_anew(results) if delivery.spent == 1 else results


def tried_anew(results: Results) -> Results:
    """The same at the beginning of a cycle: whoever did not get it is asked once more, since somebody wants that."""
    ended = ("refused", "suppressed")
    return {address: Recipient() if one.state in ended else one for address, one in results.items()}


def waiting(results: Results) -> list[str]:
    """Those who have not ended."""
    return [address for address, one in results.items() if one.state == "waiting"]


def outcome(results: Results) -> Outcome:
    """What an attempt came to, once it has tried everyone who waited."""
    state = msgspec.to_builtins(results)
    left = {address: one for address, one in results.items() if one.state == "waiting"}
    refused = {address: one for address, one in results.items() if one.state == "refused"}
    if left:
        unknown = any(one.unknown for one in left.values())
        waits = [one.wait for one in left.values() if one.wait is not None]
        patience = max(waits) if len(waits) == len(left) else None
        kind = Kind.UNKNOWN if unknown else Kind.TRANSIENT
        return Outcome(kind=kind, reason=_told("wait", left, results), retry_after=patience, kept=state)
    if refused:
        return Outcome(kind=Kind.PERMANENT, reason=_told("were refused", refused, results), kept=state)
    if all(one.state == "suppressed" for one in results.values()):
        return Outcome(kind=Kind.UNWANTED, reason=_told("get no mail", results, results), kept=state, asked=False)
    return Outcome(kind=Kind.OK, reason="sent", kept=state)


def _told(what: str, some: Mapping[str, Recipient], every: Results) -> str:
    """How many of how many, and the first of them with what their servers said."""
    named = "; ".join(f"{address}: {one.said}" for address, one in list(some.items())[:SHOWN])
    more = f"; and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
    count = f"{len(some)} of {len(every)} recipients {what}: " if len(every) > 1 else ""
    return f"{count}{named}{more}"
