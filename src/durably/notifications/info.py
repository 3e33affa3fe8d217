"""Notifications and their routes, as people see them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from durably.client.info import readable, task_info
from durably.core.codec import Codec
from durably.core.moment import as_datetime
from durably.core.task import State, Task
from durably.deliveries.deliveries import DeliveryInfo, delivery_info
from durably.mail.info import MailState, mail_state
from durably.notifications.router import READ, Routed, remembered
from durably.stores.operations.deliver import Sent
from durably.stores.operations.notify import Found, Route

RouteState = Literal["pending", "retrying", "sent", "skipped", "collecting", "dead", "cancelled", "forgotten"]


class RouteInfo(msgspec.Struct, frozen=True):
    """How one way of a notification to one recipient stands."""

    id: str
    """Its task, which is what the recipient's service is told as the id."""
    recipient: str
    channel: str
    state: RouteState
    reason: str
    """Why it was skipped or given up, or is not there yet; of a mail, what its transport says."""
    attempt: int
    next_attempt: datetime | None
    via: str
    """The mail that it became, or the digest that it is in."""
    possible_duplicate: bool
    mail: MailState | None = None
    """What has become of the mail that it became; None if it is none, or nobody knows any more."""


class NotificationInfo(msgspec.Struct, frozen=True):
    """A notification, and each of its routes."""

    id: str
    kind: str
    key: str | None
    data: Any
    """None if it cannot be read with the keys that are here."""
    problem: str | None
    """What is wrong with it, so that it has no routes."""
    accepted: datetime
    routes: builtins.list[RouteInfo]

    @property
    def malformed(self) -> bool:
        return self.problem is not None


def notification_info(found: Found, codec: Codec) -> NotificationInfo:
    """A notification out of its rows."""
    row = found.row
    routes = [_with_mail(_route(one, found.tasks, found.errors, codec), one, found, codec) for one in found.routes]
    accepted = as_datetime(row.created_at)
    return NotificationInfo(row.id, row.kind, row.key, readable(row.data, codec), row.problem, accepted, routes)


def _with_mail(info: RouteInfo, route: Route, found: Found, codec: Codec) -> RouteInfo:
    """The same, with what has become of its mail."""
    task = found.mails.get(route.digest or route.id)
    if task is None or info.state != "sent":
        return info
    mail: DeliveryInfo = delivery_info(Sent("", task, found.tasks.get(task), found.errors.get(task)), codec)
    return msgspec.structs.replace(
        info,
        reason=mail.reason or info.reason,
        possible_duplicate=info.possible_duplicate or mail.possible_duplicate,
        mail=mail_state(None if mail.info is None else mail.info.state),
    )


def _route(route: Route, tasks: Mapping[str, Task], errors: Mapping[str, str], codec: Codec) -> RouteInfo:
    digest = None if route.digest is None else tasks.get(route.digest)
    task = tasks.get(route.id) if digest is None else digest
    if task is None:
        return RouteInfo(route.id, route.recipient, route.channel, "forgotten", "", 0, None, "", False)
    info = task_info(task, codec)
    routed = _result(info.result)
    memory = remembered(readable(task.details, codec))
    state = _state(task, routed, waits=digest is not None)
    if state == "sent" and route.id in routed.left_out:
        state, routed = "skipped", msgspec.structs.replace(routed, reason=READ)
    doubtful = task.crashes > 0 or memory.possible_duplicate if state not in ("sent", "skipped") else False
    reason = routed.reason if state in ("sent", "skipped") else info.reason or memory.reason or errors.get(task.id, "")
    return RouteInfo(
        route.id,
        route.recipient,
        route.channel,
        state,
        reason or "",
        task.attempt,
        info.due_at if state in ("pending", "retrying", "collecting") else None,
        routed.via or (route.digest or ""),
        routed.possible_duplicate or doubtful,
    )


def _state(task: Task, routed: Routed, *, waits: bool) -> RouteState:
    match task.state:
        case State.DONE:
            return routed.state  # type: ignore[return-value]
        case State.DEAD:
            return "dead"
        case State.CANCELLED:
            return "cancelled"
        case _:
            return "retrying" if task.spent > 0 else "collecting" if waits else "pending"


def _result(result: Any) -> Routed:
    try:
        found = msgspec.convert(result or {"state": "sent"}, Routed)
    except msgspec.ValidationError:
        return Routed("sent")
    return found if found.state in ("sent", "skipped") else Routed("collecting", via=found.via)
