"""The demo's application: three kinds of notifications, six people, and two channels of its own."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import msgspec

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.demo.notifications.receiver import GONE, SILENT
from durably.demo.posts import local_client
from durably.notifications.channel import Note
from durably.notifications.people import Person

STORE = os.environ.get("DURABLY_DEMO_STORE", "sqlite:///durably-demo.db")
SERVICES = "DURABLY_DEMO_SERVICES"
"""The variable that says where push and SMS are."""
QUIET = "DURABLY_DEMO_QUIET"
"""The variable with the quiet hours of one of the people."""
PAID, COMMENT, ALARM = "order.paid", "comment", "alarm"
COLLECTED_FOR = 3
"""Seconds for which comments are collected into one mail; hours are usual."""
TIMEOUT = 30.0

app = Durably(STORE)
app.mail.sender = "The Shop <shop@shop.example>"
app.mail.configure(hostname=f"worker-{os.getpid()}.shop.example")
notifications = app.notifications


class Service:
    """A channel of the shop's own: it posts to a service, and says what came of that."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._client = local_client()

    async def send(self, note: Note) -> Outcome | None:
        body = msgspec.json.encode({"id": note.id, "to": note.address, "text": note.title})
        url = f"{os.environ[SERVICES]}/{self._name}"
        reply = await self._client.post(url, {"content-type": "application/json"}, body, TIMEOUT)
        if isinstance(reply, Outcome):
            return reply
        if reply.status == 410:
            return Outcome(kind=Kind.GONE, reason="410 Gone: the device is not registered any more")
        return None if reply.status < 300 else Outcome(kind=Kind.TRANSIENT, reason=f"{self._name}: {reply.status}")

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.aclose()


class Paid(msgspec.Struct, frozen=True):
    """What is told about an order that was paid."""

    order: int
    total: str


def quiet_now() -> str:
    """Quiet hours in UTC that began an hour ago, and last for two more at least."""
    now = datetime.now(UTC)
    return f"{now - timedelta(hours=1):%H}:00 {now + timedelta(hours=3):%H}:00"


# Every process has the same ones, even if an hour begins meanwhile.
begin, end = os.environ.setdefault(QUIET, quiet_now()).split()
PEOPLE = {
    "ann": Person(
        addresses={"mail": "ann@home.example", "push": SILENT, "sms": "+49 30 5550101"},
        locale="de",
    ),
    "bob": Person(addresses={"push": "device-of-bob", "sms": "+44 20 5550102"}),
    "cyd": Person(addresses={"mail": "cyd@home.example", "push": "device-of-cyd"}),
    "dan": Person(addresses={"mail": "dan@home.example", "push": "device-of-dan"}, quiet=(begin, end)),
    "eve": Person(addresses={"mail": "eve@home.example", "push": GONE, "sms": "+33 1 5550105"}),
    "fay": Person(addresses={"mail": "fay@home.example", "push": "device-of-fay"}, locale="de-AT"),
}

notifications.channels |= {name: Service(name) for name in ("push", "sms")}
notifications.resolver(PEOPLE.get)
notifications.kind(PAID, ["inbox", "mail"], schema=Paid, templates={"inbox": "paid", "mail": "paid"})
notifications.kind(
    COMMENT, ["inbox", "mail"], templates={"mail": "comments"}, digest={"mail": COLLECTED_FOR}, cancel_on_read=True
)
notifications.kind(ALARM, ["push"], critical=True, fallback={"push": "sms"})
