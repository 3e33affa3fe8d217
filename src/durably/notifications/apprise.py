"""Everything that Apprise speaks: chat, push and SMS services, each behind a URL."""

from __future__ import annotations

import asyncio

from apprise import Apprise, AppriseAsset, NotifyFormat

from durably.core.delivery import Kind, Outcome
from durably.notifications.channel import Note


class AppriseChannel:
    """Calls Apprise in a thread, once for each attempt. The address of a recipient is an Apprise URL."""

    async def send(self, note: Note) -> Outcome | None:
        return await asyncio.to_thread(_call, note)


def _call(note: Note) -> Outcome | None:
    target = Apprise(asset=AppriseAsset(async_mode=False))
    if not target.add(note.address):
        return Outcome(kind=Kind.PERMANENT, reason="Apprise does not understand the address")
    for service in target:
        # Retries are ours: only we know what was tried before, by whom, and when to stop.
        service.retry = 0
    body, form = (note.html, NotifyFormat.HTML) if note.html is not None else (note.text, NotifyFormat.TEXT)
    if target.notify(body=body or note.title, title=note.title, body_format=form):
        return None
    return Outcome(kind=Kind.TRANSIENT, reason="the service did not take it")
