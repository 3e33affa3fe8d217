"""The application whose notifications are interrupted."""

from __future__ import annotations

import os

from durably import Durably, Retry
from durably.notifications import notifications
from tests.crash.news import declare

# Nobody should wait here for ten seconds and more.
notifications.PATIENCE = Retry.constant(attempts=8, delay=0.2)

app = declare(Durably(os.environ["DURABLY_STORE"]))
