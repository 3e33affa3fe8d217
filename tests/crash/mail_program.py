"""The application whose mail is interrupted. To servers it calls itself by its process, so that they can say whose mail
they have."""

from __future__ import annotations

import os

from durably import Durably
from durably.mail import replies

# A server that wants to see whether we come back is asked again at once: nobody should wait for that here.
replies.GREYLISTED = 0.2

app = Durably(os.environ["DURABLY_STORE"])
app.mail.configure(hostname=f"{os.getpid()}.here.example")
