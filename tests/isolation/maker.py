"""Building a world with the operations themselves, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from durably.core.change import Applied, Change
from durably.core.lifecycle import complete, fail
from durably.core.moment import SECOND
from durably.core.retry import Retry
from durably.core.task import Draft, Task
from durably.stores.operations import sweep
from durably.stores.operations.accept import accept
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.statement import Operation, Queries

from .acts import FAILURE, Held, names
from .party import Connection, run_alone

T = TypeVar("T")

HOUR = 3600 * SECOND


class Maker:
    """Four sessions to begin with: `a` and `b` live, `gone` overdue, `old` dead; and whatever else is asked for."""

    def __init__(self, connection: Connection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries
        self.held: Held = {}
        for session, lease in (("a", HOUR), ("b", HOUR), ("gone", 0), ("old", HOUR)):
            self.run(sweep.open_session(session, lease, "here", 1, "{}"))
        self.run(sweep.close_session("old"))

    def run(self, op: Operation[T]) -> T:
        """Run an operation with nobody beside it."""
        return run_alone(self._connection, self._queries, op)

    def accept(self, *drafts: Draft) -> None:
        """Accept tasks in this order, each in a transaction of its own."""
        for one in drafts:
            self.run(accept([one]))

    def lease(self, session: str, *drafts: Draft) -> list[Task]:
        """Tasks that the session holds."""
        self.accept(*drafts)
        tasks = self.run(claim(session, sorted({one.queue for one in drafts}), len(drafts))).tasks
        assert {task.id for task in tasks} == {one.id for one in drafts}
        self.held |= {names[task.id]: task for task in tasks}
        return tasks

    def run_ahead(self, session: str, *drafts: Draft) -> None:
        """Tasks of one key that the session holds together."""
        self.accept(*drafts)
        found = self.run(claim(session, [drafts[0].queue], 1, ahead=len(drafts)))
        [head] = found.tasks
        chain = [head, *found.behind[head.id]]
        assert [task.id for task in chain] == [one.id for one in drafts]
        self.held |= {names[task.id]: task for task in chain}

    def admit(self) -> None:
        """Turn every marker into a row, without leasing anything."""
        self.run(claim("a", ["nothing"], 1))

    def kill(self, one: Draft) -> None:
        """A dead letter."""
        self._end(one, lambda task: fail(task, FAILURE, Retry.never(), 0.0))

    def finish(self, one: Draft) -> None:
        """A task that was done, and whose retention has passed."""
        self._end(one, lambda task: complete(task, b"ok", retention=0.0))

    def _end(self, one: Draft, decide: Callable[[Task], Change]) -> None:
        [task] = self.lease("a", one)
        del self.held[names[task.id]]
        [verdict] = self.run(commit([decide(task)]))
        assert isinstance(verdict, Applied)
