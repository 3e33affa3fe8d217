"""The task as data: what is kept of it, what travels with it, and failures as text that every store takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from durably import BadOption
from durably.core.change import Applied, Change, Stale
from durably.core.explain import Evidence, KeyFacts, SessionFacts, Why
from durably.core.limits import Allowance, Gate
from durably.core.options import Settings, Unique
from durably.core.retry import Retry
from durably.core.task import (
    Attempt,
    AttemptRow,
    Draft,
    Failure,
    Options,
    Policy,
    Scope,
    State,
    Task,
    clean,
    full_queue,
    pack_options,
    restore,
    split_queue,
    unpack_options,
)

from .facts import a_task


def test_the_words_that_stores_keep_do_not_change() -> None:
    assert [str(state) for state in State] == ["delayed", "ready", "blocked", "leased", "done", "dead", "cancelled"]
    assert [str(policy) for policy in Policy] == ["block", "overtake", "pause"]
    assert [str(scope) for scope in Scope] == ["waiting", "live", "period", "forever"]


@pytest.mark.parametrize("state", list(State))
def test_three_states_are_ends(state: State) -> None:
    ends = state in (State.DONE, State.DEAD, State.CANCELLED)

    assert a_task(state=state).ended is ends
    assert a_task(state=state.value).ended is ends
    assert Change(a_task(), state, 1, 0).ends is ends


@pytest.mark.parametrize(
    "kind",
    [
        *(Task, Draft, Failure, Attempt, AttemptRow, Options, Retry, Change, Applied, Stale, Gate, Allowance),
        *(Settings, Unique, KeyFacts, SessionFacts, Evidence, Why),
    ],
)
def test_facts_cannot_be_changed(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen


def test_what_is_left_out_means_the_plain_case() -> None:
    assert Draft("i", "n", "q", b"p") == Draft(
        "i", "n", "q", b"p", 5, 0, None, None, None, None, None, None, False, None, None, None, None, None
    )
    assert Change(a_task(), State.READY, 1, 0) == Change(
        a_task(), State.READY, 1, 0, False, 0, False, False, None, None, None, None, (), None, 0
    )
    assert Failure("k", "m") == Failure("k", "m", "", False, 0.0)
    assert Options() == Options(None, None, None, 3, None, None)
    assert (a_task().limited, a_task().finished_at, a_task().reason, a_task().result) == (False, None, None, None)
    assert Attempt(1, "failed", Failure("k", "m"), None, 7).started_ago == 0


def test_default_options_take_no_room_and_others_only_what_differs() -> None:
    assert pack_options(Options()) is None
    assert unpack_options(None) == Options()
    assert pack_options(Options(crash_cap=5)) == b'{"crash_cap":5}'
    retry = Retry.after(1, 2, permanent=(KeyError,))
    assert pack_options(Options(retry=retry)) == (
        b'{"retry":{"kind":"after","attempts":3,"delays":[1.0,2.0],"permanent":["builtins.KeyError"]}}'
    )


def test_options_come_back_as_they_went() -> None:
    options = Options(Retry.exponential(5, 2, 3, 90, 0.1), 1.5, 60.0, 4, "tell", "shop/alarms")

    assert unpack_options(pack_options(options)) == options


def test_a_row_in_the_order_of_its_fields_is_a_task() -> None:
    assert restore(msgspec.structs.astuple(a_task())) == a_task()


def test_a_queue_has_a_plain_name_in_the_default_namespace_only() -> None:
    assert full_queue("default", "billing") == "billing"
    assert full_queue("shop", "billing") == "shop/billing"
    assert split_queue("billing") == ("default", "billing")
    assert split_queue("shop/billing") == ("shop", "billing")
    assert a_task(queue="shop/billing").namespace == "shop"
    assert a_task(queue="billing").namespace == "default"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Opaque(Exception):
    """An exception that cannot even be formatted."""

    @property
    def __cause__(self) -> Any:
        raise RuntimeError("no")

    @__cause__.setter
    def __cause__(self, value: Any) -> None: ...


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_failure_says_what_was_raised_and_where() -> None:
    failure = Failure.of(raised(ValueError("no such card")), permanent=True, retry_after=5.0)

    assert (failure.kind, failure.message) == ("ValueError", "no such card")
    assert (failure.permanent, failure.retry_after) == (True, 5.0)
    assert failure.trace.startswith("Traceback")
    assert failure.trace.endswith("raise error\nValueError: no such card\n")
    assert (Failure.of(ValueError()).permanent, Failure.of(ValueError()).retry_after) == (False, 0.0)
    assert [Failure.of(ValueError(), certain=certain).certain for certain in (True, False)] == [True, False]
    assert Failure.of(ValueError()).certain


def test_a_failure_names_the_module_of_an_exception_that_is_not_built_in() -> None:
    assert Failure.of(Unprintable()).kind == f"{__name__}.Unprintable"


def test_an_exception_that_cannot_be_printed_is_a_failure_too() -> None:
    failure = Failure.of(raised(Unprintable()))

    assert failure.message == "(the exception could not be turned into text)"
    assert "in raised" in failure.trace


def test_an_exception_whose_trace_cannot_be_made_is_a_failure_too() -> None:
    assert Failure.of(Opaque("why")) == Failure(f"{__name__}.Opaque", "why", "")


def test_the_parts_of_a_failure_are_cut_each_at_its_own_length() -> None:
    long = type("E" * 300, (Exception,), {"__module__": "builtins"})
    failure = Failure.of(raised(long("m" * 30_000)))

    assert "[... 100 characters left out ...]" in failure.kind
    assert "[... 28000 characters left out ...]" in failure.message
    assert len(failure.trace.partition("\n[... ")[0]) == len(failure.trace.rpartition("...]\n")[2]) == 10_000


def test_a_trace_may_have_20_000_characters() -> None:
    head = len("ValueError: \n")

    assert len(Failure.of(ValueError("m" * (20_000 - head))).trace) == 20_000
    assert "[... 1 characters left out ...]" in Failure.of(ValueError("m" * (20_001 - head))).trace


def test_text_is_cleaned_of_what_a_database_refuses() -> None:
    assert clean("a\0b\ud800c", 10) == "a\ufffdb?c"


def test_long_text_loses_its_middle() -> None:
    assert clean("x" * 10, 10) == "x" * 10
    assert clean("abcdefghijk", 10) == "abcde\n[... 1 characters left out ...]\nghijk"


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(BadOption) as refused:
        clean(5, 10)  # type: ignore[arg-type]
    assert str(refused.value) == "5 must be text"


def test_a_task_is_the_same_wherever_it_was_found() -> None:
    task = Task(**msgspec.structs.asdict(a_task(place="(1,2)")))
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"place": "(7,1)"}, True),
        ({}, True),
        ({"version": 9}, False),
        ({"finished_at": 2}, False),
    ]
    for other, same in cases:
        moved = msgspec.structs.replace(task, **other)
        assert (task == moved) is same
        assert (task != moved) is not same
    assert (task == "task") is False
    assert (task != "task") is True
    with pytest.raises(TypeError):
        hash(task)
