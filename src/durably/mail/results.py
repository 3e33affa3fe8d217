"""What became of each recipient of a mail, and what that means for the mail. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Delivery
from durably.mail.letter import Letter
from durably.mail.replies import GREYLISTED

SHOWN = 3
"""So many recipients are named in a reason."""


class Recipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a mail to one recipient stands."""

    state: Literal["waiting", "sent", "refused", "suppressed"] = "waiting"
    said: str = ""
    """What the server said last about it."""
    unknown: bool = False
    """Whether no answer came when it was tried last, so that it may have reached it."""
    wait: float | None = None
    """Seconds for which its server wants to be left alone."""
    until: float | None = None
    """The moment before which it is not named again."""
    suppress: bool = False
    """Whether the address will never work."""
    elsewhere: bool = False
    """Whether it is only this transport that cannot reach it."""
    possible_duplicate: bool = False
    """Whether an attempt may have reached it that is not the one of which its state tells."""


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
    if delivery.replayed or not waiting(results):
        results = tried_anew(results)
    return {address: _begun(one, delivery.interrupted) for address, one in results.items()}


def _begun(one: Recipient, interrupted: bool) -> Recipient:
    """Whom another transport could not reach is tried, and whoever was tried when nobody could tell is marked."""
    if one.elsewhere:
        one = Recipient(possible_duplicate=one.possible_duplicate)
    doubtful = one.state == "waiting" and (one.unknown or interrupted)
    return msgspec.structs.replace(one, possible_duplicate=True) if doubtful else one


def tried_anew(results: Results) -> Results:
    """The same at the beginning of a cycle: whoever did not get it is asked once more, since somebody wants that."""
    return {
        address: one if one.state == "sent" else Recipient(possible_duplicate=one.possible_duplicate or one.unknown)
        for address, one in results.items()
    }


def once_more(addresses: list[str], before: Any, interrupted: bool) -> Any:
    """The recipients for another cycle, as they are kept."""
    known = {address: _begun(one, interrupted) for address, one in kept(addresses, before).items()}
    return msgspec.to_builtins(tried_anew(known))


def marked(before: Results, after: Results) -> Results:
    """What an attempt came to, with the marks that it had found."""
    return {
        address: msgspec.structs.replace(one, possible_duplicate=True) if before[address].possible_duplicate else one
        for address, one in after.items()
    }


def waiting(results: Results) -> list[str]:
    """Those who have not ended."""
    return [address for address, one in results.items() if one.state == "waiting"]


def due(results: Results, now: float) -> list[str]:
    """Those whose time has come; if that is nobody, those whose time comes first, since somebody wants an attempt."""
    rests = {address: _rest(results[address], now) for address in waiting(results)}
    first = min(rests.values(), default=0.0)
    return [address for address, seconds in rests.items() if seconds <= first]


def packed(results: Results, now: float) -> Any:
    """What is kept for the next attempt: waits that were asked for become moments."""
    return msgspec.to_builtins(
        {
            address: one if one.wait is None else msgspec.structs.replace(one, wait=None, until=now + one.wait)
            for address, one in results.items()
        }
    )


def outcome(results: Results, now: float = 0.0) -> Outcome:
    """What an attempt came to that ends now, once it has tried everyone whose time had come."""
    state = packed(results, now)
    left = {address: one for address, one in results.items() if one.state == "waiting"}
    refused = {address: one for address, one in results.items() if one.state == "refused"}
    elsewhere = any(one.elsewhere for one in refused.values())
    if left:
        kind = Kind.UNKNOWN if any(one.unknown for one in left.values()) else Kind.TRANSIENT
        patience = min(_rest(one, now) for one in left.values()) or None
        reason = _told("wait", left, results)
        return Outcome(kind=kind, reason=reason, retry_after=patience, elsewhere=elsewhere, kept=state)
    if refused:
        reason = _told("were refused", refused, results)
        return Outcome(kind=Kind.PERMANENT, reason=reason, elsewhere=elsewhere, kept=state)
    if all(one.state == "suppressed" for one in results.values()):
        return Outcome(kind=Kind.UNWANTED, reason=_told("get no mail", results, results), kept=state, asked=False)
    return Outcome(kind=Kind.OK, reason="sent", kept=state)


def _rest(one: Recipient, now: float) -> float:
    """Seconds until its time comes. Nobody is left alone for longer than this: if it says so, two clocks disagree."""
    if one.wait is not None:
        return one.wait
    seconds = 0.0 if one.until is None else one.until - now
    return seconds if 0.0 < seconds <= GREYLISTED else 0.0


def _told(what: str, some: Mapping[str, Recipient], every: Results) -> str:
    """How many of how many, and the first of them with what their servers said."""
    named = "; ".join(f"{address}: {one.said}" for address, one in list(some.items())[:SHOWN])
    more = f"; and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
    count = f"{len(some)} of {len(every)} recipients {what}: " if len(every) > 1 else ""
    return f"{count}{named}{more}"
