"""How much is tried: a seeded sample, or everything with `--exhaustive` (or DURABLY_EXHAUSTIVE=1)."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run every schedule of every pair of operations")


def wants_everything(config: pytest.Config) -> bool:
    """The option is known only when this folder is named on the command line; the variable always is."""
    return bool(config.getoption("exhaustive", False)) or os.environ.get("DURABLY_EXHAUSTIVE") == "1"


@pytest.fixture
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """Whether to run every schedule."""
    return wants_everything(pytestconfig)


@pytest.fixture
def seed() -> int:
    """What the sample grows from."""
    return int(os.environ.get("DURABLY_SEED", "1"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many schedules were run of each world; where all were run, or with -vv, of each pair too."""
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
        if wants_everything(config) or config.get_verbosity() > 0:
            for title, count in pairs.items():
                terminalreporter.write_line(f"  {count:5} {title}")
