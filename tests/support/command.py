"""Running the command `durably` in a test: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from durably.cli import main

SOURCE = Path(__file__).parent.parent.parent / "src"
SAFETY = 120
"""Seconds after which a process that should have ended is given up; no test depends on it."""


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


Durably = Callable[..., Ran]


def in_process(capsys: pytest.CaptureFixture[str]) -> Durably:
    """The command, run here; misuse that argparse finds is an exit code as well."""

    def durably(*arguments: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        return Ran(code, *capsys.readouterr())

    return durably


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command as a process, in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "durably", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **options.pop("env", {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(folder: Path, *arguments: str) -> Ran:
    """The command as a process, to its end."""
    with start(folder, *arguments) as process:
        out, err = process.communicate(timeout=SAFETY)
    return Ran(process.returncode, out, err)
