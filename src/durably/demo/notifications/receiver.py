"""The services behind push and SMS: one HTTP server in a process of its own, which writes down what it takes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from durably.demo.ledger import Ledger
from durably.demo.notifications.lines import Line
from durably.demo.posts import Post, attend
from durably.demo.servers import serve

SILENT, GONE = "device-of-ann", "device-of-eve"
"""The device whose first message is not answered, and the one that is not registered any more."""


class Told(msgspec.Struct, frozen=True):
    """What a service is told."""

    id: str
    to: str
    text: str


class Services:
    """Both of them, at /push and /sms."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._silent = {SILENT}

    def answer(self, post: Post) -> str | None:
        """The status for a message; None if there is to be no answer."""
        told = msgspec.json.decode(post.body, type=Told)
        what = "gone" if told.to == GONE else "took"
        channel = post.path.removeprefix("/")
        self._ledger.write(Line(what, to=told.to, channel=channel, note=told.id, pid=post.pid, text=told.text))
        if told.to in self._silent:
            self._silent.remove(told.to)
            return None
        return "410 Gone" if what == "gone" else "204 No Content"


async def main(path: Path) -> None:
    services = Services(Ledger(path))
    await serve([lambda reader, writer: attend(reader, writer, services.answer)], lambda words: None)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
