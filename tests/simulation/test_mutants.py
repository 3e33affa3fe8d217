"""The simulation bites: every engine with one rule broken is found out, and a table says by which rule and how soon."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest

import tests.simulation.delivery_mutants
import tests.simulation.outgoing_mutants  # noqa: F401 - so does it
from durably.testing.simulation import draw, run, run_seed, shrink
from durably.testing.simulation.__main__ import told
from tests.simulation.mutants import MUTANTS, Mutant, rewritten

SEEDS = 1000
"""Within so many seeds each of them must be found; most are within a few."""


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """Lines that are shown when all of them have been found."""
    lines: list[str] = []
    yield lines
    pytestconfig.get_terminal_writer().write("\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: broken.name.replace(" ", "-"))
def test_a_broken_engine_is_found_out(broken: Mutant, table: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tamper = broken.breaks(monkeypatch)
    played = 0
    for seed in islice(filter(lambda seed: broken.concerns(draw(seed)), count()), SEEDS):
        played += 1
        found = run_seed(seed, tamper).violations
        if found:
            table.append(f"{broken.name}: found by {played} seeds: {found[0]}")
            assert any(broken.complaint in violation for violation in found)
            return
    pytest.fail(f"{played} seeds noticed nothing")


def test_enough_engines_are_broken() -> None:
    assert len({broken.name for broken in MUTANTS}) >= 20


def test_a_failing_scenario_can_be_made_small() -> None:
    tamper = rewritten(("heads", "ORDER BY f.seq", "ORDER BY f.seq DESC"))
    failing = next(outcome for seed in range(SEEDS) if (outcome := run_seed(seed, tamper)).violations)

    small = shrink(failing, tamper, tries=60)

    assert len(small.scenario.plays) <= 6 < len(failing.scenario.plays)
    assert run(small.scenario, tamper).violations == small.violations
    assert "VIOLATION: " in told(small)
