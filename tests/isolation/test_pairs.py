"""Every pair of operations, on two real connections, ends as some serial order would: a sample of interleavings."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from .arena import Cast, a_round, arena, some_of_them, trial, with_callers
from .party import Level
from .worlds import WORLDS, World

Record = Callable[[str, object], None]

EACH = 3
"""How many schedules of each pair a sample has."""


def run_some(url: str, world: World, casts: list[Cast], source: random.Random, record: Record) -> None:
    """Run a sample of schedules of every cast, and tell of each that failed the order that is easiest to follow."""
    with arena(url, world, thorough=False) as stage:
        tallies = [trial(stage, cast, some_of_them(source, EACH)) for cast in casts]
    record("schedules", {tally.title: tally.schedules for tally in tallies})
    failed = [min(tally.failures, key=lambda verdict: verdict.effort) for tally in tallies if tally.failures]
    if failed:
        pytest.fail("\n\n".join(str(verdict) for verdict in failed), pytrace=False)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_pair_ends_as_some_serial_order_would(
    world: World, migrated_postgres_url: str, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name}")
    casts = [*a_round(world, source), *a_round(world, source)]
    run_some(migrated_postgres_url, world, casts, source, record_property)


BESIDE_CALLERS = [world for world in WORLDS if world.callers]


@pytest.mark.parametrize("world", BESIDE_CALLERS, ids=lambda world: world.name)
def test_every_pair_does_so_beside_an_open_transaction_of_a_caller(
    world: World, migrated_postgres_url: str, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name} with callers")
    casts = [source.choice(with_callers(world, [cast])) for cast in a_round(world, source)[::2]]
    run_some(migrated_postgres_url, world, casts, source, record_property)


PAST: tuple[Level, Level] = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("world", BESIDE_CALLERS, ids=lambda world: world.name)
def test_every_pair_does_so_beside_a_caller_that_sees_the_past(
    world: World, migrated_postgres_url: str, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name} in the past")
    some = a_round(world, source)[::4]
    casts = [source.choice(with_callers(world, [cast], source.choice(PAST))) for cast in some]
    run_some(migrated_postgres_url, world, casts, source, record_property)
