"""What every story has: acts on a screen, a ledger to be compared with, and a verdict."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import IO

from durably.app import Durably
from durably.core.explain import SessionFacts
from durably.core.task import ENDS
from durably.demo.audit import Check
from durably.demo.files import Place, on_database
from durably.demo.ledger import Ledger
from durably.demo.screen import INDENT, WIDTH, Screen
from durably.demo.workers import Silent, new_sessions, wait_until
from durably.errors import DurablyError


class Tale(ABC):
    """A story about one application."""

    title: str
    writers: str
    """Who writes the ledger."""
    last_act: int

    def __init__(self, app: Durably, ledger: Ledger, place: Place, screen: Screen, log: IO[bytes]) -> None:
        self._app = app
        self._ledger = ledger
        self._place = place
        self._screen = screen
        self._log = log

    @abstractmethod
    def play(self) -> None:
        """Every act but the last one."""

    @abstractmethod
    def checks(self) -> Iterable[Check]:
        """What must hold when it is over."""

    @abstractmethod
    def commands(self) -> Iterable[str]:
        """What to look at afterwards."""

    def tell(self) -> bool:
        """All of it; whether everything held."""
        began = time.monotonic()
        self._screen.heading(self.title)
        self._app.migrate()
        try:
            self.play()
        finally:
            self._ledger.close()
        passed = self.compare(time.monotonic() - began)
        self._screen.heading(f"The database stays: {self._place.database}. Look around:")
        for command in self.commands():
            self._screen.shell(command)
        return passed

    def compare(self, took: float) -> bool:
        """What the engine says against the ledger that it never saw."""
        self._screen.heading(f"{self.last_act}  Compare with a ledger that the engine never saw")
        lines = self._place.ledger.read_bytes().count(b"\n")
        self._screen.say(f"{self._place.ledger}: {lines:,} lines, written by {self.writers}.")
        checks = list(self.checks())
        for check in checks:
            self._screen.check(check.passed, check.text)
        passed = all(check.passed for check in checks)
        told = "Everything held" if passed else "This must not happen: not everything held"
        self._screen.verdict(passed, f"{told}. It took {took:.0f} s.")
        return passed

    def _on_database(self, *commands: str) -> list[str]:
        return [on_database(self._place.database, command) for command in commands]

    def _greet(self, sessions: list[SessionFacts]) -> None:
        self._screen.say(f"Two worker processes start: {' and '.join(str(session.pid) for session in sessions)}.")

    def _counts(self) -> Counter[str]:
        """How many tasks are in which state."""
        counts: Counter[str] = Counter()
        for queue in self._app.queues.list():
            counts.update(queue.counts)
        return counts

    def _left(self) -> int:
        """How many tasks have not come to their end."""
        return sum(count for state, count in self._counts().items() if state not in ENDS)

    def _why(self, task: str) -> None:
        self._screen.shell(f"$ durably why {task}")
        self._screen.say(self._app.why(task).sentence, indent=INDENT)

    def _run(self, command: str) -> None:
        """Show a command and what it prints."""
        self._screen.shell(f"$ durably {command}")
        ran = subprocess.run(
            [sys.executable, "-m", "durably", *command.split(), "--store", str(self._place.database)],
            env={**os.environ, "COLUMNS": str(WIDTH - INDENT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            raise Silent(f"`durably {command}` left with exit code {ran.returncode}: {ran.stderr.strip()}")
        self._screen.output(ran.stdout)

    def _await_another(self, known: set[str], progress: Callable[[], object]) -> None:
        """Wait for a worker whose session is not among those that were known."""

        def started() -> list[SessionFacts] | None:
            progress()
            return new_sessions(self._app, known) or None

        [fresh, *_] = wait_until(started)
        self._screen.say(f"Its parent process has started another one: {fresh.pid}.")


def told(place: Place, app: Durably, story: Callable[[Screen, IO[bytes]], Tale]) -> int:
    """Tell a story; the exit code is 0 if everything that was promised held."""
    screen = Screen()
    with (
        tempfile.NamedTemporaryFile(prefix="durably-demo-", suffix=".log") as log,
        open(log.fileno(), "w", closefd=False) as own,
    ):
        # What is logged here belongs to what the workers say, and not on the screen.
        logging.getLogger("durably").addHandler(logging.StreamHandler(own))
        try:
            if story(screen, log).tell():
                return 0
        except DurablyError as error:
            screen.verdict(False, f"The demo could not go on: {error}")
        finally:
            app.close()
        kept = place.ledger.with_suffix(".log")
        shutil.copyfile(log.name, kept)
    screen.say(f"What the workers said is in {kept}, the ledger in {place.ledger}.")
    return 1
