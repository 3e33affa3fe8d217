"""Prints which kind of connection passed which scenario of tests/test_within.py, as a table at the end of the run."""

from __future__ import annotations

import pytest

CELL = "within"
outcomes: dict[tuple[str, str], str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == CELL and (report.when == "call" or report.outcome != "passed"):
            kind, scenario = str(value).split("|")
            outcomes[kind, scenario] = report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not outcomes:
        return
    kinds = list(dict.fromkeys(kind for kind, _ in outcomes))
    scenarios = list(dict.fromkeys(scenario for _, scenario in outcomes))
    first = max(map(len, kinds))
    terminalreporter.section("a task within the caller's transaction")
    terminalreporter.write_line("  ".join([" " * first, *scenarios]))
    for kind in kinds:
        cells = [outcomes.get((kind, scenario), "empty").ljust(len(scenario)) for scenario in scenarios]
        terminalreporter.write_line("  ".join([kind.ljust(first), *cells]).rstrip())
