"""Committing results, and going on at once with the next task of a key whose head was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from durably.core.change import Change, Verdict
from durably.core.task import State, Task
from durably.errors import StoreUnavailable
from durably.stores.operations.commit import commit, commit_and_go_on
from durably.stores.operations.keys import Key, Onward
from durably.stores.protocol import Store
from durably.worker.claims import Claims

Start = Callable[[list[Task], int], None]


class Relay:
    """Takes the next task of a key from the commit that freed it, as long as the worker has room and wants more."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        queues: Sequence[str],
        names: Collection[str],
        session: Callable[[], str],
        room: Callable[[], int],
        start: Start,
        freed: Callable[[], None],
    ) -> None:
        self._store = store
        self._claims = claims
        self._queues = queues
        self._names = names
        self._session = session
        self._room = room
        self._start = start
        self._freed = freed
        self.promised = 0
        """Slots that a commit in flight may fill."""
        self.went: set[Key] = set()
        """The keys that went on with the last commit."""

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Commit the changes; what they let this worker do next has begun when it returns."""
        self.went.clear()
        room = self._room() if any(map(_frees_a_key, changes)) else 0
        if room < 1:
            return await self._store.arun(commit(changes))
        onward = Onward(self._session(), self._queues, self._names, room)
        self.promised = room
        try:
            async with self._claims.settled:
                committed = await self._store.arun(commit_and_go_on(changes, onward))
        except StoreUnavailable:
            self._claims.doubt()
            raise
        finally:
            self.promised = 0
            self._freed()
        if committed.went is not None:
            self.went.update((task.queue, task.key or "") for task in committed.went.tasks)
            self._start(committed.went.tasks, committed.went.now)
        return committed.verdicts


def _frees_a_key(change: Change) -> bool:
    return change.state is State.DONE and change.task.key is not None
