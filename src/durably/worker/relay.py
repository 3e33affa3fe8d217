"""Committing results, and going on at once with the next task of a key or a line whose last one was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from durably.core.change import Applied, Change, Stale, Verdict
from durably.core.task import State
from durably.errors import StoreUnavailable
from durably.stores.operations.commit import Committed, commit, commit_and_go_on, commit_plain
from durably.stores.operations.desk import Line
from durably.stores.operations.finish import are_plain_successes
from durably.stores.operations.handover import frees_a_place, places
from durably.stores.operations.keys import Key
from durably.stores.operations.settle import Ends, Onward, Went, ends_of_keys
from durably.stores.protocol import Store
from durably.worker.chains import Chain, Chains
from durably.worker.claims import Claims

SELDOM = 4


class Relay:
    """Takes the next task of a key or a line from the commit that freed it, as long as the worker wants more.

    A slot whose task is done stays promised to its key or line until the commit, unless that has not paid lately.
    """

    def __init__(
        self,
        store: Store,
        claims: Claims,
        queues: Sequence[str],
        names: Collection[str],
        session: Callable[[], str],
        spare: Callable[[], int | None],
        start: Callable[[Went], None],
        nudge: Callable[[], None],
        chains: Chains,
        ahead: int,
    ) -> None:
        self._store = store
        self._claims = claims
        self._queues = queues
        self._names = names
        self._session = session
        self._spare = spare
        self._start = start
        self._nudge = nudge
        self._chains = chains
        self._ahead = ahead
        self._declined = 0
        self.went: set[Key] = set()
        """The keys that went on with the last commit, or have not come to their last task."""
        self.handed_over: set[Line] = set()
        """The lines in which as many began with the last commit as had ended."""

    @property
    def pays(self) -> bool:
        """Whether it is worth a try: after one in vain, only now and then."""
        return self._declined % SELDOM == 0

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Commit the changes; what they let this worker do next has begun when it returns, or is looked for."""
        if are_plain_successes(changes):
            return await self._store.arun(commit_plain(changes))
        ends = ends_of_keys(changes)
        committed = await self._commit(changes, ends)
        verdicts = committed.verdicts
        if ends is not None and committed.whole:
            more = not self.went.issuperset(ends)
        else:
            more = self._let_begin([verdict.change for verdict in verdicts if isinstance(verdict, Applied)])
        if more:
            self._nudge()
        return verdicts

    async def _commit(self, changes: Sequence[Change], ends: Ends | None) -> Committed:
        self.went.clear()
        self.handed_over.clear()
        chains = self._chains
        touched = self._touched(changes, ends)
        going = chains.going(touched)
        lines = places(changes) if ends is None else Counter()
        room, spare = self._room(_keys(changes) if ends is None else len(ends), lines)
        if not room and not going:
            return Committed(await self._store.arun(commit(changes)))
        onward = Onward(self._session(), self._queues, self._names, room, spare, self._ahead, going)
        try:
            async with self._claims.leasing():
                committed = await self._store.arun(commit_and_go_on(changes, onward, ends))
        except StoreUnavailable:
            self._claims.doubt()
            raise
        if chains.members:
            chains.settled(
                [one.change.task for one in committed.verdicts if isinstance(one, Applied) or not _comes_again(one)]
            )
            self.went.update([chain.key for chain in touched if chain.ids])
        went = committed.went
        if room:
            self._declined = 0 if went is not None and went.tasks else self._declined + 1
        if went is not None:
            self.went.update((task.queue, task.key) for task in went.tasks if task.key is not None)
            if lines:
                begun = Counter([(task.queue, task.gate or "") for task in went.tasks if task.key is None])
                self.handed_over.update(line for line, ended in lines.items() if begun[line] >= ended)
            self._start(went)
        return committed

    def _touched(self, changes: Sequence[Change], ends: Ends | None) -> set[Chain]:
        """The chains of these; of ends of keys those of each have one in common, since they were leased together."""
        if not self._chains.members:
            return set()
        first = changes if ends is None else [chain[0] for chain in ends.values()]
        return self._chains.of([change.task.id for change in first])

    def _let_begin(self, changes: Sequence[Change]) -> bool:
        """Whether something else may begin for these at once, and has not begun with them."""
        queue = key = None
        for change in changes:
            task = change.task
            if task.key != key or task.queue != queue:
                queue, key = task.queue, task.key
                if key is not None and (queue, key) not in self.went:
                    return True
            if task.gate is not None and not (frees_a_place(change) and (task.queue, task.gate) in self.handed_over):
                return True
            if task.limited or change.state is State.READY:
                return True
        return False

    def _room(self, keys: int, lines: Counter[Line]) -> tuple[int, int]:
        """Slots that are free for whoever is next in so many keys and in these lines, and slots for others."""
        freed = keys + lines.total()
        spare = self._spare() if freed else None
        if spare is None:
            return 0, 0
        if not self.pays:
            self._declined += 1
            return 0, 0
        return freed, spare


def _keys(changes: Sequence[Change]) -> int:
    """In how many keys somebody was done."""
    return len({one.task.key for one in changes if one.state is State.DONE} - {None})


def _comes_again(verdict: Stale) -> bool:
    """Whether the change will be decided and committed once more, since only something beside the lease has changed."""
    if verdict.current is None:
        return False
    return verdict.current.state == State.LEASED and verdict.current.token == verdict.change.task.token
