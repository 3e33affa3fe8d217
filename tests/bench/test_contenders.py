"""A contender that fails is told, with its reason, and harms nobody else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.contenders import Entry
from bench.measurements import QUICK, Measurement, drains
from bench.run import measure, median
from bench.stage import Stage
from durably.bench.latency import spread
from durably.bench.process import Contender, Failed, complaint, told

SCRIPT = """
import sys
from durably.bench.protocol import handler, say, serve, wait_for_the_start
import signal, time

def prepare(url): say("prepared")
def bulk(url, count):
    say("begin")
    say("end", count=count)
def work(url, marks, size):
    mark = handler(marks, size)
    wait_for_the_start()
    for number in range(size):
        mark(number)
        if number == size // 2:
            time.sleep(0.1)
    {then}
    signal.pause()

serve({{"prepare": prepare, "bulk": bulk, "work": work}})
"""
DRAIN = Measurement("sqlite.drain-1", "Drain", "tasks/s", drains(1))


def entry(name: str, then: str) -> Entry:
    """A contender that marks every task once, and then does something else."""
    program = Contender(name, (sys.executable, "-c", SCRIPT.format(then=then)))
    return Entry(program, "sqlite", frozenset({"drain-1"}), store="sqlite")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as found:
        yield found


def test_the_one_that_fails_is_reported_and_the_other_measured(stage: Stage) -> None:
    honest, doubling = entry("honest", "pass"), entry("doubling", "mark(7)")
    results = measure(stage, [DRAIN], [honest, doubling], QUICK)["sqlite.drain-1"]

    assert results["honest"]["median"]["rate"] > 0
    assert results["doubling"]["error"] == "1 tasks ran more than once, the first is number 7"
    assert "median" not in results["doubling"]


def test_a_program_that_leaves_says_why() -> None:
    broken = Contender("broken", (sys.executable, "-c", "import no_such_module"))

    with pytest.raises(Failed, match=r"broken: prepare .*No module named 'no_such_module'"):
        told(broken, "prepare", "prepared", url="nowhere")


def test_a_complaint_names_no_path() -> None:
    assert complaint("File '/home/someone/bench/x.py'\nError: no /home/someone/x.db\nNode.js v20") == "Error: no x.db"
    assert complaint("") == "it gave no reason"


def test_nothing_is_left_on_disk() -> None:
    with Stage() as stage:
        folder = stage.folder
        with stage.place(entry("honest", "pass")) as place:
            used = Path(place.url.removeprefix("sqlite:///")).parent
            assert used.exists()
        assert not used.exists()

    assert not folder.exists()


def test_medians_and_percentiles() -> None:
    assert median([{"rate": 1.0}, {"rate": 5.0}, {"rate": 2.0}]) == {"rate": 2.0}
    assert spread([9.0] * 10 + [0.001] * 90) == (1.0, 1.0)
