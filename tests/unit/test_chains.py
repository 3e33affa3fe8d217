"""Running ahead: who follows whom, and what a commit says about it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

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


async def test_a_key_that_has_not_come_to_its_last_task_needs_nobody_to_look_at_it() -> None:
    tasks = [a_task(id=name, queue="q", key="k", state="leased", token=13) for name in ("first", "second", "third")]
    chains = Chains()
    chains.begin(tasks[:1], {"first": tasks[1:]}, now=0, since=0.0)

    async def went(*done: Task) -> set[tuple[str, str]]:
        changes = [complete(task, None) for task in done]
        relay = relayed(chains, Committed([Applied(change) for change in changes]))
        await relay.commit(changes)
        return relay.went

    assert await went(*tasks[:2]) == {("q", "k")}
    assert await went(tasks[2]) == set()


def relayed(chains: Chains, answer: Committed) -> Relay:
    """A relay whose store answers that, whatever it is asked."""

    @contextlib.asynccontextmanager
    async def leasing() -> AsyncIterator[None]:
        yield

    async def arun(op: Operation[Any]) -> Committed | Sequence[Any]:
        return answer if op.name == "commit_and_go_on" else answer.verdicts

    store: Any = SimpleNamespace(arun=arun)
    claims: Any = SimpleNamespace(leasing=leasing)
    return Relay(store, claims, ["q"], {"work"}, lambda: "one", lambda: None, lambda _: None, lambda: None, chains, 10)
