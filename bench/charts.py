"""Charts as SVG, written by hand; they are legible on light and on dark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log10
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 720
LABEL = 190
"""Where the bars begin, unless a label needs more."""
LETTER = 7.8
"""What a letter of a wide font needs."""
ROW = 30
TOP = 56
LINE = 17
"""What a line of text needs."""
VALUE = 150
"""What the text behind the longest bar needs."""

STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 13px; }
  .paper { fill: #ffffff; } .text { fill: #1f2328; } .faint { fill: #59636e; } .line { stroke: #d1d9e0; }
  .ours { fill: #0969da; } .peer { fill: #8c959f; } .ceiling { fill: #d4a72c; } .path { stroke: #0969da; }
  .path.other { stroke: #d4a72c; } .ours.other { fill: #d4a72c; }
  .title { font-size: 15px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .text { fill: #f0f6fc; } .faint { fill: #9198a1; } .line { stroke: #3d444d; }
    .ours { fill: #4493f8; } .peer { fill: #656c76; } .ceiling { fill: #9e6a03; } .path { stroke: #4493f8; }
    .path.other { stroke: #9e6a03; } .ours.other { fill: #9e6a03; }
  }
"""


class Bar(NamedTuple):
    """One contender."""

    label: str
    value: float
    kind: str
    """ours, peer or ceiling."""
    ratio: str


class Point(NamedTuple):
    """One size, and the rate there."""

    size: int
    value: float


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars in the given order, each with its figure and its ratio."""
    longest = max(row.value for row in rows)
    left = max(LABEL, 10 + LETTER * max(len(row.label) for row in rows))
    parts = [_text(16, 26, title, "text title"), _text(16, 44, unit, "faint")]
    for number, row in enumerate(rows):
        y = TOP + number * ROW
        length = max(2.0, (WIDTH - left - VALUE) * row.value / longest)
        parts += [
            _text(left - 10, y + 17, row.label, "text", "end"),
            f'<rect class="{row.kind}" x="{left:.0f}" y="{y + 3}" width="{length:.1f}" height="{ROW - 10}" rx="3"/>',
            _text(left + length + 8, y + 17, " · ".join(filter(None, [figure(row.value), row.ratio])), "faint"),
        ]
    return _svg(TOP + len(rows) * ROW + 10, parts, title)


def lines(title: str, unit: str, series: Sequence[Sequence[Point]], names: Sequence[str]) -> str:
    """Rates over sizes, with a logarithmic axis of sizes, and rates from zero."""
    left, right, top, bottom = 80, WIDTH - 120, 64, 300
    points = [point for one in series for point in one]
    low, high = log10(min(point.size for point in points)), log10(max(point.size for point in points))
    most = _round_up(max(point.value for point in points))

    def x(size: int) -> float:
        return left + (right - left) * (log10(size) - low) / max(high - low, 1e-9)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / most

    parts = [_text(16, 26, title, "text title"), _text(16, 44, unit, "faint")]
    for step in range(5):
        value = most * step / 4
        parts += [
            f'<line class="line" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>',
            _text(left - 8, y(value) + 4, figure(value), "faint", "end"),
        ]
    for size in sorted({point.size for point in points}):
        parts.append(_text(x(size), bottom + 20, f"{size:,}", "faint", "middle"))
    ends = _apart([y(one[-1].value) for one in series])
    for place, (one, name, end) in enumerate(zip(series, names, ends, strict=True)):
        other = " other" if place % 2 else ""
        path = " ".join(f"{x(point.size):.1f},{y(point.value):.1f}" for point in one)
        parts.append(f'<polyline class="path{other}" fill="none" stroke-width="2.5" points="{path}"/>')
        parts += [f'<circle class="ours{other}" cx="{x(p.size):.1f}" cy="{y(p.value):.1f}" r="4"/>' for p in one]
        parts.append(_text(x(one[-1].size) + 10, end + 4, name, "text"))
    return _svg(bottom + 40, parts, title)


def _apart(places: Sequence[float]) -> list[float]:
    """The same places from top to bottom, but no text over another."""
    found = list(places)
    order = sorted(range(len(places)), key=lambda number: places[number])
    for upper, lower in pairwise(order):
        found[lower] = max(found[lower], found[upper] + LINE)
    return found


def figure(value: float) -> str:
    """A number as people read it: no more digits than it deserves."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _round_up(value: float) -> float:
    unit = 10 ** int(log10(value))
    return float(ceil(value / unit) * unit)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    paper = f'<rect class="paper" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
    return "\n".join(
        [opening, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", paper, *parts, "</svg>", ""]
    )
