"""The report tells a soak that broke nothing from one that did, and measures recovery from kill to begin."""

from __future__ import annotations

import pytest

from tests.soak.crew import LEASE
from tests.soak.faults import PEACE, Fault
from tests.soak.ledger import Line
from tests.soak.report import Report, as_markdown, drawn_up, percentile, recovery_times
from tests.soak.snapshot import Snapshot

EMPTY = Snapshot([], {}, set(), {}, [])


def began(task: str, at: float, attempt: int) -> Line:
    return Line("began", at, 1, task, task, "plain", attempt=attempt, token=attempt)


def report(store: str, lines: list[Line], faults: list[Fault], violations: tuple[str, ...] = ()) -> Report:
    return drawn_up(
        store=store,
        seed=1,
        seconds=60.0,
        lines=lines,
        faults=faults,
        snapshot=EMPTY,
        processes={},
        poisoned=1,
        violations=list(violations),
    )


def eventful() -> tuple[list[Line], list[Fault]]:
    """A soak in which everything happened once."""
    kinds = ["producer killed", "worker frozen", "disk full", "server crashed", "connections cut", "connections silent"]
    faults = [Fault(kind, 1.0, 2.0, count=1) for kind in [*kinds, "replies lost"]]
    faults.append(Fault("worker killed", 50.0, 50.0, (began("t", 49.0, 1),)))
    told = [Line(what, 52.0, 2, task="t") for what in ("crashed", "fenced")]
    return [Line("offered", 1.0, 3, "unanswered"), began("t", 49.0, 1), *told, began("t", 52.5, 2)], faults


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_soak_in_which_everything_happened_was_not_idle(store: str) -> None:
    assert report(store, *eventful()).idle == []


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("sqlite", "worker killed"),
        ("sqlite", "disk full"),
        ("postgres", "connections cut"),
        ("postgres", "connections silent"),
        ("postgres", "replies lost"),
        ("postgres", "server crashed"),
    ],
)
def test_a_fault_that_never_happened_is_missed(store: str, kind: str) -> None:
    lines, faults = eventful()

    idle = report(store, lines, [fault for fault in faults if fault.kind != kind]).idle

    assert [text.partition(":")[0] for text in idle] == [kind]


@pytest.mark.parametrize(
    ("what", "missed"), [("crashed", "worker killed"), ("fenced", "worker frozen"), ("offered", "producer killed")]
)
def test_a_fault_that_hit_nothing_is_missed(what: str, missed: str) -> None:
    lines, faults = eventful()

    idle = report("sqlite", [line for line in lines if line.what != what], faults).idle

    assert [text.partition(":")[0] for text in idle] == [missed]


def test_recovery_lasts_from_the_kill_to_the_next_begin() -> None:
    lines = [began("a", 9.0, 1), began("a", 12.5, 2), began("b", 9.0, 2), began("b", 13.0, 3)]
    kill = Fault("worker killed", 10.0, 10.0, (lines[0], lines[2]))

    assert recovery_times(lines, [kill]) == ([2.5], [])
    assert recovery_times(lines, [kill, Fault("connections cut", 10.0 + LEASE, 10.0 + LEASE)]) == ([], [2.5])
    assert recovery_times(lines, [kill, Fault("connections cut", 10.1 + PEACE, 10.1 + PEACE)]) == ([2.5], [])


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100)]

    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)


def test_the_report_shows_what_went_wrong() -> None:
    lines, faults = eventful()

    text = as_markdown(report("sqlite", lines, faults, ("a task is gone",)))

    assert "| violations | 1 |" in text
    assert "- a task is gone" in text
