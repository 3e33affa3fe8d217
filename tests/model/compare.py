"""Holding a store to its model: each row must be what the model believes, and nothing else may move."""

from __future__ import annotations

from durably.core.task import Task
from durably.stores.operations.read import Filter, attempts, list_keys, list_tasks, sessions
from durably.testing.world import World
from tests.model.entry import Entry
from tests.model.model import Model

EVERYTHING = 100_000


class Comparison:
    """The rows as they were last seen. A row whose task did not change in the model must be the same to the byte."""

    def __init__(self, world: World, model: Model) -> None:
        self._world = world
        self._model = model
        self._seen: dict[str, tuple[int, Task]] = {}

    def check(self) -> dict[str, Task]:
        """Compare everything; the rows that were found."""
        rows = {task.id: task for task in self._world.run(list_tasks(Filter(), EVERYTHING))}
        self._adopt_hooks(rows)
        known = self._model.entries
        assert rows.keys() == known.keys(), (
            f"lost: {known.keys() - rows.keys()}, come from nowhere: {rows.keys() - known.keys()}"
        )
        for task, row in rows.items():
            entry = known[task]
            revision, before = self._seen.get(task, (-1, row))
            if revision == entry.revision:
                assert row == before, f"nobody changed {before}, and now it is {row}"
            else:
                self._check_row(row, entry, before)
        self._seen = {task: (known[task].revision, row) for task, row in rows.items()}
        self._model.check()
        return rows

    def forget(self, task: str) -> None:
        """The row may have changed in a way that the model does not follow."""
        self._seen.pop(task, None)

    def check_sessions(self) -> None:
        """The sessions that are known, and which of them are live."""
        found = {each.id: each.state for each in self._world.run(sessions())}
        wanted = {name: "live" if each.live else "dead" for name, each in self._model.sessions.items()}
        assert found == wanted, f"the sessions are {found}, not {wanted}"

    def check_rest(self) -> None:
        """Once everything has ended, no key has anyone waiting."""
        live = [entry for entry in self._model.entries.values() if not entry.ended]
        assert not live, f"faults are off, and these do not come to an end: {live}"
        keys = self._world.run(list_keys(None, None, None, 100))
        assert not keys, f"everything has ended, and these keys are left: {keys}"

    def _adopt_hooks(self, rows: dict[str, Task]) -> None:
        """The ids of hooks are the engine's choice; that there is one for each death is not."""
        for parent in list(self._model.hooks):
            new = [row for task, row in rows.items() if task not in self._model.entries and row.name == "hook"]
            found = [row for row in new if parent.encode() in row.payload]
            assert len(found) == 1, f"{parent} died, and these hooks came with it: {found}"
            self._model.accept_hook(found[0].id, parent, found[0].payload)

    def _check_row(self, row: Task, entry: Entry, before: Task) -> None:
        found = (row.state, row.attempt, row.spent, row.crashes, row.cancel if not row.ended else None, row.result)
        cancel = entry.cancel if not entry.ended else None
        wanted = (entry.state, entry.attempt, entry.spent, entry.crashes, cancel, entry.result)
        assert found == wanted, f"the row says {found} and the model {wanted}: {row} {entry}"
        given = (row.name, row.queue, row.payload, row.priority, row.key, row.policy, row.gate, bool(row.once))
        asked = (
            entry.name, entry.queue, entry.payload, entry.priority, entry.key, entry.policy, entry.gate, entry.once
        )  # fmt: skip
        assert given == asked, f"accepted was {asked}, and kept is {given}"
        assert row.created_at == entry.created_at
        assert row.version >= before.version, f"the version went back from {before} to {row}"
        if entry.state == "leased" or entry.state == "done":
            assert (row.token, row.session) == (entry.token, entry.session), (
                f"the lease of {row} is not that of {entry}"
            )
        if not entry.ended:
            assert bool(row.alone) == entry.alone, f"{row} and {entry} differ in whether it runs alone"
            assert row.expires_at == entry.expires_at
        if entry.state in ("delayed", "ready", "blocked"):
            assert row.ready_at == entry.ready_at, f"{row} is due at {row.ready_at}, and should be at {entry.ready_at}"
            assert row.session is None, f"{row} waits, and still belongs to a session"
        if entry.reason is not None:
            assert entry.reason in (row.reason or ""), f"{row} has lost its reason {entry.reason!r}"
        errors = self._world.run(attempts(entry.id))
        told = [(error.attempt, error.outcome) for error in errors]
        assert told == [(error.attempt, error.outcome) for error in entry.errors], f"{entry} has the attempts {told}"
        for kept, error in zip(errors, entry.errors, strict=True):
            assert error.message in kept.message, f"attempt {error.attempt} of {entry} says {kept.message!r}"
