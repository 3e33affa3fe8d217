"""The report and its charts come from the stored results alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.report import write

SAMPLE = Path(__file__).parent / "sample.json"


@pytest.fixture
def outcome() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SAMPLE.read_text("utf-8"))
    return found


def test_the_page_shows_ratios_before_figures(outcome: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, outcome)
    page = (tmp_path / "README.md").read_text("utf-8")

    assert "| pgqueuer | 2.50x | 10,000 |" in page
    assert "| **durably** |  | 25,000 |" in page
    assert (
        "| PostgreSQL, drain with one process / pgqueuer | 2.50 | 2.40 to 2.60 | at least 3.5 | not reached |" in page
    )


def test_what_failed_is_told(outcome: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, outcome)
    page = (tmp_path / "README.md").read_text("utf-8")

    assert "- dbos failed: dbos: work left without 'ready'" in page
    assert "- celery: it does not install" in page


def test_every_chart_is_an_image_and_every_image_is_there(outcome: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, outcome)
    page = (tmp_path / "README.md").read_text("utf-8")
    charts = sorted(tmp_path.glob("*.svg"))

    assert [chart.name for chart in charts] == ["growth.svg", "postgres.drain-1.svg"]
    for chart in charts:
        assert ElementTree.fromstring(chart.read_text("utf-8")).tag.endswith("svg")
        assert f"]({chart.name})" in page


def test_the_results_are_kept_as_they_are(outcome: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, outcome)

    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == outcome
