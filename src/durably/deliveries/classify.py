"""What an HTTP answer means for a delivery: the table of the rules, once for webhooks and once for federation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus

import msgspec

from durably.core.delivery import LONGEST_WAIT, Kind, Outcome
from durably.core.task import clean

SHOWN = 300
"""So many characters of an answer are told to people."""


class Reply(msgspec.Struct, frozen=True):
    """An HTTP answer. Names of headers are in lower case, and may come more than once."""

    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    possible_duplicate: bool = False
    """An earlier request of the same attempt may have been taken too."""

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for known, value in self.headers if known == name]


def webhook(reply: Reply, now: float) -> Outcome:
    """For a receiver that somebody has to look after: nearly everything may be mended before the schedule is over."""
    status = reply.status
    if 200 <= status < 300 and not (reply.headers or reply.body or reply.possible_duplicate):
        return _taken(status)
    wish = {one.strip().lower() for value in reply.all("webhook-delivery") for one in value.split(",")}
    disables = "disable" in wish
    if 200 <= status < 300:
        return _outcome(reply, Kind.OK, disables=disables)
    if "abort-message" in wish:
        return _outcome(reply, Kind.PERMANENT, "the receiver does not want this message", disables=disables)
    if status == 410:
        return _outcome(reply, Kind.GONE, disables=True)
    if (asked := _asked_to_wait(reply, now)) is not None:
        return _outcome(reply, Kind.THROTTLED, retry_after=asked, disables=disables)
    if status in (501, 505):
        return _outcome(reply, Kind.PERMANENT, disables=disables)
    advice = "update the URL" if status in (301, 308) else "redirects are not followed" if 300 <= status < 400 else ""
    return _outcome(
        reply,
        Kind.TRANSIENT,
        advice,
        breaks=500 <= status < 600,
        retry_after=retry_after(reply, now),
        disables=disables,
    )


def federation(reply: Reply, now: float) -> Outcome:
    """For a server among many: what it refuses it will refuse again."""
    status = reply.status
    if 200 <= status < 300:
        return _outcome(reply, Kind.OK)
    if (asked := _asked_to_wait(reply, now)) is not None:
        return _outcome(reply, Kind.THROTTLED, retry_after=asked)
    if status in (404, 410):
        return _outcome(reply, Kind.GONE, "that inbox is gone" if status == 404 else "")
    if status in (401, 408, 421, 425) or (500 <= status < 600 and status not in (501, 505)):
        return _outcome(reply, Kind.TRANSIENT, breaks=status >= 500, retry_after=retry_after(reply, now))
    if 300 <= status < 600:
        return _outcome(reply, Kind.PERMANENT)
    return _outcome(reply, Kind.TRANSIENT)


def _asked_to_wait(reply: Reply, now: float) -> float | None:
    asked = retry_after(reply, now)
    return asked or 0.0 if reply.status == 429 else asked if reply.status == 503 else None


def retry_after(reply: Reply, now: float) -> float | None:
    """For how many seconds the peer wants to be left alone: the longest that it names, if it names any."""
    found = [waits for value in reply.all("retry-after") if (waits := _seconds(value.strip(), now)) is not None]
    return max(found, default=None)


def _seconds(value: str, now: float) -> float | None:
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 20 else LONGEST_WAIT
    try:
        moment = parsedate_to_datetime(value)
        return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _outcome(
    reply: Reply,
    kind: Kind,
    advice: str = "",
    *,
    breaks: bool = False,
    retry_after: float | None = None,
    disables: bool = False,
) -> Outcome:
    body = clean(reply.body.decode("utf-8", "replace"), SHOWN) if reply.body else ""
    told = "; ".join(filter(None, [_named(reply.status), advice]))
    reason = told if kind is Kind.OK or not body else f"{told}: {body}"
    return Outcome(
        kind=kind,
        reason=reason,
        breaks=breaks,
        retry_after=retry_after,
        disables=disables,
        status=reply.status,
        body=body,
        possible_duplicate=reply.possible_duplicate,
    )


@lru_cache(100)
def _taken(status: int) -> Outcome:
    """The message was taken without another word."""
    return Outcome(kind=Kind.OK, reason=_named(status), status=status)


@lru_cache(1000)
def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
