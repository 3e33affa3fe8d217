"""Charts hide nothing, however long a name is and however close two lines come."""

from __future__ import annotations

import re

from bench.charts import LETTER, LINE, Bar, Point, bars, lines


def places(chart: str, kind: str) -> dict[str, tuple[float, float]]:
    """Where each text of this kind is."""
    found = re.findall(rf'<text class="{kind}" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', chart)
    return {text: (float(x), float(y)) for x, y, text in found}


def test_a_long_label_has_the_room_that_it_needs() -> None:
    label = "commit: whatever was changed becomes arrays"
    chart = bars("Title", "unit", [Bar(label, 1.0, "ours", ""), Bar("short", 2.0, "peer", "")])

    right, _ = places(chart, "text")[label]
    assert right - LETTER * len(label) >= 0


def test_names_of_lines_that_end_together_are_one_below_the_other() -> None:
    series = [[Point(10, 100.0), Point(100, value)] for value in (100.0, 99.0, 100.5)]
    found = places(lines("Title", "unit", series, ["a", "b", "c"]), "text")

    heights = [found[name][1] for name in "cab"]
    assert heights == sorted(heights)
    assert min(heights[1] - heights[0], heights[2] - heights[1]) >= LINE


def test_lines_can_be_told_apart() -> None:
    series = [[Point(10, 100.0), Point(100, value)] for value in (100.0, 50.0)]
    assert re.findall(r'polyline class="([a-z ]+)"', lines("Title", "unit", series, ["a", "b"])) == [
        "path",
        "path other",
    ]
