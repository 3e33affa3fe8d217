"""A store under a test's control: its clock is moved by hand, and everything can be said synchronously or not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from durably.app import Durably
from durably.core import lifecycle
from durably.core.change import Applied, Change, Verdict
from durably.core.ids import Ids
from durably.core.moment import SECOND, Clock
from durably.core.retry import Retry
from durably.core.task import Draft, Failure, Task
from durably.errors import Conflict
from durably.stores.operations.accept import Accepted, accept
from durably.stores.operations.claim import Claim, claim
from durably.stores.operations.commit import commit
from durably.stores.operations.quick import can_be_quick, claim_plain
from durably.stores.operations.read import attempts, get
from durably.stores.operations.sweep import due, lapsed, mark_dead, open_session, promote
from durably.stores.protocol import Store
from durably.stores.statement import Operation

T = TypeVar("T")

LEASE = 30 * SECOND
RETRY = Retry.after(10, 20, 30)


class World:
    """What a conformance test works with. `face` is sync or async: the same test covers both twins."""

    def __init__(self, store: Store, clock: Clock, advance: Callable[[float], None], face: str) -> None:
        self.store = store
        self.clock = clock
        self.face = face
        self.advance = advance
        self.ids = Ids(clock)
        self.app = Durably(store, clock=clock)
        self._numbers = itertools.count(1)
        self._runner: asyncio.Runner | None = None

    def close(self) -> None:
        """Close the store on the loop that used it, if one did."""
        if self._runner is not None:
            self._runner.run(self.store.aclose())
            self._runner.close()
        self.store.close()

    def await_(self, doing: Any) -> Any:
        """Run a coroutine on this world's own event loop."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(doing)

    def run(self, op: Operation[T]) -> T:
        """Run a store operation by this world's face."""
        if self.face == "sync":
            return self.store.run(op)
        answer: T = self.await_(self.store.arun(op))
        return answer

    def call(self, owner: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by this world's face: `enqueue`, or its twin `aenqueue`."""
        if self.face == "sync":
            return getattr(owner, method)(*args, **kwargs)
        return self.await_(getattr(owner, f"a{method}")(*args, **kwargs))

    def tick(self, times: int = 1) -> int:
        """So many rounds of the application's worker; how many attempts ran."""
        return sum(self.call(self.app, "tick") for _ in range(times))

    # What follows are the words in which tests of stores are written.

    def draft(self, **given: Any) -> Draft:
        """A draft with sensible defaults."""
        given.setdefault("id", self.ids.task(given.get("key") or given.get("unique_key")))
        given.setdefault("name", "work")
        given.setdefault("queue", "default")
        given.setdefault("payload", b"{}")
        return Draft(**given)

    def accept(self, *drafts: Draft, again: bool = False) -> list[Accepted | Conflict]:
        """Accept the drafts in one transaction."""
        return self.run(accept(list(drafts), again))

    def add(self, **given: Any) -> str:
        """Accept one task; its id."""
        draft = self.draft(**given)
        self.accept(draft)
        return draft.id

    def session(self, session_id: str | None = None, lease: int = LEASE) -> str:
        """Open a session; its id."""
        found = session_id or f"session-{next(self._numbers)}"
        self.run(open_session(found, lease, "host", 1, "{}"))
        return found

    def claim_all(self, session: str, room: int = 100, queues: tuple[str, ...] = ("default",), **given: Any) -> Claim:
        """Claim, with everything that comes with it."""
        if can_be_quick(self.store.queries) and not given.get("alone"):
            found = self.run(claim_plain(session, queues, room, floors=given.get("floors")))
            if found is not None:
                return found
        return self.run(claim(session, queues, room, **given))

    def claim(self, session: str, room: int = 100, **given: Any) -> list[Task]:
        """Claim; the tasks in the order in which they should start."""
        return self.claim_all(session, room, **given).tasks

    def commit(self, *changes: Change) -> list[Verdict]:
        """Commit decided changes."""
        return self.run(commit(list(changes)))

    def apply(self, *changes: Change) -> None:
        """Commit changes that must all be applied."""
        verdicts = self.commit(*changes)
        assert all(isinstance(verdict, Applied) for verdict in verdicts), verdicts

    def finish(self, *tasks: Task) -> None:
        """Complete tasks."""
        self.apply(*(lifecycle.complete(task, b'"ok"') for task in tasks))

    def failing(self, task: Task, retry: Retry = RETRY, **given: Any) -> Change:
        """The change that a failure of this task means."""
        return lifecycle.fail(task, Failure("Boom", "it broke", **given), retry, 0.0)

    def get(self, task_id: str) -> Task:
        """The task as it is now."""
        [task] = self.run(get([task_id]))
        return task

    def exists(self, task_id: str) -> bool:
        """Whether the store knows the task."""
        return bool(self.run(get([task_id])))

    def outcomes(self, task_id: str) -> list[str]:
        """The outcomes of the task's failed attempts, oldest first."""
        return [row.outcome for row in self.run(attempts(task_id))]

    def promote(self) -> int:
        """Promote everything that is due."""
        ids = self.run(due(1000, []))
        return len(self.run(promote(ids))) if ids else 0

    def let_die(self, seconds: float = 31) -> list[Task]:
        """Let leases run out, declare their sessions dead, and take back what they held."""
        self.advance(seconds)
        self.run(mark_dead())
        tasks = self.run(lapsed(1000, []))
        self.apply(*(lifecycle.lapse(task) for task in tasks))
        return tasks
