"""What the type checker knows about tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SNIPPET = """
from durably import Durably

app = Durably("sqlite://")

@app.task(queue="billing")
async def charge(order: str, cents: int) -> str:
    return order

@app.task
def plain(number: int) -> bytes:
    return b""

reveal_type(charge.enqueue("o-1", 5).result())
reveal_type(plain.using(key="k").call(3))
charge.enqueue("o-1", "five")
charge.using(priority=3).enqueue("o-1")
plain.call(number="x")
charge.using(colour="red")
charge.using(priority="high")
"""


def test_the_type_checker_knows_a_wrong_argument(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "snippet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    told = [line.partition(": ")[2] for line in done.stdout.splitlines()]

    assert told[0] == 'note: Revealed type is "str"'
    assert told[1] == 'note: Revealed type is "durably.client.definition.Call[bytes]"'
    assert [line[:7] for line in told].count("error: ") == 5
    for number, wrong in ((16, '"str"; expected "int"'), (17, "missing"), (18, '"str"; expected "int"')):
        [line] = [
            line for line in done.stdout.splitlines() if line.startswith(f"snippet.py:{number}:") and "error" in line
        ]
        assert wrong.lower() in line.lower()
