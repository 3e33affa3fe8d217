"""Ending tasks of keys in order: all of them or none, and what neither is must not stand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from durably.core.change import Change
from durably.core.lifecycle import complete
from durably.stores.operations.settle import InOrder, Onward, finish_in_order
from durably.stores.postgres.store import dialect
from durably.stores.statement import Otherwise, Rows, load
from tests.unit.core.facts import a_task

HEAD, SECOND, THIRD = (
    a_task(id=name, key="k", token=7, session="s", place=b"here") for name in ("head", "second", "third")
)
ONWARD = Onward("s", ("billing",), {"charge"}, 0, going={"head", "second", "third"})


def told(changes: Sequence[Change], onward: Onward | None, *answers: Rows) -> tuple[list[str], InOrder | None]:
    """Which statements it makes when the store answers this, and what comes of them."""
    steps = finish_in_order(load(dialect("durably")), changes, onward)
    made = [next(steps).query.name]
    try:
        for answer in answers:
            made.append(steps.send(answer).query.name)
    except StopIteration as stop:
        return made, stop.value
    raise AssertionError(f"it wants more than {made}")


def row(state: str = "leased", token: int = 7, followers: str | None = "second,third") -> Rows:
    return [("billing", "k", state, token, "head", followers)]


def done(*tasks: object) -> list[Change]:
    return [complete(task, None) for task in tasks if isinstance(task, type(HEAD))]


def test_those_at_the_front_of_a_key_end_and_the_next_becomes_its_head() -> None:
    made, ended = told(done(HEAD, SECOND), ONWARD, row(), [(2,)], [])

    assert made == ["lock_keys", "finish_keyed_tasks", "advance_keys"]
    assert ended is not None
    assert ended.last == {}


def test_nothing_is_asked_about_those_of_whom_nobody_knows_where_they_are() -> None:
    lost = replace(SECOND, place=None)

    assert list(finish_in_order(load(dialect("durably")), done(HEAD, lost), ONWARD)) == []


def test_a_key_whose_last_one_has_ended_is_passed_on() -> None:
    changes = done(HEAD, SECOND, THIRD)
    made, ended = told(changes, ONWARD, row(), [(3,)])

    assert made == ["lock_keys", "finish_keyed_tasks"]
    assert ended is not None
    assert ended.last == {("billing", "k"): changes[2]}


@pytest.mark.parametrize(
    ("changes", "found", "onward"),
    [
        (done(SECOND), row(), ONWARD),
        (done(SECOND, HEAD), row(), ONWARD),
        (done(HEAD, THIRD), row(), ONWARD),
        (done(HEAD), row(token=8), ONWARD),
        (done(HEAD), row("ready"), ONWARD),
        (done(HEAD), [], ONWARD),
        (done(HEAD, SECOND), row(followers=None), ONWARD),
        (done(HEAD), row(), None),
        (done(HEAD), row(), Onward("s", ("billing",), {"charge"}, 0, going={"second"})),
    ],
)
def test_nothing_ends_that_is_not_what_the_key_row_says(
    changes: list[Change], found: Rows, onward: Onward | None
) -> None:
    assert told(changes, onward, found) == (["lock_keys"], None)


def test_nothing_ends_unless_all_of_them_do() -> None:
    assert told(done(HEAD, SECOND), ONWARD, row(), []) == (["lock_keys", "finish_keyed_tasks"], None)


def test_what_ended_in_part_is_taken_back_and_tried_again() -> None:
    with pytest.raises(Otherwise, match="finish_keyed_tasks"):
        told(done(HEAD, SECOND), ONWARD, row(), [(1,)])
