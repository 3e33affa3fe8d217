"""Measured programs, from outside: start one, hear what it says and when, and see what it uses."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from durably.errors import DurablyError

PATIENCE = 120.0
FAREWELL = 30.0
"""Seconds that a program gets to leave once its input is closed."""
LONGEST = 300
"""Characters of a complaint that are kept."""
PATH = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+")


class Failed(DurablyError):
    """A measured program did not do what it was asked, or not as often as it should."""


@dataclass(frozen=True)
class Contender:
    """One program that can be measured."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it is told with every action."""


class Heard(NamedTuple):
    """One line of a program, and when it came."""

    moment: float
    facts: dict[str, Any]


class Program:
    """A running program. `with` ends it, and whatever it started."""

    def __init__(self, contender: Contender, action: str, parameters: Mapping[str, Any]) -> None:
        self._what = f"{contender.name}: {action}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the program
        self._process = subprocess.Popen(
            [*contender.command, action],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **contender.environment},
            start_new_session=True,
        )
        self._heard: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.write(json.dumps({**contender.parameters, **parameters}))

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if exc[0] is None:
                self.leave()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            # What it did not read before it left is nobody's any more.
            with contextlib.suppress(BrokenPipeError), self._process, self._errors:
                self._listener.join()

    def write(self, line: str) -> None:
        """Give it a line; if it has left, whoever expects something of it will hear so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def expect(self, event: str, patience: float = PATIENCE) -> Heard:
        """The next line, which must be this event."""
        try:
            heard = self._heard.get(timeout=patience)
        except queue.Empty:
            raise self.failure(f"did not say {event!r} within {patience:.0f} s") from None
        if heard is None:
            raise self.failure(f"left without {event!r}")
        if heard.facts.get("event") != event:
            raise self.failure(f"said {heard.facts} instead of {event!r}")
        return heard

    def check(self) -> None:
        """Raise if it has left."""
        if self._process.poll() is not None:
            raise self.failure("has left")

    def leave(self) -> None:
        """Close its input and wait until it has gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not leave within {FAREWELL:.0f} s") from None

    def failure(self, how: str) -> Failed:
        """What went wrong, with what the program complained about."""
        self._errors.seek(0)
        return Failed(f"{self._what} {how}: {complaint(self._errors.read().decode(errors='replace'))}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b'{"event"'):
                self._heard.put(Heard(time.monotonic(), json.loads(line)))
        self._heard.put(None)


def complaint(errors: str) -> str:
    """The line of an error output that says most: the last one that names an error, else the last; without paths."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    naming = [line for line in lines if "rror" in line]
    return PATH.sub("", [*lines, *naming][-1])[:LONGEST] if lines else "it gave no reason"


@contextlib.contextmanager
def started(contender: Contender, action: str, **parameters: Any) -> Iterator[Program]:
    """The program while it runs; what it says is up to the caller to hear."""
    with Program(contender, action, parameters) as program:
        yield program


def told(contender: Contender, action: str, event: str, **parameters: Any) -> dict[str, Any]:
    """Do one action and answer what it said."""
    with started(contender, action, **parameters) as program:
        return program.expect(event, PATIENCE * 10).facts


def clocked(contender: Contender, action: str, **parameters: Any) -> tuple[int, float]:
    """How many tasks an action handled, and in how many seconds."""
    with started(contender, action, **parameters) as program:
        began = program.expect("begin").moment
        ended = program.expect("end", PATIENCE * 10)
    return ended.facts["count"], ended.moment - began
