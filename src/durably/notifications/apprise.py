"""Everything that Apprise speaks: chat, push and SMS services, each behind a URL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from apprise import Apprise, AppriseAsset, NotifyFormat

from durably.core.delivery import Kind, Outcome
from durably.notifications.channel import Note

_silent: ContextVar[bool] = ContextVar("durably_apprise_is_silent", default=False)


class AppriseChannel:
    """Calls Apprise in a thread, once for each attempt. The address of a recipient is an Apprise URL."""

    async def send(self, note: Note) -> Outcome | None:
        return await asyncio.to_thread(_call, note)


def _call(note: Note) -> Outcome | None:
    with _in_silence():
        target = Apprise(asset=AppriseAsset(async_mode=False))
        if not target.add(note.address):
            return Outcome(kind=Kind.PERMANENT, reason="Apprise does not understand the address")
        for service in target:
            # Retries are ours: only we know what was tried before, by whom, and when to stop.
            service.retry = 0
        body, form = (note.html, NotifyFormat.HTML) if note.html is not None else (note.text, NotifyFormat.TEXT)
        try:
            taken = target.notify(body=body or note.title, title=note.title, body_format=form)
        except Exception as error:
            return Outcome(kind=Kind.UNKNOWN, reason=f"Apprise failed with {type(error).__name__}")
    if taken:
        return None
    # Apprise tells no more than that: nobody may have answered, or one of several services has it.
    return Outcome(kind=Kind.UNKNOWN, reason="the service did not take it, or did not say so")


@contextmanager
def _in_silence() -> Iterator[None]:
    """Addresses are secrets, and these loggers write them down."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def _let_through(record: logging.LogRecord) -> bool:
    return not _silent.get()


for _name in ("apprise", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(_let_through)
