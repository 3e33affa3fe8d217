"""Every example runs, twice in the same folder, and says what its text promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAID = {
    "quickstart": ["Hello Ada! This is attempt 1.", "is a dead letter", "durably dead replay"],
    "outbox_sqlite": ["rolled back: order-2 costs nothing", "done {'order': 'order-1'} order-1 is on its way"],
    "crash_everywhere": [
        "crashes made a difference:",
        "observed [1250, 1250] instead of [1250]",
        "Careful: 18 crashes, and none of them made a difference.",
    ],
    "web_lifespan": ["sent to ada@example.org"],
}


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_the_example_runs_and_can_be_run_again(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=120,
        )

        assert (ran.returncode, ran.stderr) == (0, "")
        for words in SAID[name]:
            assert words in ran.stdout


def test_the_order_that_rolled_back_leaves_no_task(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "outbox_sqlite.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert "{'order': 'order-2'}" not in ran.stdout
