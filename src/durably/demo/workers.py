"""The demo's workers: real processes, started by the command that everyone uses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from durably.app import Durably
from durably.core.explain import SessionFacts
from durably.demo.ledger import Entry, in_flight, read
from durably.errors import DurablyError

T = TypeVar("T")

LEASE = 3
PATIENCE = 60.0
COMMAND = (
    *("-m", "durably", "worker"),
    *("--lease", f"{LEASE}s", "--concurrency", "40", "--grace", "10s", "--log-text"),
)
SHOP = "durably.demo.app:app"


class Silent(DurablyError):
    """What the demo waited for did not happen."""


@contextmanager
def running(
    count: int, app: Durably, log: IO[bytes], *, release: int = 1, serving: str = SHOP
) -> Iterator[list[SessionFacts]]:
    """Start so many workers and wait until they live; at the end they are asked to stop, and waited for."""
    before = {session.id for session in app.sessions.list()}
    environment = {**os.environ, "DURABLY_DEMO_RELEASE": str(release)}
    processes = [
        subprocess.Popen([sys.executable, *COMMAND, serving], env=environment, stdin=subprocess.DEVNULL, stderr=log)
        for _ in range(count)
    ]
    try:
        yield wait_until(lambda: _started(processes, new_sessions(app, before)))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _started(processes: list[subprocess.Popen[bytes]], sessions: list[SessionFacts]) -> list[SessionFacts] | None:
    """The workers' sessions, once there is one for each."""
    for process in processes:
        if process.poll() is not None:
            raise Silent(f"a worker left with exit code {process.returncode} instead of working")
    return sessions if len(sessions) == len(processes) else None


def new_sessions(app: Durably, before: set[str]) -> list[SessionFacts]:
    """The live workers whose sessions are not among those."""
    return [session for session in app.sessions.list() if session.state == "live" and session.id not in before]


def wait_until(ask: Callable[[], T | None]) -> T:
    """Ask until there is an answer."""
    deadline = time.monotonic() + PATIENCE
    while (answer := ask()) is None:
        if time.monotonic() > deadline:
            raise Silent(f"something that should have happened has not happened within {PATIENCE:.0f} s")
        time.sleep(0.02)
    return answer


def kill_in_the_middle(victim: int, ledger: Path) -> list[Entry]:
    """SIGKILL a process while handlers run in it; which those were. If none run, it is left alone.

    It is frozen for the look at the ledger, so that what is seen is what the kill interrupts.
    """
    os.kill(victim, signal.SIGSTOP)
    interrupted = in_flight(read(ledger), victim)
    if not interrupted:
        os.kill(victim, signal.SIGCONT)
        return []
    os.kill(victim, signal.SIGKILL)
    return interrupted


def kill_the_sender(sessions: list[SessionFacts], ask: Callable[[], int | None]) -> int:
    """SIGKILL the worker whose process id is answered, once it is; a process that is none of the workers is spared."""
    victim = wait_until(ask)
    if victim not in {session.pid for session in sessions}:
        raise Silent(f"process {victim} sends what is watched, and is none of the workers")
    os.kill(victim, signal.SIGKILL)
    return victim
