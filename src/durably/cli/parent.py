"""The process above the worker: starts another when one crashes or asks to be replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec

from durably.cli.child import LEAVE, RECYCLED, STOP, Signals

log = logging.getLogger("durably.parent")

MISUSED = 2
STEADY = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
PATIENCE = 10.0
LAST_PATIENCE = 2.0


def keep_running(command: list[str], grace: float) -> int:
    """Run the command, again and again if need be, until a signal says that it is enough; the exit code."""
    return asyncio.run(Parent(command, grace).run())


def next_pause(lived: float, pause: float) -> float:
    """How long to wait before the next process: longer each time that one dies soon after its start."""
    return 0.0 if lived >= STEADY else min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)


def died(code: int) -> str:
    """How a process ended, in words."""
    if code == RECYCLED:
        return "asked to be replaced, since too many of its slots are stuck"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"


class Parent:
    """Keeps one worker process running, and passes on the signals that it gets itself."""

    def __init__(self, command: list[str], grace: float) -> None:
        self._command = command
        self._grace = grace
        self._signals = Signals()
        self._latest = 0
        self._stopping = asyncio.Event()
        self._control: int | None = None
        self._child: Process | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        pause = 0.0
        while not self._signals.count:
            began = loop.time()
            code = await self._run_one()
            if self._signals.count:
                return self._exit_code(code)
            if code == MISUSED:
                return MISUSED
            pause = next_pause(loop.time() - began, pause)
            told = f"another starts in {pause:g} s" if pause else "another starts"
            log.warning("the worker process %s; %s", died(code), told)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        return 0

    async def _run_one(self) -> int:
        """Start a process and wait for its end.

        It is in a process group of its own, so that Ctrl-C reaches it through us only, and once.
        """
        theirs, self._control = os.pipe()
        try:
            self._child = await create_subprocess_exec(
                *self._command, "--control", str(theirs), pass_fds=(theirs,), process_group=0, stdin=DEVNULL
            )
            os.close(theirs)
            return await self._child.wait()
        finally:
            self._child = None
            os.close(self._control)
            self._control = None

    def _signalled(self, number: int) -> None:
        """The first signal stops the worker gracefully, the second at once; who does not listen is killed."""
        loop = asyncio.get_running_loop()
        first = self._signals.heard(loop.time()) == 1
        self._latest = number
        self._stopping.set()
        with contextlib.suppress(BrokenPipeError):
            if self._control is not None:
                os.write(self._control, STOP if first else LEAVE)
        loop.call_later(self._grace + PATIENCE if first else LAST_PATIENCE, self._kill)

    def _kill(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    def _exit_code(self, code: int) -> int:
        if self._signals.count > 1:
            return 128 + self._latest
        return 0 if code in (0, RECYCLED) else 1
