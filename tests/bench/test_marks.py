"""The bench notices a task that was lost, and one that ran twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from durably.bench.marks import Marks, Ran, insist, tally
from durably.bench.process import Failed
from durably.bench.protocol import handler


def test_tasks_that_ran_once_are_in_order() -> None:
    ran = tally([b"\1\0\1", b"\0\1\0"])

    assert ran == Ran(3, [], [])
    insist(ran)


def test_a_lost_task_is_noticed() -> None:
    with pytest.raises(Failed, match="1 tasks never ran, the first is number 1"):
        insist(tally([b"\1\0\1"]))


def test_a_doubled_task_is_noticed_even_across_workers() -> None:
    with pytest.raises(Failed, match="1 tasks ran more than once, the first is number 2"):
        insist(tally([b"\1\0\1", b"\0\1\1"]))


def test_a_handler_marks_what_the_parent_sees(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 2, 4)
    first, second = (handler(str(path), 4) for path in marks.paths)
    first(0)
    first(2)
    second(3)

    assert marks.counts(range(4)) == [2, 1]
    assert marks.ran(range(4)).never == [1]
    marks.close()
