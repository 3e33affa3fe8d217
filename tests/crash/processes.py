"""Worker processes of the crash tests: started, watched through their ledger, killed by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Stage:
    """A store, a ledger and the processes that share them."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self.ledger = folder / "ledger"
        self.logs = folder / "logs"
        self._environment = os.environ | {"DURABLY_STORE": store, "LEDGER": str(self.ledger)}

    @contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A Python process with the shop's surroundings; it does not outlive the block."""
        with open(self.logs, "ab") as logs:
            process = subprocess.Popen(
                [sys.executable, *command], env=self._environment, cwd=ROOT, stdout=logs, stderr=logs
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(60)
                    except subprocess.TimeoutExpired:
                        process.kill()
                process.wait()

    @contextmanager
    def worker(self, *options: str, parent: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """`durably worker` on the shop."""
        alone = () if parent else ("--no-parent",)
        command = ("-m", "durably", "worker", "tests.crash.shop:app", "--log-json", *alone, *options)
        with self.process(*command) as process:
            yield process

    def lines(self) -> list[list[str]]:
        """The ledger so far."""
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def until(self, done: Callable[[], bool], *watched: subprocess.Popen[bytes]) -> None:
        """Wait for something that processes bring about; their death or minutes of silence are an error."""
        deadline = time.monotonic() + 240
        while not done():
            for process in watched:
                assert process.poll() is None, f"a process ended with {process.returncode}:\n{self._tail()}"
            assert time.monotonic() < deadline, f"nothing came of it:\n{self._tail()}"
            time.sleep(0.02)

    def _tail(self) -> str:
        return "\n".join(self.logs.read_text(errors="replace").splitlines()[-30:]) if self.logs.exists() else ""
