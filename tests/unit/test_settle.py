"""Ending tasks of keys in order: all of them or none, and what neither is must not stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from durably.core.change import Change
from durably.core.lifecycle import complete, fail
from durably.core.retry import Retry
from durably.core.task import Failure, Task
from durably.stores.operations.keys import Key
from durably.stores.operations.settle import InOrder, ends_of_keys, finish_in_order
from durably.stores.postgres.pieces import dialect
from durably.stores.statement import Otherwise, Rows, Statement, Steps, load
from tests.unit.core.facts import a_task

HEAD, SECOND, THIRD = (
    a_task(id=name, key="k", token=7, session="s", place=b"here") for name in ("head", "second", "third")
)
KEY = ("billing", "k")
GOING = {KEY: ["head", "second", "third"]}

Going = Mapping[Key, Sequence[str]]


def finished(changes: Sequence[Change], going: Going) -> Steps[InOrder]:
    """What ends these, while the worker goes on with those."""
    ends = ends_of_keys(changes)
    assert ends is not None
    return finish_in_order(load(dialect("durably")), changes, ends, going)


def told(changes: Sequence[Change], going: Going, *answers: Rows) -> tuple[list[Statement], InOrder]:
    """Which statements it makes when the store answers this, and what comes of them."""
    steps = finished(changes, going)
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
    made, ended = told(done(HEAD, SECOND), GOING, [(2,)], [])

    assert named(made) == ["finish_keyed_tasks", "advance_keys"]
    assert made[1].args == (["billing"], ["k"], ["third"], [None], ["head"])
    assert ended.last == {}


@pytest.mark.parametrize(
    "odd",
    [
        done(replace(SECOND, place=None)),
        done(replace(SECOND, token=8)),
        done(replace(SECOND, session="t")),
        done(replace(SECOND, limited=True)),
        done(replace(SECOND, key=None)),
        [replace(*done(SECOND), keep_for=1)],
        [fail(SECOND, Failure("Odd", "it broke"), Retry.never(), 0.0)],
    ],
)
def test_what_cannot_be_written_together_in_order_is_no_end_of_keys(odd: list[Change]) -> None:
    assert ends_of_keys(done(HEAD, SECOND)) == {KEY: done(HEAD, SECOND)}
    assert ends_of_keys([*done(HEAD), *odd]) is None


def test_a_key_whose_last_one_has_ended_is_passed_on() -> None:
    changes = done(HEAD, SECOND, THIRD)
    made, ended = told(changes, GOING, [(3,)])

    assert named(made) == ["finish_keyed_tasks"]
    assert ended.last == {KEY: changes[2]}


@pytest.mark.parametrize(
    ("changes", "going", "head", "followers"),
    [
        (done(HEAD), {}, "head", None),
        (done(HEAD, SECOND), {}, "head", "second"),
        (done(HEAD), GOING, "head", "second,third"),
        (done(HEAD, SECOND, THIRD), GOING, "head", "second,third"),
    ],
)
def test_the_key_row_must_name_just_those_whom_the_worker_believes_to_have(
    changes: list[Change], going: Going, head: str, followers: str | None
) -> None:
    assert next(finished(changes, going)).args[9:] == (["billing"], ["k"], [7], [head], [followers], 1)


@pytest.mark.parametrize(
    ("changes", "going"),
    [
        (done(HEAD, THIRD), GOING),
        (done(SECOND), GOING),
        (done(HEAD), {KEY: ["second"]}),
        (done(HEAD, SECOND), {KEY: ["head"]}),
        (done(HEAD, HEAD), GOING),
    ],
)
def test_those_who_are_not_the_first_of_whom_the_worker_goes_on_with_are_written_otherwise(
    changes: list[Change], going: Going
) -> None:
    with pytest.raises(Otherwise, match="finish_keyed_tasks"):
        next(finished(changes, going))


def test_key_rows_are_locked_in_one_order_and_tasks_told_in_the_order_of_their_arrival() -> None:
    tasks = [replace(HEAD, id=f"{key}{seq}", key=key, seq=seq) for key, seq in (("b", 2), ("a", 3), ("c", 1))]
    statement = next(finished(done(*tasks), {}))

    assert statement.args[0] == ["c1", "b2", "a3"]
    assert statement.args[10] == ["a", "b", "c"]
    assert statement.args[12] == ["a3", "b2", "c1"]


@pytest.mark.parametrize("ended", [0, 1])
def test_what_ended_in_part_or_not_at_all_is_taken_back_and_tried_again(ended: int) -> None:
    with pytest.raises(Otherwise, match="finish_keyed_tasks"):
        told(done(HEAD, SECOND), GOING, [(ended,)])
