"""Making a failing scenario small: leave out whatever is not needed for it to fail."""

from __future__ import annotations

from typing import Any

import msgspec

from durably.testing.simulation.director import Director, Outcome
from durably.testing.simulation.network import Weather
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.world import Tamper

PARTS = (
    "orders",
    "outages",
    "jams",
    "jumps",
    "spoilings",
    "upgrades",
    "blows",
    "cancels",
    "plays",
    "letters",
    "errands",
    "missives",
    "chores",
    "notices",
    "doings",
    "lookups",
    "limits",
)


def shrink(outcome: Outcome, tamper: Tamper | None = None, *, tries: int = 300) -> Outcome:
    """The smallest failing outcome that was found by leaving things out, one after the other."""
    best, left = outcome, tries
    shrunk = True
    while shrunk and left > 0:
        shrunk = False
        for scenario in _smaller(best.scenario):
            left -= 1
            tried = Director(scenario, tamper).run()
            if tried.violations:
                best, shrunk = tried, True
                break
            if left <= 0:
                break
    return best


def _smaller(scenario: Scenario) -> list[Scenario]:
    """The scenario without half of a part, without one of its things, in better weather, with fewer workers."""
    found = []
    for part in PARTS:
        things: tuple[Any, ...] = getattr(scenario, part)
        half = len(things) // 2
        if half > 1:
            found += [_with(scenario, part, things[:half]), _with(scenario, part, things[half:])]
    found += [
        _with(scenario, part, things[:index] + things[index + 1 :])
        for part in PARTS
        for things in [getattr(scenario, part)]
        for index in range(len(things))
    ]
    for name in Weather.__struct_fields__:
        if name != "latency" and getattr(scenario.weather, name):
            found.append(_with(scenario, "weather", msgspec.structs.replace(scenario.weather, **{name: 0.0})))
    if len(scenario.crews) > 1 and not scenario.blows:
        found.append(_with(scenario, "crews", scenario.crews[:-1]))
    return [one for one in found if one.plays]


def _with(scenario: Scenario, part: str, things: Any) -> Scenario:
    if part == "plays":
        kept = {play.number for play in things}
        things = tuple(play for play in things if play.then is None or play.then in kept)
    smaller: Scenario = msgspec.structs.replace(scenario, **{part: things})
    return smaller
