"""A worker's time in office: the session it holds, the heartbeat that renews it, and what happens when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Protocol

import msgspec

from durably.client.engine import Engine
from durably.core.moment import micros
from durably.errors import DurablyError, StoreUnavailable
from durably.stores.operations.sweep import bury, close_session, describe_session, open_session
from durably.stores.protocol import Store
from durably.worker.options import WorkerOptions
from durably.worker.session import Pulse, Session

log = logging.getLogger("durably.tenure")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Beating(Protocol):
    """A heartbeat: the thread in production, something on the loop in a simulation."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


MakeHeartbeat = Callable[[Store, Session, float, Pulse, Callable[[], float], Callable[[], None]], Beating]


class Tenure:
    """One session after the other: a lost one is never revived, a new one begins."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        names: list[str],
        make_heartbeat: MakeHeartbeat,
        on_lost: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._options = options
        self._names = names
        self._make_heartbeat = make_heartbeat
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._beating: Beating | None = None
        self._session: Session | None = None
        self._stuck = 0
        self.pulse = Pulse(engine.clock.monotonic())
        self.lost = asyncio.Event()
        """Set when the session is no longer live."""

    @property
    def session(self) -> Session:
        """The session that is held now."""
        assert self._session is not None
        return self._session

    @property
    def session_id(self) -> str | None:
        """Its id, while one is held."""
        return None if self._session is None else self._session.id

    async def begin(self, stopping: asyncio.Event, *, beating: bool = True) -> None:
        """Open a session. With a heartbeat, a store that is away is waited for, with growing patience."""
        pause = FIRST_PAUSE
        session_id = self._engine.ids.session()
        while True:
            session = Session(session_id, self._options.lease, self._engine.clock.monotonic())
            op = open_session(session.id, micros(session.lease), socket.gethostname(), os.getpid(), self._described())
            try:
                if await self._engine.store.arun(op):
                    session.opened(self._engine.clock.monotonic())
                    break
                session_id = self._engine.ids.session()
            except StoreUnavailable as error:
                if stopping.is_set() or not beating:
                    raise
                log.warning("waiting for the store: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        self._session = session
        self.lost.clear()
        if beating:
            now = self._engine.clock.monotonic
            self._beating = self._make_heartbeat(
                self._engine.store, session, self._options.heartbeat, self.pulse, now, lambda: self._tell_loop(session)
            )
            self._beating.start()

    async def renew(self, stopping: asyncio.Event) -> None:
        """Give up the lost session and begin a new one."""
        self.session.lost = True
        self._stop_beating()
        await self.begin(stopping)

    async def end(self) -> None:
        """Close the session of one's own will."""
        self._stop_beating()
        if self._session is not None and not self._session.lost:
            with contextlib.suppress(DurablyError):
                await self._engine.store.arun(close_session(self._session.id))
                await self._engine.store.arun(bury())
        self._session = None

    async def tell_stuck(self, stuck: int) -> None:
        """Let the session say how many of its slots are stuck."""
        if stuck != self._stuck:
            self._stuck = stuck
            with contextlib.suppress(DurablyError):
                await self._engine.store.arun(describe_session(self.session.id, self._described()))

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.stop()

    def _tell_loop(self, session: Session) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note_lost, session)

    def _note_lost(self, session: Session) -> None:
        """The news may be late: what was lost may not be the session that is held now."""
        if session is self._session:
            self.lost.set()
            self._on_lost()

    def _described(self) -> str:
        told = {
            "queues": self._options.queues,
            "names": self._names,
            "concurrency": self._options.concurrency,
            "lease": self._options.lease,
            "stuck": self._stuck,
        }
        return msgspec.json.encode(told).decode()
