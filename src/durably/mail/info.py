"""How mails stand, as people see them."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any, Literal

import msgspec

from durably.client.info import TaskInfo
from durably.core.task import State
from durably.mail.results import Recipient, kept

MailState = Literal["waiting", "sent", "dead", "cancelled", "forgotten"]
STATES: dict[MailState, builtins.list[str]] = {
    "waiting": [State.READY, State.DELAYED, State.BLOCKED, State.LEASED],
    "sent": [State.DONE],
    "dead": [State.DEAD],
    "cancelled": [State.CANCELLED],
}
"""The states of a mail, and the states of its task that they stand for."""
NAMED = 3
"""So many recipients are named in a list."""


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a mail is about, as it is kept beside it."""

    sender: str
    subject: str
    to: builtins.list[str]
    """The first of its recipients."""
    recipients: int
    template: str = ""
    version: str = ""
    locale: str = ""
    category: str = ""


class RecipientInfo(msgspec.Struct, frozen=True):
    """How a mail to one recipient stands."""

    address: str
    state: Literal["waiting", "sent", "refused", "suppressed", "given up"]
    said: str
    """What its server said last, or why nobody could be asked."""
    possible_duplicate: bool
    """Whether it may have got the mail more often than its state says: an attempt ended without an answer."""


class MailSummary(msgspec.Struct, frozen=True):
    """A mail in a list."""

    id: str
    state: MailState
    about: About | None
    """None if it cannot be read with the keys that are here."""
    key: str | None
    transport: str | None
    accepted: datetime


class MailInfo(msgspec.Struct, frozen=True):
    """How a mail stands, and each of its recipients."""

    id: str
    state: MailState
    reason: str | None
    """Why it is not sent, or not yet."""
    about: About
    key: str | None
    transport: str
    accepted: datetime
    task: str
    info: TaskInfo | None
    """The task that brings it to its transport; None once its history has been pruned."""
    recipients: builtins.list[RecipientInfo]


def mail_state(task: str | None) -> MailState:
    """The state of a mail whose task is in this one."""
    return next((state for state, tasks in STATES.items() if task in tasks), "forgotten")


def recipient_infos(
    addresses: builtins.list[str], before: Any, mail: MailState, interrupted: bool
) -> builtins.list[RecipientInfo]:
    """Every recipient, out of what the last attempt has kept; if another one was interrupted since then, it may have
    reached whoever waits."""
    return [
        RecipientInfo(address, _state(found, mail), found.said, _doubtful(found, interrupted))
        for address, found in kept(addresses, before).items()
    ]


def _doubtful(found: Recipient, interrupted: bool) -> bool:
    return found.possible_duplicate or found.unknown or (interrupted and found.state == "waiting")


def _state(found: Recipient, mail: MailState) -> Literal["waiting", "sent", "refused", "suppressed", "given up"]:
    return "given up" if found.state == "waiting" and mail in ("dead", "cancelled") else found.state
