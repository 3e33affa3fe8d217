"""Running ahead: the followers of a key's head, which begin one after the other, each after the success of the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from durably.core.moment import micros
from durably.core.task import Task
from durably.stores.operations.keys import Behind, Key


class Chain:
    """The tasks of one key that this worker has leased together."""

    __slots__ = ("_since", "claimed_at", "ids", "key", "token", "waiting")

    def __init__(self, head: Task, followers: Sequence[Task], now: int, since: float) -> None:
        self.claimed_at = now
        self._since = since
        self.key = (head.queue, head.key or "")
        self.token = head.token
        """Of the lease that all of them have in common."""
        self.waiting = deque(followers)
        """Those who have not begun."""
        self.ids = [head.id, *[task.id for task in followers]]
        """Those who have not begun, or have begun and their ends are not committed yet, in their order."""

    def now(self, time: float) -> int:
        """The store's time at a moment of the loop, by what it was at the claim. Only who may expire wants to know."""
        return self.claimed_at + micros(time - self._since)


class Chains:
    """Every chain of a worker, by the tasks in it."""

    def __init__(self) -> None:
        self.members: dict[str, Chain] = {}
        """Whoever has not begun, or has begun and its end is not committed yet."""

    def begin(self, heads: Iterable[Task], behind: Behind, now: int, since: float) -> None:
        """Remember who follows whom."""
        for head in heads:
            if followers := behind.get(head.id):
                chain = Chain(head, followers, now, since)
                if not self.members.keys().isdisjoint(chain.ids):
                    for task in chain.ids:
                        self._leave(task)
                self.members.update(dict.fromkeys(chain.ids, chain))

    def of(self, tasks: Iterable[str]) -> set[Chain]:
        """The chains of these tasks."""
        found = set(map(self.members.get, tasks))
        found.discard(None)
        return cast(set[Chain], found)

    def going(self, chains: Iterable[Chain]) -> dict[Key, list[str]]:
        """Those in these chains who run, or will, or whose reports are not committed yet, in their order."""
        return {chain.key: [*chain.ids] for chain in chains}

    def settled(self, tasks: Iterable[Task]) -> None:
        """The ends of these were committed; what was reported of an earlier lease says nothing about this one."""
        members = self.members
        for task in tasks:
            chain = members.get(task.id)
            if chain is not None and chain.token == task.token:
                del members[task.id]
                chain.ids.remove(task.id)

    def drop(self, chain: Chain) -> None:
        """End a chain, and forget those who have not begun."""
        for task in chain.waiting:
            self._leave(task.id)
        chain.waiting.clear()

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Those who were asked to stop before their turn came will not begin."""
        for chain in self.of(reasons):
            chain.waiting = deque(
                msgspec.structs.replace(task, cancel=reasons.get(task.id, task.cancel)) for task in chain.waiting
            )

    def _leave(self, task: str) -> None:
        """Whoever is in a chain is so no more."""
        chain = self.members.pop(task, None)
        if chain is not None:
            chain.ids.remove(task)

    def clear(self) -> None:
        """Forget all of them."""
        for chain in self.of(self.members):
            chain.ids.clear()
        self.members.clear()

    def waiting(self) -> Iterator[str]:
        """Those who have not begun."""
        return (task.id for chain in set(self.members.values()) for task in chain.waiting)
