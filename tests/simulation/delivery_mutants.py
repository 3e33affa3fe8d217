"""Deliveries with one rule broken each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from durably.core.delivery import Destination, Done, Kind, Outcome, Rules, settle
from durably.core.task import Draft
from durably.deliveries import dispatch, register
from durably.deliveries.deliveries import Deliveries
from durably.stores.operations import deliver
from durably.stores.operations.accept import accepted
from durably.stores.protocol import Store
from durably.stores.statement import Queries, Steps
from durably.testing.simulation.scenario import Scenario
from durably.worker.context import Context
from tests.simulation.mutants import mutant


def _posts(scenario: Scenario) -> bool:
    return bool(scenario.peers)


def _replies(*replies: str) -> Any:
    def concerned(scenario: Scenario) -> bool:
        return any(manner.reply in replies for peer in scenario.peers for manner in peer.manners)

    return concerned


@mutant("an answer that never came leaves no mark", "mark", _replies("takes silently"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "leave", lambda self, details: None)


@mutant("a crash in the middle of a delivery leaves no mark", "mark", _posts)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(store: Store, task: Context) -> bool:
        return False

    monkeypatch.setattr(dispatch, "may_have_arrived", never)


@mutant("no answer counts as delivered", "does not have it", _replies("is silent"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(rules: Rules, condition: Any, outcome: Outcome, *rest: Any) -> Any:
        return (Done(), condition) if outcome.kind is Kind.UNKNOWN else settle(rules, condition, outcome, *rest)

    monkeypatch.setattr(register, "settle", trusting)


@mutant("what must keep its order has no key", "arrived before", _posts)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = Deliveries._drafting

    def without_keys(self: Deliveries, message: Any, on_dead: str | None) -> Any:
        draft = drafting(self, message, on_dead)

        def one(destination: Destination) -> Draft:
            return msgspec.structs.replace(draft(destination), key=None, policy=None)

        return one

    monkeypatch.setattr(Deliveries, "_drafting", without_keys)


@mutant("a publication leaves somebody out", "nobody brings it", _posts)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(q: Queries, drafts: list[Draft], again: bool, fresh: bool) -> Steps[Any]:
        return (yield from accepted(q, drafts[1:] or drafts, again, fresh))

    monkeypatch.setattr(deliver, "accepted", some)
