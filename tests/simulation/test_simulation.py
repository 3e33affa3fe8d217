"""The production worker in virtual time: two hundred seeds of faults, one story for one seed, and it bites."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from durably.core import lifecycle
from durably.core.change import Change
from durably.core.task import Task
from durably.testing.simulation import run_seed

SEEDS = 200
WITHIN = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_nothing_goes_wrong_whatever_strikes(first: int) -> None:
    for seed in range(first, first + 20):
        outcome = run_seed(seed)
        assert not outcome.violations, f"python -m durably.testing.simulation --first {seed} --seeds 1"


def test_the_same_seed_tells_the_same_story_in_another_process() -> None:
    command = [sys.executable, "-m", "durably.testing.simulation", "--first", "5", "--seeds", "1", "--story"]
    stories = [
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": chance}, capture_output=True, text=True, check=True
        ).stdout
        for chance in ("1", "2")
    ]

    assert stories[0] == stories[1]
    assert stories[0].count("\n") > 50


def caught() -> int | None:
    """The first seed in which something goes wrong."""
    return next((seed for seed in range(WITHIN) if run_seed(seed).violations), None)


def test_a_crash_that_is_refunded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lifecycle.lapse

    def refunds(task: Task) -> Change:
        change = honest(task)
        return Change(task, change.state, 0, 0, due_in=change.due_in) if not change.ends else change

    monkeypatch.setattr("durably.worker.scanners.lapse", refunds)
    assert caught() is not None


def test_a_key_that_is_not_given_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(*_: object) -> object:
        return iter(())

    monkeypatch.setattr("durably.stores.operations.commit._give_back_keys", forgets)
    assert caught() is not None


def test_a_cancellation_that_is_ignored_at_the_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignores(task: Task, delay: float) -> Change:
        return lifecycle._waits(task, round(delay * 1_000_000), spent=max(task.spent - 1, 0))

    monkeypatch.setattr("durably.core.lifecycle.snooze", ignores)
    assert caught() is not None
