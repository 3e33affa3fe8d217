"""Telling stories to a store: how many, how long, and from which seed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from durably.testing.world import World
from tests.model.machine import StoreMachine

STEPS = 50


class Teller:
    """Takes a new world through every story, and counts them.

    Each story grows from a seed of its own, beside the plainest one, with which Hypothesis always begins: given more
    room, it would mostly tell variations of what it has just told.
    """

    def __init__(self, world: Callable[[], World]) -> None:
        self._world = world
        self.told = 0

    def tell(self, stories: int, seed: int, *, shrink: bool = True) -> None:
        """So many stories; the first that goes wrong is raised, as short as it can be made."""

        def begin() -> StoreMachine:
            return StoreMachine(self._world())

        for number in range(stories):
            self.told += 1
            run_state_machine_as_test(
                seeded(seed * 1_000_000 + number)(begin),  # type: ignore[arg-type]
                settings=settings(
                    max_examples=2,
                    stateful_step_count=STEPS,
                    deadline=None,
                    derandomize=False,  # which the seed would be ignored with, and which CI turns on
                    database=None,
                    phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                    print_blob=False,
                ),
            )
