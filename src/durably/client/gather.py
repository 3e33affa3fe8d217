"""Asking once for all who ask in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Gather(Generic[Q, A]):
    """Gathers questions on one event loop: while some are being answered, others wait for the next time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answer: Callable[[list[Q]], Awaitable[Sequence[A]]], name: str
    ) -> None:
        self._loop = loop
        self._answer = answer
        self._name = name
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """The answer to a question, or what went wrong for all who asked with it."""
        future: asyncio.Future[A] = self._loop.create_future()
        self._waiting.append((question, future))
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask_all(), name=self._name)
        return await future

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)
                batch, self._waiting = self._waiting, []
                await self._ask(batch)
        finally:
            self._asking = None

    async def _ask(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._answer([question for question, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
