"""The application whose deliveries are interrupted: webhooks to receivers on this machine."""

from __future__ import annotations

import os

from durably import Durably
from durably.deliveries.client import Client
from durably.deliveries.guard import Guard
from durably.deliveries.http import Webhook

app = Durably(os.environ["DURABLY_STORE"])
app.deliveries.channels["webhook"] = Webhook(Client(Guard(http=True, allow=["127.0.0.1/32"])))
