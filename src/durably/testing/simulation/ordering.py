"""What must hold for ordering keys, and for the lines of limit groups, after every commit."""

from __future__ import annotations

from durably.testing.simulation.commit import Commit, Complaints
from durably.testing.simulation.trace import Trace


class Ordering:
    """Remembers in which order tasks came to their keys, and for whom a key waits."""

    def __init__(self, trace: Trace, *, steady: bool) -> None:
        self._trace = trace
        self._steady = steady
        """Whether all processes agree about the time, so that it can be said whether a key waits."""
        self._arrived = 0
        self._arrivals: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._awaited: dict[tuple[str, str], str] = {}

    def forget(self, task: str) -> None:
        """It comes to its key anew."""
        self._arrivals.pop(task, None)

    def complaints(self, commit: Commit) -> Complaints:
        """Everything that is wrong."""
        yield from self._order(commit)
        yield from self._stranded(commit)
        if self._steady:
            yield from self._keys(commit)

    def _order(self, commit: Commit) -> Complaints:
        """Within a key, who came first goes first; only a task that lets itself be overtaken comes again."""
        for row in commit.after.tasks.values():
            if row.key is None or row.state != "blocked":
                continue
            moved = row.policy == "overtake" and self._seqs.get(row.id, row.seq) != row.seq
            if row.id not in self._arrivals or moved:
                self._arrived += 1
                self._arrivals[row.id] = self._arrived
            self._seqs[row.id] = row.seq
        for lease in commit.leased:
            chosen = commit.after.tasks[lease.task]
            if chosen.key is None:
                continue
            for row in commit.after.tasks.values():
                ahead = self._arrivals.get(row.id, 0) < self._arrivals[chosen.id]
                if row.turn != chosen.turn or row.state != "blocked" or row.id == chosen.id or not ahead:
                    continue
                if not self._runs_before(commit, row.id, chosen.id):
                    called = self._trace.called
                    yield f"{called(chosen.id)} was claimed before {called(row.id)}, which is ahead of it in its key"

    def _runs_before(self, commit: Commit, one: str, other: str) -> bool:
        """Whether both were taken at once, to be run in this order."""
        return any(
            one in key.leased and other in key.leased and key.leased.index(one) < key.leased.index(other)
            for key in commit.after.keys.values()
        )

    def _stranded(self, commit: Commit) -> Complaints:
        """What waits in a key or a limit group has something that will bring its turn."""
        after, called = commit.after, self._trace.called
        keyed = {(queue, key) for queue, key, _ in after.turns}
        grouped = {(queue, gate) for queue, key, gate in after.turns if key is None}
        grouped |= {(queue, gate) for queue, gate, _ in after.lines}
        for row in after.tasks.values():
            if row.state != "blocked":
                continue
            if row.turn is not None and row.turn not in keyed and row.turn not in after.keys:
                yield f"{called(row.id)} waits in a key that nobody will look at"
            if row.key is None and (row.queue, row.gate) not in grouped:
                yield f"{called(row.id)} waits in a limit group that nobody will look at"
        for key in after.keys.values():
            for task in key.leased:
                if task not in after.tasks:
                    yield f"the key {key.queue}/{key.key} is leased for {called(task)}, which is not there"

    def _keys(self, commit: Commit) -> Complaints:
        """A key stays paused, or waits, until a person says otherwise or the head that it waits for is gone."""
        yield from self._pointless_waits(commit)
        if commit.op.name in ("resume_key", "skip_key", "hurry"):
            return
        for place, key in commit.before.keys.items():
            now = commit.after.keys.get(place)
            waits = key.state == "ready" and key.ready_at > commit.now and not key.held
            if now is None or key.state == "leased" or not (waits or key.state == "paused"):
                continue
            eased = now.state != "paused" and (now.state != key.state or now.ready_at < key.ready_at)
            first = min(
                (row for row in commit.before.tasks.values() if row.turn == place and row.state == "blocked"),
                key=lambda row: self._arrivals[row.id],
                default=None,
            )
            if not eased or first is None or first.id not in commit.after.tasks:
                continue
            # Else it was only to be looked at again later, as in a queue that drains.
            if key.state == "paused" or first.ready_at > commit.now:
                what = "paused" if key.state == "paused" else "waiting"
                whom = self._trace.called(first.id)
                yield f"the key {'/'.join(place)} was {what} for {whom} and goes on for no reason"

    def _pointless_waits(self, commit: Commit) -> Complaints:
        for place, key in commit.after.keys.items():
            was = commit.before.keys.get(place)
            waits = key.state == "paused" or (key.state == "ready" and key.ready_at > commit.now and not key.held)
            by_hand = key.state == "paused" and was is not None and was.state == "ready"
            if not waits or by_hand:
                self._awaited.pop(place, None)
            elif was is not None and was.leased:
                left = [task for task in was.leased if task in commit.after.tasks]
                self._awaited[place] = (left or was.leased)[0]
            if waits and place in self._awaited and self._awaited[place] not in commit.after.tasks:
                what = "paused" if key.state == "paused" else "waiting"
                whom = self._trace.called(self._awaited[place])
                yield f"the key {'/'.join(place)} is {what} for {whom}, which is gone"
        for place in self._awaited.keys() - commit.after.keys.keys():
            del self._awaited[place]
