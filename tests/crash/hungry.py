"""A worker that runs so many tasks of a huge backlog and says how much memory it took at most."""

from __future__ import annotations

import asyncio
import resource
import sys

from durably import Event
from tests.crash.shop import app, note


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
    note("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, seen)


asyncio.run(main())
