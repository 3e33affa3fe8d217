"""Waiting for results: however many wait, one query asks for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import msgspec

from durably.core.task import Task
from durably.errors import StoreUnavailable
from durably.stores.operations.read import Memory, watch
from durably.stores.protocol import Store

FIRST, MOST, FACTOR = 0.005, 0.25, 1.5
DOUBTS = 3

Ending = Task | Memory


class Missing(msgspec.Struct, frozen=True):
    """The store does not know the task: neither live nor ended nor remembered."""

    id: str


class _Watched:
    """Who waits for one task, and how often the store has said that it does not know it."""

    __slots__ = ("doubts", "ending", "patient")

    def __init__(self, patient: bool) -> None:
        self.patient = patient
        self.doubts = 0
        self.ending: Ending | Missing | None = None

    def learn(self, task_id: str, ending: Ending | None, live: bool) -> bool:
        """Whether the wait is over."""
        if ending is not None:
            self.ending = ending
        elif live:
            self.doubts = 0
        elif not self.patient:
            self.doubts += 1
            if self.doubts >= DOUBTS:
                self.ending = Missing(task_id)
        return self.ending is not None


class Waiters:
    """Everyone in this process who waits for a task to end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._watched: dict[str, list[_Watched]] = {}
        self._polling = False
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaiters] = WeakKeyDictionary()

    def wait(self, task_id: str, timeout: float | None, *, patient: bool = False) -> Ending | Missing | None:
        """How the task ended; None when it has not within the time. A patient wait allows that it is not there yet."""
        mine = _Watched(patient)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._watched.setdefault(task_id, []).append(mine)
            if not self._polling:
                self._polling = True
                threading.Thread(target=self._poll, name="durably-waiters", daemon=True).start()
            self._changed.notify_all()
            while mine.ending is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            self._forget(task_id, mine)
        return mine.ending

    async def await_(self, task_id: str, limit: float | None, *, patient: bool = False) -> Ending | Missing | None:
        """The same for a coroutine."""
        loop = asyncio.get_running_loop()
        waiters = self._loops.get(loop)
        if waiters is None:
            waiters = self._loops[loop] = _LoopWaiters(self._store)
        return await waiters.wait(task_id, limit, patient)

    def _forget(self, task_id: str, mine: _Watched) -> None:
        watched = self._watched.get(task_id, [])
        if mine in watched:
            watched.remove(mine)
        if not watched:
            self._watched.pop(task_id, None)

    def _poll(self) -> None:
        pause = FIRST
        known: set[str] = set()
        while True:
            with self._changed:
                ids = list(self._watched)
                if not ids:
                    self._polling = False
                    return
            if not known.issuperset(ids):
                pause = FIRST
            known = set(ids)
            with contextlib.suppress(StoreUnavailable):
                endings, live = self._store.run(watch(ids))
                with self._changed:
                    _spread(self._watched, ids, endings, live)
                    self._changed.notify_all()
            with self._changed:
                self._changed.wait(pause)
            pause = min(pause * FACTOR, MOST)


def _spread(
    watched: dict[str, list[_Watched]], ids: Iterable[str], endings: dict[str, Ending], live: set[str]
) -> list[str]:
    over = []
    for task_id in ids:
        for one in watched.get(task_id, []):
            if one.learn(task_id, endings.get(task_id), task_id in live):
                over.append(task_id)
    return over


class _LoopWaiters:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[str, list[_Watched]] = {}
        self._signals: dict[str, asyncio.Event] = {}
        self._fresh = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, task_id: str, limit: float | None, patient: bool) -> Ending | Missing | None:
        mine = _Watched(patient)
        self._watched.setdefault(task_id, []).append(mine)
        signal = self._signals.setdefault(task_id, asyncio.Event())
        self._fresh.set()
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="durably-waiters")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while mine.ending is None:
                        await signal.wait()
                        signal.clear()
        finally:
            self._watched[task_id].remove(mine)
            if not self._watched[task_id]:
                del self._watched[task_id], self._signals[task_id]
        return mine.ending

    async def _poll(self) -> None:
        pause = FIRST
        try:
            while self._watched:
                ids = list(self._watched)
                with contextlib.suppress(StoreUnavailable):
                    endings, live = await self._store.arun(watch(ids))
                    for task_id in _spread(self._watched, ids, endings, live):
                        if task_id in self._signals:
                            self._signals[task_id].set()
                # Those whose wait is over leave before it is decided whether anyone is left.
                await asyncio.sleep(0)
                if not self._watched:
                    break
                self._fresh.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._fresh.wait(), pause)
                    pause = FIRST
                pause = min(pause * FACTOR, MOST)
        finally:
            self._poller = None
