"""The report: everything as JSON, tables as Markdown with the ratios first, and charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.charts import Bar, Point, bars, figure, lines
from bench.contenders import OURS
from bench.measurements import Measurement, measurements
from bench.stage import SETTINGS
from bench.targets import spread

STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
CHARTED = ("enqueue", "bulk", "drain-1", "drain-2", "latency")
DETAILS = {
    "p99": ("p99 ms", 1.0),
    "load": ("tasks/s", 1.0),
    "silent": ("without notification /s", 1.0),
    "free": ("before /s", 1.0),
    "plain": ("plain tasks/s", 1.0),
    "alone": ("one by one /s", 1.0),
    "worker_cpu": ("worker µs/task", 1.0),
    "server_cpu": ("server µs/task", 1.0),
    "log": ("log bytes/task", 1.0),
    "memory": ("peak MiB", 2.0**20),
}
"""The other values of a measurement: the heading of their column, and what they are divided by."""

Outcome = dict[str, Any]


def write(folder: Path, outcome: Outcome) -> None:
    """Write results.json, README.md and the charts into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if not old.name.startswith("anatomy."):
            old.unlink()
    (folder / "results.json").write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    for name, chart in charts(outcome):
        (folder / name).write_text(chart, "utf-8")
    (folder / "README.md").write_text("\n".join(page(outcome)) + "\n", "utf-8")


