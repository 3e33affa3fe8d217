"""A worker that runs so many tasks of a huge backlog and says how much memory it took at most."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from durably import Event
from tests.crash.shop import app, note


def peak() -> int:
    """The most memory that this process has had, in MB. What getrusage() says includes its parent's until the exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [most] = [line for line in lines if line.startswith("VmHWM:")]
    return int(most.split()[1]) // 1024


async def main() -> None:
    wanted = int(sys.argv[1])
    worker = app.worker(concurrency=1000)
    seen = 0

    def watch(event: Event) -> None:
        nonlocal seen
        seen += event.kind == "completed"
        if seen >= wanted:
            worker.stop()

    app.events.subscribe(watch)
    await worker.run()
    await app.aclose()
    note("peak", peak(), seen)


asyncio.run(main())
