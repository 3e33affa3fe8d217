"""Running ahead: who follows whom, and what a commit says about it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from durably.core.change import Applied
from durably.core.lifecycle import complete
from durably.core.task import Task
from durably.stores.operations.commit import Committed
from durably.stores.statement import Operation
from durably.worker.chains import Chains
from durably.worker.relay import Relay
from tests.unit.core.facts import a_task


def test_a_report_of_an_earlier_lease_does_not_settle_the_head_of_a_chain() -> None:
    head, follower = (a_task(id=name, key="k", token=13) for name in ("head", "follower"))
    chains = Chains()
    chains.begin([head], {"head": [follower]}, now=0, since=0.0)

    chains.settled([msgspec.structs.replace(head, token=11)])
    assert [*chains.going(chains.of(["head"])).values()] == [["head", "follower"]]

    chains.settled([head])
    assert chains.going(chains.of(["head"])) == {}
    assert [*chains.going(chains.of(["follower"])).values()] == [["follower"]]


def test_whoever_is_not_to_begin_any_more_does_not_go_on() -> None:
    head, follower = (a_task(id=name, key="k", token=13) for name in ("head", "follower"))
    chains = Chains()
    chains.begin([head], {"head": [follower]}, now=0, since=0.0)
    [chain] = chains.of(["head"])

    chains.drop(chain)
    assert chains.going([chain]) == {chain.key: ["head"]}

    chains.clear()
    assert chains.going([chain]) == {chain.key: []}
    assert not chains.members


def test_a_task_that_is_leased_again_leaves_the_chain_that_it_was_in() -> None:
    head, follower = (a_task(id=name, key="k", token=13) for name in ("head", "follower"))
    other = a_task(id="other", key="k", token=15)
    chains = Chains()
    chains.begin([head], {"head": [follower]}, now=0, since=0.0)
    [before] = chains.of(["head"])

    chains.begin([msgspec.structs.replace(follower, token=15)], {"follower": [other]}, now=0, since=0.0)
    assert chains.going([before]) == {before.key: ["head"]}
    assert [*chains.going(chains.of(["follower"])).values()] == [["follower", "other"]]


@pytest.mark.parametrize("place", [b"here", None])
async def test_a_key_that_has_not_come_to_its_last_task_needs_nobody_to_look_at_it(place: bytes | None) -> None:
    names = ("first", "second", "third")
    tasks = [a_task(id=name, queue="q", key="k", session="s", token=13, place=place) for name in names]
    chains = Chains()
    chains.begin(tasks[:1], {"first": tasks[1:]}, now=0, since=0.0)

    async def looked(*done: Task) -> bool:
        changes = [complete(task, None) for task in done]
        nudges: list[None] = []
        answer = Committed([Applied(change) for change in changes], whole=place is not None)
        await relayed(chains, answer, lambda: nudges.append(None)).commit(changes)
        return bool(nudges)

    assert not await looked(*tasks[:2])
    assert await looked(tasks[2])


def relayed(chains: Chains, answer: Committed, nudge: Callable[[], None]) -> Relay:
    """A relay whose store answers that, whatever it is asked."""

    @contextlib.asynccontextmanager
    async def leasing() -> AsyncIterator[None]:
        yield

    async def arun(op: Operation[Any]) -> Committed | Sequence[Any]:
        return answer if op.name == "commit_and_go_on" else answer.verdicts

    store: Any = SimpleNamespace(arun=arun)
    claims: Any = SimpleNamespace(leasing=leasing)
    return Relay(store, claims, ["q"], {"work"}, lambda: "one", lambda: None, lambda _: None, nudge, chains, 10)
