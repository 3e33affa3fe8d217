"""Holding lines back and letting them go on: once for all who ask in the same moment, and in the order of asking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from durably.client.gather import Gather
from durably.core.moment import micros
from durably.stores.operations.deliver import hold_line, release_line
from durably.stores.operations.desk import Line
from durably.stores.protocol import Store

Wish = tuple[Line, float | None]
"""A line, and the seconds for which nobody in it begins; None to let them."""


class Brakes:
    """Those of one event loop. A release finds every hold written that was asked for before it."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._gather: Gather[Wish, None] = Gather(loop, self._apply, "durably-brakes")

    async def hold(self, line: Line, seconds: float) -> None:
        await self._gather.ask((line, seconds))

    async def release(self, line: Line) -> None:
        await self._gather.ask((line, None))

    async def _apply(self, wishes: list[Wish]) -> Sequence[None]:
        last = settled(wishes)
        await asyncio.gather(*(self._set(line, seconds) for line, seconds in last.items()))
        return [None] * len(wishes)

    async def _set(self, line: Line, seconds: float | None) -> None:
        if seconds is None:
            await self._store.arun(release_line(*line))
        else:
            await self._store.arun(hold_line(*line, micros(seconds)))


def settled(wishes: Sequence[Wish]) -> dict[Line, float | None]:
    """What all of these come to: the longest of the holds after the last release, or that release."""
    last: dict[Line, float | None] = {}
    for line, seconds in wishes:
        before = last.get(line)
        last[line] = seconds if seconds is None or before is None else max(before, seconds)
    return last
