"""The demo's application: it posts webhooks to receivers on this machine, which the usual guard would refuse."""

from __future__ import annotations

import os

from durably import Durably
from durably.deliveries.client import Client
from durably.deliveries.guard import Guard
from durably.deliveries.http import Webhook

STORE = os.environ.get("DURABLY_DEMO_STORE", "sqlite:///durably-demo.db")
SENDER = "durably-demo/"
"""Who sends says so with its process id, so that a receiver can tell who is to be killed."""
PEERS = ("bakery", "florist", "garage", "grocer", "harbour")

app = Durably(STORE)
deliveries = app.deliveries
deliveries.channels["webhook"] = Webhook(
    Client(Guard(http=True, allow=["127.0.0.0/8"]), user_agent=f"{SENDER}{os.getpid()}")
)


@deliveries.audience
def subscribers() -> tuple[str, ...]:
    """Everyone who wants to know about orders."""
    return PEERS
