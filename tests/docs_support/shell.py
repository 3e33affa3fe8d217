"""A reader at a terminal: writes the files, types the commands, and opens more terminals where the page says so."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.docs_support.expected import compare, plain
from tests.docs_support.markdown import ROOT, Block

SAFETY = 60.0
"""Seconds until output that should have come is given up; nothing depends on it but a failing test."""
SKIPPED = ("python3 -m venv ", ". .venv/bin/activate", "pip install ")
"""What the tests' own environment stands in for."""


class Terminal:
    """A process on a terminal of its own; what it writes is collected as it comes."""

    def __init__(self, script: str, folder: Path, env: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        self._file = ours
        self._pieces: list[bytes] = []
        self._arrived = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, shown: str) -> dict[str, str]:
        """Wait until the output that the page shows has come."""
        with self._arrived:
            met = self._arrived.wait_for(lambda: compare(shown, self.output) is not None, SAFETY)
            ids = compare(shown, self.output)
        assert met, f"this did not come:\n{shown}\nbut this:\n{self.output}"
        assert ids is not None
        return ids

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for an end without complaint."""
        os.killpg(self._process.pid, signal.SIGINT)
        assert self._process.wait(SAFETY) == 0, self.output

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        os.close(self._file)

    @property
    def output(self) -> str:
        return plain(b"".join(self._pieces).decode("utf-8", "replace"))

    def _read(self) -> None:
        # Linux answers with an error instead of an end once nobody has the other side open.
        with contextlib.suppress(OSError):
            while piece := os.read(self._file, 65536):
                with self._arrived:
                    self._pieces.append(piece)
                    self._arrived.notify_all()


class Reader:
    """Does what a page says, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self._home = self._folder = folder
        self._tools = folder / ".tools"
        self._tools.mkdir()
        command = self._tools / "durably"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m durably "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join([str(self._tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
        # The tutorial's own tests need none of the plugins that ours need.
        self._env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for name in ("DURABLY_STORE", "DURABLY_SECRETS_KEY"):
            self._env.pop(name, None)
        self._terminals: dict[str, Terminal] = {}
        self._ids: dict[str, str] = {}
        self._output = ""
        self._again: Callable[[], str] | None = None
        self.skipped: list[str] = []

    def follow(self, block: Block) -> None:
        """Do one step of the page."""
        word, _, rest = block.marker.partition(" ")
        match word:
            case "write":
                (self._folder / rest).write_text(block.code, "utf-8")
            case "append":
                with (self._folder / rest).open("a", encoding="utf-8") as file:
                    file.write(f"\n{block.code}")
            case "run":
                self._output, self._again = self._run(block.code), None
            case "look":
                script = block.code
                self._output, self._again = self._run(script), lambda: self._run(script)
            case "output":
                self._ids |= self._compared(block.code)
            case "start":
                self._terminals[rest] = Terminal(self._script(block.code), self._home, self._env)
            case "terminal":
                self._ids |= self._terminals[rest].wait_for(block.code)
            case "stop":
                self._terminals[rest].interrupt()
                self._terminals.pop(rest).close()
            case _:
                raise AssertionError(f"line {block.line}: what does {block.marker!r} mean?")

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def _compared(self, shown: str) -> dict[str, str]:
        """Compare the last output; a look is repeated until it shows what the page shows."""
        deadline = time.monotonic() + SAFETY
        while (ids := compare(shown, self._output)) is None:
            told = f"this did not come:\n{shown}\nbut this:\n{self._output}"
            assert self._again is not None, told
            assert time.monotonic() < deadline, told
            self._output = self._again()
        return ids

    def _run(self, script: str) -> str:
        """Run a script, and stay in the folder and with the variables that it ends in."""
        state = self._tools / "state"
        ran = subprocess.run(
            ["bash", "-ec", f"{self._script(script)}\n{{ pwd; echo; env -0; }} > '{state}'"],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SAFETY,
        )
        assert ran.returncode == 0, f"{script}\n{ran.stdout}"
        folder, variables = state.read_text("utf-8").split("\n\n", 1)
        self._folder = Path(folder)
        self._env = dict(pair.split("=", 1) for pair in variables.split("\0") if pair)
        return ran.stdout

    def _script(self, code: str) -> str:
        """The commands with the ids that came instead of those that are shown, without what is skipped."""
        kept = []
        for line in code.splitlines():
            if line.startswith(SKIPPED):
                self.skipped.append(line)
                continue
            for shown, real in self._ids.items():
                line = line.replace(shown, real)
            kept.append(line)
        return "\n".join(kept)
