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

SELDOM = 16

Start = Callable[[list[Task], int], None]


class Relay:
    """Takes the next task of a key from the commit that freed it, as long as the worker wants more.

    A slot whose keyed task is done stays promised to its key until the commit, unless that has not paid lately.
    """

    def __init__(
        self,
        store: Store,
        claims: Claims,
        queues: Sequence[str],
        names: Collection[str],
        session: Callable[[], str],
        spare: Callable[[], int | None],
        start: Start,
    ) -> None:
        self._store = store
        self._claims = claims
        self._queues = queues
        self._names = names
        self._session = session
        self._spare = spare
        self._start = start
        self._declined = 0
        self.went: set[Key] = set()
        """The keys that went on with the last commit."""

    @property
    def pays(self) -> bool:
        """Whether it is worth a try: after one in vain, only now and then."""
        return self._declined % SELDOM == 0

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Commit the changes; what they let this worker do next has begun when it returns."""
        self.went.clear()
        room = sum(map(frees_a_key, changes))
        spare = self._spare()
        if not room:
            return await self._store.arun(commit(changes))
        if spare is None or not self.pays:
            self._declined += 1
            return await self._store.arun(commit(changes))
        onward = Onward(self._session(), self._queues, self._names, room, spare)
        try:
            async with self._claims.leasing():
                committed = await self._store.arun(commit_and_go_on(changes, onward))
        except StoreUnavailable:
            self._claims.doubt()
            raise
        tasks = [] if committed.went is None else committed.went.tasks
        self._declined = 0 if tasks else self._declined + 1
        if committed.went is not None:
            self.went.update((task.queue, task.key or "") for task in tasks)
            self._start(tasks, committed.went.now)
        return committed.verdicts


def frees_a_key(change: Change) -> bool:
    """Whether the next task of its key may begin."""
    return change.state is State.DONE and change.task.key is not None