def charts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The name and the text of every chart."""
    for measurement in _measured(outcome):
        found = _known(outcome, measurement)
        if measurement.kind in CHARTED and OURS in found and len(found) > 1:
            rows = [
                Bar(name, one["median"][measurement.value], one["kind"], _ratio(measurement, found, name))
                for name, one in _ranked(measurement, found)
            ]
            title = f"{STORES[measurement.side]}: {measurement.title.lower()}"
            unit = f"{_unit(measurement)} · how many times as good Durably is"
            yield f"{measurement.name}.svg", bars(title, unit, rows)
    if growing := _growth(outcome):
        title = "Drain with ever more tasks in the table"
        yield "growth.svg", lines(title, "tasks/s by tasks in the table", list(growing.values()), list(growing))


def page(outcome: Outcome) -> Iterator[str]:
    """The lines of README.md."""
    yield "# Benchmarks"
    yield ""
    yield from _preface(outcome)
    yield from _targets(outcome["targets"])
    for side, store in STORES.items():
        here = [one for one in _measured(outcome) if one.side == side and one.kind != "growth"]
        if here:
            yield f"## {store}"
            yield ""
        for measurement in here:
            yield from _section(outcome, measurement)
    yield from _growth_section(outcome)
    yield from _circumstances(outcome)


def _preface(outcome: Outcome) -> Iterator[str]:
    how = (
        "`make bench ARGS=--quick`, one short round"
        if outcome["quick"]
        else "`make bench`, medians of three rounds (of one, where a run takes minutes)"
    )
    yield f"Written by {how}; [measure](../how-to/measure.md) says how, and how to measure your own store."
    yield "Figures hold for one machine on one day: compare ratios. A ratio above 1 means that Durably is better."
    yield "A target is judged by the median of single turns, in which both sides are measured one after the other."
    yield ""


def _targets(targets: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Targets"
    yield ""
    rows = [
        [
            one["target"],
            "" if one["ratio"] is None else f"{one['ratio']:.2f}",
            spread(one["turns"]),
            one["bound"],
            one["verdict"],
        ]
        for one in targets
    ]
    yield from _table(["target", "ratio", "its turns", "wanted", "verdict"], rows)


def _section(outcome: Outcome, measurement: Measurement) -> Iterator[str]:
    yield f"### {STORES[measurement.side]}: {measurement.title[0].lower()}{measurement.title[1:]}"
    yield ""
    everyone = outcome["measurements"][measurement.name]
    found = _known(outcome, measurement)
    if measurement.kind in CHARTED and OURS in found and len(found) > 1:
        yield f"![{measurement.title}]({measurement.name}.svg)"
        yield ""
    details = [name for name in DETAILS if any(name in one["median"] for one in found.values())]
    rows = []
    for name, one in _ranked(measurement, found):
        shown = [figure(one["median"][key] / DETAILS[key][1]) if key in one["median"] else "" for key in details]
        rows.append(
            [_named(name, one), _ratio(measurement, found, name), figure(one["median"][measurement.value]), *shown]
        )
    headings = ["", "Durably is", _unit(measurement), *(DETAILS[key][0] for key in details)]
    if rows:
        yield from _table(headings, rows)
    for name, one in everyone.items():
        if "error" in one:
            yield f"- {name} failed: {one['error']}"
            yield ""


def _growth_section(outcome: Outcome) -> Iterator[str]:
    growing = _growth(outcome)
    if not growing:
        return
    yield "## Growth"
    yield ""
    yield "![Drain with ever more tasks in the table](growth.svg)"
    yield ""
    rows = []
    for store, points in growing.items():
        medians = outcome["measurements"][f"{_side(store)}.growth"][OURS]["median"]
        for point in points:
            memory = medians.get(f"memory {point.size}", 0) / 2**20
            rows.append(
                [store, f"{point.size:,}", f"{point.value / points[0].value:.2f}", figure(point.value), f"{memory:.0f}"]
            )
    yield from _table(["store", "tasks in the table", "of the first", "tasks/s", "worker's peak MiB"], rows)


def _circumstances(outcome: Outcome) -> Iterator[str]:
    yield "## Machine and versions"
    yield ""
    yield from _table(["", ""], [[name, text] for name, text in outcome["machine"].items()])
    settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    yield "PostgreSQL runs with fsync, synchronous_commit and full_page_writes on, SQLite with synchronous=FULL."
    yield f"Of PostgreSQL's other settings, these are not the default: {settings}."
    yield "Valkey, for the peers that need a broker, keeps nothing on disk."
    yield ""
    yield from _table(["", "version"], [[name, text] for name, text in outcome["versions"].items()])
    if outcome["refused"]:
        yield "Not measured:"
        yield ""
        yield from (f"- {name}: {reason}" for name, reason in outcome["refused"].items())
        yield ""


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
    yield ""


def _measured(outcome: Outcome) -> list[Measurement]:
    return [one for one in measurements() if one.name in outcome["measurements"]]


def _known(outcome: Outcome, measurement: Measurement) -> dict[str, dict[str, Any]]:
    everyone: dict[str, dict[str, Any]] = outcome["measurements"][measurement.name]
    return {name: one for name, one in everyone.items() if "median" in one}


def _ranked(measurement: Measurement, found: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The best first."""
    return sorted(found.items(), key=lambda one: one[1]["median"][measurement.value], reverse=measurement.unit != "ms")


def _ratio(measurement: Measurement, found: dict[str, dict[str, Any]], name: str) -> str:
    """How many times as good Durably is."""
    if name == OURS or OURS not in found:
        return ""
    ours, theirs = found[OURS]["median"][measurement.value], found[name]["median"][measurement.value]
    return f"{(theirs / ours if measurement.unit == 'ms' else ours / theirs):.2f}x"


def _named(name: str, one: dict[str, Any]) -> str:
    return {"ours": f"**{name}**", "ceiling": f"*{name}*"}.get(one["kind"], name)


def _unit(measurement: Measurement) -> str:
    return "p50 ms" if measurement.unit == "ms" else measurement.unit


def _growth(outcome: Outcome) -> dict[str, list[Point]]:
    found = {}
    for side, store in STORES.items():
        medians = outcome["measurements"].get(f"{side}.growth", {}).get(OURS, {}).get("median", {})
        sizes = sorted(int(name.split()[1]) for name in medians if name.startswith("rate "))
        if len(sizes) > 1:
            found[store] = [Point(size, medians[f"rate {size}"]) for size in sizes]
    return found


def _side(store: str) -> str:
    return next(side for side, name in STORES.items() if name == store)
