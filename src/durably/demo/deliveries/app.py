"""The demo's application: it posts webhooks to receivers on this machine, which the usual guard would refuse."""

from __future__ import annotations

import os

from durably import Durably
from durably.deliveries.http import Webhook
from durably.demo.posts import local_client

STORE = os.environ.get("DURABLY_DEMO_STORE", "sqlite:///durably-demo.db")
PEERS = ("bakery", "florist", "garage", "grocer", "harbour")

app = Durably(STORE)
deliveries = app.deliveries
deliveries.channels["webhook"] = Webhook(local_client())


@deliveries.audience
def subscribers() -> tuple[str, ...]:
    """Everyone who wants to know about orders."""
    return PEERS
