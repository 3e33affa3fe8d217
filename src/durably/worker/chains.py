"""Running ahead: the followers of a key's head, which begin one after the other, each after the success of the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from durably.core.moment import micros
from durably.core.task import Task
from durably.stores.operations.keys import Behind


class Chain:
    """The tasks of one key that this worker has leased together."""

    __slots__ = ("_now", "_since", "token", "unreported", "waiting")

    def __init__(self, head: Task, followers: Iterable[Task], now: int, since: float) -> None:
        self._now = now
        self._since = since
        self.token = head.token
        """Of the lease that all of them have in common."""
        self.waiting = deque(followers)
        self.unreported = {head.id}
        """Those that have begun and whose end is not committed yet."""

    def next(self) -> Task | None:
        """Whose turn it is now."""
        if not self.waiting:
            return None
        task = self.waiting.popleft()
        self.unreported.add(task.id)
        return task

    def now(self, since: float) -> int:
        """The store's time, by what it was at the claim and what has passed since."""
        return self._now + micros(since - self._since)


class Chains:
    """Every chain of a worker, by the tasks in it."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def __bool__(self) -> bool:
        return bool(self._chains)

    def begin(self, heads: Iterable[Task], behind: Behind, now: int, since: float) -> None:
        """Remember who follows whom."""
        for head in heads:
            if followers := behind.get(head.id):
                chain = Chain(head, followers, now, since)
                for task in (head, *followers):
                    self._chains[task.id] = chain

    def get(self, task_id: str) -> Chain | None:
        return self._chains.get(task_id)

    def goes_on(self, task_id: str) -> bool:
        """Whether somebody follows this one."""
        chain = self._chains.get(task_id)
        return chain is not None and bool(chain.waiting)

    def going(self, settling: Iterable[str]) -> set[str]:
        """Those who go on in the chains of these tasks, once their reports are committed."""
        found: set[str] = set()
        for chain in {chain for task_id in settling if (chain := self._chains.get(task_id)) is not None}:
            found.update(chain.unreported)
            found.update([task.id for task in chain.waiting])
        return found

    def settled(self, tasks: Iterable[Task]) -> None:
        """The ends of these were committed; what was reported of an earlier lease says nothing about this one."""
        for task in tasks:
            chain = self._chains.get(task.id)
            if chain is not None and chain.token == task.token:
                del self._chains[task.id]
                chain.unreported.discard(task.id)

    def drop(self, chain: Chain) -> None:
        """End a chain, and forget those who have not begun."""
        for task in chain.waiting:
            self._chains.pop(task.id, None)
        chain.waiting.clear()

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Those who were asked to stop before their turn came will not begin."""
        for chain in {chain for task_id in reasons if (chain := self._chains.get(task_id)) is not None}:
            chain.waiting = deque(
                msgspec.structs.replace(task, cancel=reasons.get(task.id, task.cancel)) for task in chain.waiting
            )

    def clear(self) -> None:
        self._chains.clear()

    def waiting(self) -> Iterator[str]:
        """Those who have not begun."""
        return (task.id for chain in set(self._chains.values()) for task in chain.waiting)
