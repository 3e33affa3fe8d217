"""Every pair of operations, on two real connections, in every interleaving, ends as some serial order would."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from .arena import Arena, Cast, Schedules, a_round, all_of_them, arena, pairs, some_of_them, trial, with_callers
from .party import Level
from .worlds import WORLDS, World

Record = Callable[[str, object], None]

EACH = 3
"""How many schedules of each pair a sample has."""


def run_all(arena: Arena, casts: list[Cast], schedules: Schedules, record: Record) -> None:
    """Run schedules of every pair, and tell of each that failed the order that is easiest to follow."""
    tallies = [trial(arena, cast, schedules) for cast in casts]
    record("schedules", {tally.title: tally.schedules for tally in tallies})
    failed = [min(tally.failures, key=lambda verdict: verdict.effort) for tally in tallies if tally.failures]
    if failed:
        pytest.fail("\n\n".join(str(verdict) for verdict in failed), pytrace=False)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_pair_ends_as_some_serial_order_would(
    world: World, migrated_postgres_url: str, exhaustive: bool, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name}")
    casts = pairs(world) if exhaustive else [*a_round(world, source), *a_round(world, source)]
    with arena(migrated_postgres_url, world, thorough=exhaustive) as stage:
        run_all(stage, casts, all_of_them if exhaustive else some_of_them(source, EACH), record_property)


BESIDE_CALLERS = [world for world in WORLDS if world.callers]


@pytest.mark.parametrize("world", BESIDE_CALLERS, ids=lambda world: world.name)
def test_every_pair_does_so_beside_an_open_transaction_of_a_caller(
    world: World, migrated_postgres_url: str, exhaustive: bool, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name} with callers")
    casts = with_callers(world, pairs(world))
    if not exhaustive:
        casts = [source.choice(with_callers(world, [cast])) for cast in a_round(world, source)[::2]]
    with arena(migrated_postgres_url, world, thorough=exhaustive) as stage:
        run_all(stage, casts, all_of_them if exhaustive else some_of_them(source, EACH), record_property)


PAST: tuple[Level, Level] = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("world", BESIDE_CALLERS, ids=lambda world: world.name)
def test_every_pair_does_so_beside_a_caller_that_sees_the_past(
    world: World, migrated_postgres_url: str, exhaustive: bool, seed: int, record_property: Record
) -> None:
    source = random.Random(f"{seed} {world.name} in the past")
    casts = [cast for level in PAST for cast in with_callers(world, pairs(world), level)]
    if not exhaustive:
        some = a_round(world, source)[::4]
        casts = [source.choice(with_callers(world, [cast], source.choice(PAST))) for cast in some]
    with arena(migrated_postgres_url, world, thorough=exhaustive) as stage:
        run_all(stage, casts, all_of_them if exhaustive else some_of_them(source, EACH), record_property)
