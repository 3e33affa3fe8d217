"""The demo's application: a shop that sends mail, and says in every conversation which of its processes it is."""

from __future__ import annotations

import os

from durably import Durably

STORE = os.environ.get("DURABLY_DEMO_STORE", "sqlite:///durably-demo.db")

app = Durably(STORE)
mail = app.mail
mail.sender = "The Shop <shop@shop.example>"
mail.configure(hostname=f"worker-{os.getpid()}.shop.example")
