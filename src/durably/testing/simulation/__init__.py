"""Deterministic simulation: the real worker in virtual time, on a network and among processes that fail by a seed.

`run_seed(7)` plays the scenario of seed 7 and answers with everything that went wrong and the story of it; the same
seed gives the same story. `python -m durably.testing.simulation --seeds 200` plays many.

Only the clock, ids, randomness, wake-ups and heartbeat are injected; the worker, the client and the store's operations
are those of production, and so are deliveries, mail and notifications, down to the channels and the mail server's
socket. A fault strikes where it can strike in reality: at a statement, or between two.
"""

from __future__ import annotations

from durably.testing.simulation.database import IN_MEMORY, Database
from durably.testing.simulation.director import Director, Outcome
from durably.testing.simulation.drawing import draw
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.shrink import shrink
from durably.testing.simulation.world import Tamper

__all__ = ["Outcome", "Scenario", "draw", "run", "run_seed", "shrink"]


def run(scenario: Scenario, tamper: Tamper | None = None, database: Database = IN_MEMORY) -> Outcome:
    """Play a scenario; `tamper` may break the store first, to see whether that is found."""
    return Director(scenario, tamper, database).run()


def run_seed(seed: int, tamper: Tamper | None = None, database: Database = IN_MEMORY) -> Outcome:
    """Play the scenario of a seed."""
    return run(draw(seed), tamper, database)
