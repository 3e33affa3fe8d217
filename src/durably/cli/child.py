"""The process that runs the tasks: how it is told to stop, and how it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from durably.worker.interpreter import settle_in
from durably.worker.worker import Worker

log = logging.getLogger("durably.child")

RECYCLED = 75
STOP, LEAVE = b"s", b"l"
LAST_SECONDS = 2.0
ECHO = 0.1


class Signals:
    """Counts signals. What comes together with the first is its echo: `timeout` signals a process and its group."""

    def __init__(self) -> None:
        self.count = 0
        self._first = 0.0

    def heard(self, now: float) -> int:
        """One more; which number it has, an echo having that of the first."""
        if self.count == 0:
            self._first = now
        if self.count == 0 or now - self._first > ECHO:
            self.count += 1
        return self.count


def run(worker: Worker, control: int | None) -> int:
    """Serve until told to stop; the exit code.

    A parent speaks through the pipe `control`, so that a signal sent to the whole process group counts once. Without
    a parent the first signal stops the worker and the second ends the process.
    """
    settle_in(threaded=worker.threaded)
    return asyncio.run(_serve(worker, control))


async def _serve(worker: Worker, control: int | None) -> int:
    loop = asyncio.get_running_loop()

    def stop(why: str) -> None:
        log.info("%s: no new tasks are started, those that run may finish; a second signal ends them", why)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(worker.stop)

    _on_signals(stop, supervised=control is not None)
    if control is not None:
        threading.Thread(target=_obey, args=(control, stop), name="durably-control", daemon=True).start()
    code = 1
    try:
        await worker.run()
        code = RECYCLED if worker.recycled else 0
    finally:
        _leave_by_force_soon(code)
    return code


def _on_signals(stop: Callable[[str], None], *, supervised: bool) -> None:
    """Handlers of the interpreter, not of the loop: the second signal must work while a handler blocks the loop."""
    signals = Signals()

    def handle(number: int, frame: FrameType | None) -> None:
        if supervised or signals.heard(time.monotonic()) == 1:
            stop(signal.Signals(number).name)
        else:
            exit_now(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _obey(control: int, stop: Callable[[str], None]) -> None:
    """Do what the parent says; its silence at the end of the pipe means that it is gone."""
    while order := os.read(control, 1):
        if order == LEAVE:
            exit_now(1)
        stop("asked to stop")
    stop("the parent process is gone")


def _leave_by_force_soon(code: int) -> None:
    """An ordinary exit waits for threads; one that hangs must not keep the process alive."""
    timer = threading.Timer(LAST_SECONDS, exit_now, (code,))
    timer.daemon = True
    timer.start()


def exit_now(code: int) -> None:
    """End the process whatever its threads do; what was written is written out, if that can be done."""
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
