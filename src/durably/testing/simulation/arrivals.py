"""What must hold for deliveries once everything has come to rest: the peers tell what really arrived."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

import msgspec

from durably.deliveries.dispatch import Delivered
from durably.testing.simulation.ledger import Arrival, Ledger
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.snapshot import End, Remains, Snapshot
from durably.testing.simulation.trace import Trace

Complaints = Iterator[str]


class Arrivals:
    """The reckoning with the peers."""

    def __init__(
        self,
        scenario: Scenario,
        ledger: Ledger,
        replayed: Collection[str],
        trace: Trace,
        now: Snapshot,
        remains: Remains,
    ) -> None:
        self._ordered = {peer.name for peer in scenario.peers if (peer.order, peer.policy) == ("fifo", "block")}
        self._peers = [peer.name for peer in scenario.peers]
        self._ledger = ledger
        self._replayed = replayed
        self._trace = trace
        self._now = now
        self._deliveries = {task: (message, peer) for message, peer, task in remains.deliveries if peer in self._peers}

    def complaints(self) -> Complaints:
        """Everything that is wrong."""
        yield from self._promises()
        for task in self._deliveries:
            end = self._now.ends.get(task)
            if end is not None:
                yield from self._end(end)
        for peer in self._peers:
            if peer in self._ordered:
                yield from self._order(peer)

    def _of(self, task: str) -> list[Arrival]:
        return [one for one in self._ledger.arrivals if one.task == task]

    def _promises(self) -> Complaints:
        """What was accepted has one task for each peer."""
        for publication in self._ledger.publications:
            for peer, task in publication.tasks.items():
                known = task in self._now.ends or task in self._now.tasks
                if not known or self._deliveries.get(task) != (publication.message, peer):
                    yield f"letter {publication.number} was accepted, and nobody brings it to {peer}"

    def _end(self, end: End) -> Complaints:
        """What is done has arrived; what is not has a reason; a second copy came with a mark."""
        called, arrived = self._trace.called(end.id), self._of(end.id)
        if end.state == "done" and not arrived:
            yield f"{called} is done, and the peer does not have it"
        if end.state != "done" and not end.reason:
            yield f"{called} is {end.state} without a reason"
        if sum(not one.marked for one in arrived) > 1:
            yield f"{called} arrived {len(arrived)} times, and more than once without a mark"
        if len(arrived) > 1 and end.state == "done" and not _flagged(end):
            yield f"{called} arrived {len(arrived)} times, and its result does not say that this is possible"

    def _order(self, peer: str) -> Complaints:
        """Whatever was delivered in order arrived in the order in which it was accepted; a replay comes anew."""
        once = [task for task in self._ledger.accepted if task not in self._replayed]
        accepted = [task for task in once if self._deliveries.get(task, ("", ""))[1] == peer]
        done = [task for task in accepted if task in self._now.ends and self._now.ends[task].state == "done"]
        first = {task: min(one.at for one in self._of(task)) for task in done if self._of(task)}
        for one, other in pairwise(done):
            if one in first and other in first and first[one] > first[other]:
                yield f"{self._trace.called(other)} arrived before {self._trace.called(one)}"


def _flagged(end: End) -> bool:
    return end.result is not None and msgspec.json.decode(end.result, type=Delivered).possible_duplicate
