"""Every order of statements of every pair of operations, alone and beside callers: for hours, or for `--minutes`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile

from durably.stores.postgres.store import PostgresStore
from durably.testing.servers import PostgresServer

from .arena import Arena, Attempt, Cast, Schedules, Tally, all_of_them, arena, pairs, trial, with_callers
from .party import LEVELS
from .schedule import Trace
from .worlds import WORLDS, World


@dataclass
class Total:
    """What has been run so far."""

    casts: int = 0
    schedules: int = 0
    waits: int = 0
    deadlocks: int = 0

    def add(self, tally: Tally) -> None:
        self.casts += 1
        self.schedules += tally.schedules
        self.waits += tally.waits
        self.deadlocks += tally.deadlocks

    def __str__(self) -> str:
        return (
            f"{self.schedules:,} orders of statements; in {self.waits:,} of them somebody waited for a lock, "
            f"in {self.deadlocks:,} PostgreSQL ended a deadlock"
        )


def program(seed: int) -> list[tuple[World, Cast]]:
    """All there is to try: first the pairs, then those beside callers, both shuffled."""
    source = random.Random(seed)
    alone = [(world, cast) for world in WORLDS for cast in pairs(world)]
    beside = [
        (world, cast) for world in WORLDS for level in LEVELS for cast in with_callers(world, pairs(world), level)
    ]
    source.shuffle(alone)
    source.shuffle(beside)
    return alone + beside


class Theatre:
    """A database for every world, made when it is first played in."""

    def __init__(self, server: PostgresServer, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._arenas: dict[str, Arena] = {}

    def arena(self, world: World) -> Arena:
        if world.name not in self._arenas:
            url = self._server.create_database(f"world_{len(self._arenas)}")
            store = PostgresStore(url)
            store.migrate()
            store.close()
            self._arenas[world.name] = self._stack.enter_context(arena(url, world))
        return self._arenas[world.name]


def all_until(end: float) -> Schedules:
    """Every schedule that can make a difference, as far as there is time: one cast can take an hour."""

    def schedules(attempt: Attempt) -> Iterator[Trace]:
        return takewhile(lambda _: time.monotonic() < end, all_of_them(attempt))

    return schedules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.isolation", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (when everything has been tried)")
    parser.add_argument("--seed", type=int, help="which pairs come first (some)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    end = time.monotonic() + options.minutes * 60 if options.minutes is not None else float("inf")
    casts, total = program(seed), Total()
    told = time.monotonic()
    print(f"isolation, seed {seed}: {len(casts):,} casts, each in every order that can make a difference", flush=True)
    with ExitStack() as stack:
        theatre = Theatre(stack.enter_context(PostgresServer(18, durable=False)), stack)
        for world, cast in casts:
            tally = trial(theatre.arena(world), cast, all_until(end))
            total.add(tally)
            if tally.failures:
                print(min(tally.failures, key=lambda verdict: verdict.effort))
                return 1
            if time.monotonic() >= end:
                print(f"the time is over in the middle of {cast.title}", file=sys.stderr)
                break
            if time.monotonic() - told >= 15:
                told = time.monotonic()
                print(f"{total.casts:,} of {len(casts):,} casts: {total}", file=sys.stderr, flush=True)
    print(f"{total.casts:,} of {len(casts):,} casts in every order: {total}; all ended as some serial order does")
    return 0


if __name__ == "__main__":
    sys.exit(main())
