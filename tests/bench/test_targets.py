"""Targets are judged by the ratios of one run."""

from __future__ import annotations

from typing import Any

from bench.targets import TARGETS, judged, spoken


def measured(**rates: float) -> dict[str, Any]:
    return {name.replace("_", " "): {"runs": [{"rate": rate}]} for name, rate in rates.items()}


def verdicts(results: dict[str, Any]) -> dict[str, tuple[float | None, str]]:
    return {one["target"]: (one["ratio"], one["verdict"]) for one in judged(results)}


def test_without_results_nothing_is_claimed() -> None:
    assert {verdict for _, verdict in verdicts({}).values()} == {"not measured"}
    assert len(judged({})) == len(TARGETS)


def test_a_ratio_against_a_contender() -> None:
    fast = {"sqlite.drain-1": measured(durably=30.0, huey=1.0)}
    slow = {"sqlite.drain-1": measured(durably=14.0, huey=1.0)}

    assert verdicts(fast)["SQLite, drain with one process / huey"] == (30.0, "reached")
    assert verdicts(slow)["SQLite, drain with one process / huey"] == (14.0, "not reached")


def test_a_contender_that_failed_is_not_measured() -> None:
    huey = {"runs": [{"rate": 1.0}], "error": "it broke"}
    results = {"sqlite.drain-1": {"durably": {"runs": [{"rate": 30.0}]}, "huey": huey}}

    assert verdicts(results)["SQLite, drain with one process / huey"] == (None, "not measured")


def test_latency_must_stay_below() -> None:
    results = {
        "postgres.latency": {"durably": {"runs": [{"p50": 3.0}]}, "notify, claim, call": {"runs": [{"p50": 2.0}]}}
    }

    assert verdicts(results)["PostgreSQL, p50 at low load / notify, claim, call"] == (1.5, "reached")


def test_what_counts_is_the_median_of_the_ratios_of_the_turns() -> None:
    ours, theirs = (30.0, 6.0, 20.0), (2.0, 0.5, 1.0)
    results = {
        "sqlite.drain-1": {
            name: {"runs": [{"rate": rate} for rate in rates]} for name, rates in (("durably", ours), ("huey", theirs))
        }
    }
    [judgement] = [one for one in judged(results) if one["target"] == "SQLite, drain with one process / huey"]

    assert judgement["turns"] == [15.0, 12.0, 20.0]
    assert (judgement["ratio"], judgement["verdict"]) == (15.0, "reached")
    assert "SQLite, drain with one process / huey (turns: 12.00 to 20.00)" in spoken(judged(results))


def test_a_yardstick_of_the_same_turn_is_what_ours_is_measured_by() -> None:
    runs = [{"rate": 45.0, "plain": 50.0}, {"rate": 20.0, "plain": 40.0}, {"rate": 95.0, "plain": 100.0}]
    results = {"postgres.ahead": {"durably": {"runs": runs}}}

    assert verdicts(results)["PostgreSQL, drain running ahead / without keys"] == (0.9, "reached")


def test_growth_compares_the_largest_with_the_smallest() -> None:
    rates = {"rate 10000": 100.0, "rate 100000": 40.0, "rate 5000000": 70.0}
    results = {"postgres.growth": {"durably": {"runs": [rates]}}}

    assert verdicts(results)["PostgreSQL, drain of the largest table / the smallest"] == (0.7, "not reached")


def test_the_table_says_all_of_it() -> None:
    told = spoken(judged({"sqlite.drain-1": measured(durably=30.0, huey=1.0)}))

    assert "reached        30.00  at least 15   SQLite, drain with one process / huey" in told
    assert len(told.splitlines()) == len(TARGETS)
