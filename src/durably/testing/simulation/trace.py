"""The story of one simulation: who did what at which virtual moment."""

from __future__ import annotations

import asyncio


class Trace:
    """Lines in the order in which things happened. Tasks are called by their numbers, which are the same every time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._names: dict[str, str] = {}
        self.lines: list[str] = []
        self.closed = False

    def name(self, task_id: str, name: str) -> None:
        """Call this task so from now on."""
        self._names[task_id] = name

    def called(self, task_id: str | None) -> str:
        """How a task is called."""
        return self._names.get(task_id or "", task_id or "nobody")

    def say(self, who: str, what: str) -> None:
        """Add a line."""
        if not self.closed:
            self.lines.append(f"{self._loop.time():9.3f}  {who:<10} {what}")
