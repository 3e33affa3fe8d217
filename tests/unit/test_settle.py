"""Ending tasks of keys in order: all of them or none, and what neither is must not stand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from durably.core.change import Change
from durably.core.lifecycle import complete
from durably.core.task import Task
from durably.stores.operations.settle import InOrder, Onward, finish_in_order
from durably.stores.postgres.pieces import dialect
from durably.stores.statement import Otherwise, Rows, Statement, load
from tests.unit.core.facts import a_task

HEAD, SECOND, THIRD = (
    a_task(id=name, key="k", token=7, session="s", place=b"here") for name in ("head", "second", "third")
)
KEY = ("billing", "k")
ONWARD = Onward("s", ("billing",), {"charge"}, 0, going={KEY: ["head", "second", "third"]})


def told(changes: Sequence[Change], onward: Onward | None, *answers: Rows) -> tuple[list[Statement], InOrder | None]:
    """Which statements it makes when the store answers this, and what comes of them."""
    steps = finish_in_order(load(dialect("durably")), changes, onward)
    made = [next(steps)]
    try:
        for answer in answers:
            made.append(steps.send(answer))
    except StopIteration as stop:
        return made, stop.value
    raise AssertionError(f"it wants more than {made}")


def named(made: Sequence[Statement]) -> list[str]:
    return [statement.query.name for statement in made]


def done(*tasks: Task) -> list[Change]:
    return [complete(task, None) for task in tasks]


def test_those_at_the_front_of_a_key_end_and_the_next_becomes_its_head() -> None:
    made, ended = told(done(HEAD, SECOND), ONWARD, [(2,)], [])

    assert named(made) == ["finish_keyed_tasks", "advance_keys"]
    assert made[1].args == (["billing"], ["k"], ["third"], [None], ["head"])
    assert ended is not None
    assert ended.last == {}


def test_nothing_is_asked_about_those_of_whom_nobody_knows_where_they_are() -> None:
    lost = replace(SECOND, place=None)

    assert list(finish_in_order(load(dialect("durably")), done(HEAD, lost), ONWARD)) == []


def test_nothing_is_asked_about_those_of_a_key_who_were_not_leased_together() -> None:
    later = replace(SECOND, token=8)

    assert list(finish_in_order(load(dialect("durably")), done(HEAD, later), ONWARD)) == []


def test_a_key_whose_last_one_has_ended_is_passed_on() -> None:
    changes = done(HEAD, SECOND, THIRD)
    made, ended = told(changes, ONWARD, [(3,)])

    assert named(made) == ["finish_keyed_tasks"]
    assert ended is not None
    assert ended.last == {KEY: changes[2]}


@pytest.mark.parametrize(
    ("changes", "onward", "head", "followers"),
    [
        (done(HEAD), None, "head", None),
        (done(HEAD, SECOND), None, "head", "second"),
        (done(HEAD), ONWARD, "head", "second,third"),
        (done(HEAD, SECOND, THIRD), ONWARD, "head", "second,third"),
        (done(HEAD, THIRD), ONWARD, "head", "third,second"),
        (done(SECOND), ONWARD, "second", "head,third"),
        (done(HEAD), Onward("s", ("billing",), {"charge"}, 0, going={KEY: ["second"]}), "head", "second"),
    ],
)
def test_the_key_row_must_name_just_those_whom_the_worker_believes_to_have(
    changes: list[Change], onward: Onward | None, head: str, followers: str | None
) -> None:
    steps = finish_in_order(load(dialect("durably")), changes, onward)

    assert next(steps).args[9:] == (["billing"], ["k"], [7], [head], [followers], 1)


def test_key_rows_are_locked_in_one_order_and_tasks_told_in_the_order_of_their_arrival() -> None:
    tasks = [replace(HEAD, id=f"{key}{seq}", key=key, seq=seq) for key, seq in (("b", 2), ("a", 3), ("c", 1))]
    statement = next(finish_in_order(load(dialect("durably")), done(*tasks), None))

    assert statement.args[0] == ["c1", "b2", "a3"]
    assert statement.args[10] == ["a", "b", "c"]
    assert statement.args[12] == ["a3", "b2", "c1"]


@pytest.mark.parametrize("ended", [0, 1])
def test_what_ended_in_part_or_not_at_all_is_taken_back_and_tried_again(ended: int) -> None:
    with pytest.raises(Otherwise, match="finish_keyed_tasks"):
        told(done(HEAD, SECOND), ONWARD, [(ended,)])
