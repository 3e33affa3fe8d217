"""How hard to look: a fixed sample, or as many stories as `--model-examples` or DURABLY_MODEL_EXAMPLES says."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--model-examples", type=int, help="how many stories each store goes through beside its model")


@pytest.fixture
def examples(pytestconfig: pytest.Config) -> int | None:
    """How many stories to tell, if someone said so. The option is known only when this folder is named."""
    told = pytestconfig.getoption("model_examples", None) or os.environ.get("DURABLY_MODEL_EXAMPLES")
    return None if told is None else int(told)


@pytest.fixture
def seed() -> int:
    """What the stories grow from."""
    return int(os.environ.get("DURABLY_SEED", "1"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many stories it took to find each of the broken variants."""
    reports = [report for report in terminalreporter.getreports("passed") if hasattr(report, "user_properties")]
    told = [value for report in reports for name, value in report.user_properties if name == "caught"]
    if told:
        terminalreporter.section("broken variants that the model caught")
        for what, stories in told:
            terminalreporter.write_line(f"caught after {stories:3} examples: {what}")
