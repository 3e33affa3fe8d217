"""Asking the application: coroutines on the event loop, plain functions in threads, as tasks are run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from durably.notifications.people import Person

Resolver = Callable[[str], Awaitable[Person | None] | Person | None]
"""Who a recipient is."""
Linker = Callable[[str, str], Awaitable[str | None] | str | None]
"""Where a recipient can unsubscribe from a category."""


async def ask(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the application answers."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    answer = await asyncio.to_thread(function, *args)
    return await answer if inspect.isawaitable(answer) else answer
