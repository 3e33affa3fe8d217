"""Everything that Apprise speaks: chat, push and SMS services, each behind a URL."""

from __future__ import annotations

import asyncio
import logging

from apprise import Apprise, AppriseAsset, NotifyFormat

from durably.core.delivery import Kind, Outcome
from durably.notifications.channel import Note

logging.getLogger("apprise").setLevel(logging.CRITICAL)


class AppriseChannel:
    """Calls Apprise in a thread, once for each attempt. The address of a recipient is an Apprise URL."""

    async def send(self, note: Note) -> Outcome | None:
        # Retries are ours: only we know what was tried before, by whom, and when to stop.
        target = Apprise(asset=AppriseAsset(async_mode=False))
        if not target.add(note.address):
            return Outcome(kind=Kind.PERMANENT, reason="Apprise does not understand the address")
        for service in target:
            service.retry = 0
        body, form = (note.html, NotifyFormat.HTML) if note.html is not None else (note.text, NotifyFormat.TEXT)
        if await asyncio.to_thread(target.notify, body=body or note.title, title=note.title, body_format=form):
            return None
        return Outcome(kind=Kind.TRANSIENT, reason="the service did not take it")
