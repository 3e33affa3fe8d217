"""A short soak on both stores: thousands of tasks survive everything that is done to them, and much was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.report import as_markdown
from tests.soak.run import soak

ROUNDS = 2
TASKS = 10_000
SEED = 7


@pytest.mark.parametrize(("store", "ahead"), [("sqlite", 1), ("postgres", 5)])
def test_nothing_is_lost_doubled_or_reordered_whatever_breaks(
    store: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = soak(
        store,
        tmp_path,
        SEED,
        ahead=ahead,
        enough=lambda stage, rounds: rounds >= ROUNDS and len(stage.accepted) >= TASKS,
    )

    with capsys.disabled():
        print(f"\n{as_markdown(report)}")
    assert report.violations == []
    # Whether a task kills its worker before something else does is a matter of luck in so short a time.
    assert [idle for idle in report.idle if not idle.startswith("poison")] == []
