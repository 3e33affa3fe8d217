"""Pairs that went wrong once, in every order: what was found stays found."""

from __future__ import annotations

from .acts import arrives_and_claims, limits
from .arena import Cast, all_of_them, arena, cast, trial
from .party import Party
from .schedule import scripted
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
