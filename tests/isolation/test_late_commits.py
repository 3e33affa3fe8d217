"""A caller's transaction that commits late brings a task with a low number: it comes first, but it did not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durably.core.change import Applied, Change
from durably.core.lifecycle import complete, fail, snooze
from durably.core.retry import Retry
from durably.core.task import Policy, Task
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.control import resume_key, skip_key
from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore

from .acts import FAILURE, accepts_and_cancels, draft, id_of, names
from .maker import Maker
from .party import Party, connect


class Desk(Maker):
    """A worker, and a caller whose transaction has accepted `early` and is still open."""

    def __init__(self, url: str, policy: Policy | None) -> None:
        queries = PostgresStore(url).queries
        self.observer = connect(url, "worker")
        super().__init__(self.observer, queries)
        self.caller = Party(url, queries, "caller")
        self.caller.begin(lambda: accepts_and_cancels(draft("early", key="key", policy=policy)).start({}), "commit")
        self.caller.go()
        [self.first] = self.lease("a", draft("first", key="key", policy=policy))

    def report(self, change: Change) -> None:
        [verdict] = self.run(commit([change]))
        assert isinstance(verdict, Applied)

    def claimed(self) -> list[Task]:
        return self.run(claim("a", ["q"], 10)).tasks

    def close(self) -> None:
        self.caller.close()
        self.observer.close()


@pytest.fixture
def desk(migrated_postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(migrated_postgres_url, getattr(request, "param", None))
    yield made
    made.close()


@pytest.mark.parametrize("desk", [Policy.PAUSE], indirect=True)
def test_skipping_a_paused_key_takes_out_the_task_that_failed(desk: Desk) -> None:
    desk.report(fail(desk.first, FAILURE, Retry.never(), 0.0))
    desk.caller.go()

    skipped = desk.run(skip_key("q", "key", "no use"))

    assert names[skipped.id] == "first"
    [early] = desk.run(get([id_of("early")]))
    assert early.state == "blocked"


@pytest.mark.parametrize("desk", [Policy.PAUSE], indirect=True)
def test_resuming_a_paused_key_gives_the_task_that_failed_its_new_budget(desk: Desk) -> None:
    desk.report(fail(desk.first, FAILURE, Retry.never(), 0.0))
    desk.caller.go()

    resumed = desk.run(resume_key("q", "key"))

    assert names[resumed.id] == "first"


def test_a_head_that_waits_keeps_its_wait_when_an_earlier_task_comes_in_between(desk: Desk) -> None:
    desk.caller.go()
    desk.report(snooze(desk.first, 3600.0))
    [early] = desk.claimed()
    assert names[early.id] == "early"

    desk.report(complete(early, None))

    assert desk.claimed() == []
