"""What the sample of interleavings grows from, and how large it was; `python -m tests.isolation` runs all."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seed() -> int:
    """What the sample grows from."""
    return int(os.environ.get("DURABLY_SEED", "1"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many schedules were run of each world; with -v, of each pair too."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    told = [(report.nodeid, dict(report.user_properties)) for report in reports if hasattr(report, "user_properties")]
    counts = [(node, properties["schedules"]) for node, properties in told if "schedules" in properties]
    if not counts:
        return
    terminalreporter.section("schedules")
    for node, pairs in counts:
        each = sorted(pairs.values())
        terminalreporter.write_line(
            f"{node.rpartition('::')[2]}: {sum(each)} schedules of {len(each)} pairs, {each[0]} to {each[-1]} each"
        )
        if config.get_verbosity() > 0:
            for title, count in pairs.items():
                terminalreporter.write_line(f"  {count:5} {title}")
