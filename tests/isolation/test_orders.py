"""Pairs that went wrong once, in every order: what was found stays found."""

from __future__ import annotations

from durably.core.change import Applied
from durably.core.lifecycle import complete
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore

from .acts import accepts, arrives_and_claims, completes, draft, gives_up, id_of, limits
from .arena import Cast, all_of_them, arena, cast, trial
from .maker import Maker
from .party import Party, connect
from .schedule import run, scripted
from .worlds import LAST, PLAIN, RATES, REQUESTS, UNIQUE, World


def holds(url: str, world: World, pair: Cast) -> None:
    """Run the pair in every order and judge each."""
    with arena(url, world) as stage:
        tally = trial(stage, pair, all_of_them)
    assert [str(failure) for failure in tally.failures] == []
    assert tally.schedules > 1


def test_a_waiting_task_is_not_cancelled_while_a_claim_makes_it_the_head_of_a_new_key(
    migrated_postgres_url: str,
) -> None:
    holds(migrated_postgres_url, LAST, cast(LAST, "claim a", "cancel m1"))


def test_a_waiting_task_does_not_expire_while_a_claim_makes_it_the_head_of_a_new_key(
    migrated_postgres_url: str,
) -> None:
    holds(migrated_postgres_url, LAST, cast(LAST, "claim b", "expire"))


def test_a_repeated_acceptance_does_not_revive_a_task_that_ends_meanwhile(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, PLAIN, cast(PLAIN, "accept l1 again", "complete l1"))


def test_a_late_first_request_does_not_revive_a_task_that_may_run_only_once(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, PLAIN, Cast(accepts(draft("l1", once=True)), completes("l1")))


def test_a_task_that_a_late_first_request_brought_back_ends_and_harms_nobody(migrated_postgres_url: str) -> None:
    store = PostgresStore(migrated_postgres_url)
    queries = store.queries
    with connect(migrated_postgres_url, "observer") as observer:
        make = Maker(observer, queries)
        make.lease("a", draft("late"))
        worker, client = (Party(migrated_postgres_url, queries, name) for name in ("worker", "client"))
        worker.begin(lambda: gives_up("late").start(make.held), None)
        client.begin(lambda: accepts(draft("late")).start(make.held), None)
        trace = run([worker, client], observer, scripted([("worker", "end_tasks"), ("client", "end")]))
        worker.close()
        client.close()
        assert ("client", "worker") in trace.blocked_by
        make.accept(draft("other"))

        tasks = make.run(claim("a", ["q"], 10)).tasks
        verdicts = store.run(commit([complete(task, b"again") for task in tasks]))
        store.close()

        assert [task.id for task in tasks] == [id_of("late"), id_of("other")]
        assert all(isinstance(verdict, Applied) for verdict in verdicts)
        assert [(task.id, task.state) for task in make.run(get([id_of("late")]))] == [(id_of("late"), "dead")]


def test_a_repeated_acceptance_does_not_take_the_unique_key_of_a_task_that_has_ended(
    migrated_postgres_url: str,
) -> None:
    holds(migrated_postgres_url, UNIQUE, cast(UNIQUE, "accept l1 again", "complete l1"))


def test_a_repeated_acceptance_does_not_remove_a_task_that_is_replayed_meanwhile(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, PLAIN, cast(PLAIN, "accept x1 again", "replay x1"))


def test_a_claim_beside_another_that_cancels_does_not_lease_what_was_to_be_cancelled(
    migrated_postgres_url: str,
) -> None:
    holds(migrated_postgres_url, REQUESTS, cast(REQUESTS, "claim a", "claim b"))


def test_a_claim_does_not_lease_what_changed_while_it_was_to_be_cancelled(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, REQUESTS, cast(REQUESTS, "claim a", "promote"))


def test_a_limit_counts_what_a_claim_leases_while_it_is_set(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, PLAIN, cast(PLAIN, "claim a", "limit q:q to 8"))


def test_a_limit_counts_what_a_worker_leases_that_arrives_while_it_is_set(migrated_postgres_url: str) -> None:
    holds(migrated_postgres_url, PLAIN, Cast(arrives_and_claims("new", ["q"]), limits("q:q", 8)))


def test_a_slow_claim_does_not_set_back_the_clock_of_a_bucket(migrated_postgres_url: str) -> None:
    refilled: list[int] = []
    with arena(migrated_postgres_url, RATES) as stage:
        follow = scripted([("one", "survey"), ("two", "end"), ("one", "end")])

        def choose(able: list[Party], waiting: list[Party]) -> Party | None:
            refilled.extend(row["refilled_at"] for row in stage.look().gates)
            return follow(able, waiting)

        stage.attempt(cast(RATES, "claim a", "claim b 2"), choose)
        refilled.extend(row["refilled_at"] for row in stage.look().gates)

    assert refilled == sorted(refilled)
    assert refilled[0] < refilled[-1]
