"""What only works on an event loop, for those who have none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from durably.client.engine import Engine
from durably.errors import DurablyError

T = TypeVar("T")


def synchronously(engine: Engine, doing: Coroutine[Any, Any, T], twin: str) -> T:
    """Run it on an event loop of its own, and leave no connection of that loop behind."""

    async def whole() -> T:
        try:
            return await doing
        finally:
            await engine.leave()
            await engine.store.aclose()

    if asyncio._get_running_loop() is None:
        return asyncio.run(whole())
    doing.close()
    raise DurablyError(f"an event loop is already running here: use the asynchronous twin, `await {twin}`")
