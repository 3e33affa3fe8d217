"""The production worker in virtual time: two thousand seeds of faults, a sample of them on PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest

from durably.stores.postgres.pieces import dialect as postgres_dialect
from durably.stores.sqlite.store import DIALECT as SQLITE
from durably.stores.statement import Dialect, load
from durably.testing.servers import PostgresServer
from durably.testing.simulation import run_seed
from durably.testing.simulation.__main__ import main, told
from durably.testing.simulation.many import play
from durably.testing.simulation.network import ANSWERING, BESIDE, SILENT
from durably.testing.simulation.scenario import Handling, Lookup, Reply
from tests.conftest import fresh_database
from tests.simulation.postgres_database import PostgresDatabase

SEEDS = 2000
SAMPLE = range(0, SEEDS, SEEDS // 50)

MUST_HAPPEN = {
    "lost request",
    "broken off",
    "lost reply",
    "late",
    "crash before",
    "crash within",
    "crash after",
    "pause after",
    "lost wake-up",
    "outage",
    "write lock",
    "clock set forward",
    "clock set back",
    "bad row",
    "newer schema",
    "blow: crash",
    "blow: restart",
    "blow: stop",
    "blow: block",
    *(f"host {handling}" for handling in get_args(Handling)),
    *(f"channel {reply}" for reply in get_args(Reply)),
    *(f"application {lookup}" for lookup in get_args(Lookup)),
    "peer fails",
    "peer is away",
    "peer is silent",
    "peer leaves",
    "peer raises",
    "peer refuses",
    "peer takes",
    "peer takes silently",
    "peer throttles",
    "says completed",
    "says crashed",
    "says destination_disabled",
    "says destination_gone",
    "says destination_suspended",
    "says destination_throttled",
    "says dead",
    "says expired",
    "says fenced",
    "says key_paused",
    "says session_lost",
    "says stuck",
    "says unknown",
}


def test_nothing_goes_wrong_whatever_strikes_and_everything_strikes() -> None:
    happened = Counter[str]()
    for brief in play(range(SEEDS)):
        if brief.violations:
            pytest.fail(told(run_seed(brief.seed)), pytrace=False)
        happened += brief.happened

    assert happened.keys() >= MUST_HAPPEN


@pytest.mark.parametrize("seed", [23, 260, 564, 787, 1_161, 3_641, 3_949, 7_407, 9_206, 13_579])
def test_a_seed_that_once_found_something_finds_it_no_more(seed: int) -> None:
    assert run_seed(seed).violations == []


WRITES = re.compile(r"INSERT INTO|DELETE FROM|(?<!FOR )(?<!FOR NO KEY )(?<!DO )UPDATE")


@pytest.mark.parametrize("dialect", [SQLITE, postgres_dialect("durably")], ids=lambda dialect: dialect.package)
def test_every_statement_that_writes_is_known_to_do_so(dialect: Dialect) -> None:
    queries = load(dialect)
    writing = {name for name in queries.names if WRITES.search(queries.text(name))}

    assert writing <= SILENT | ANSWERING | BESIDE
    assert len(writing) > 30


@pytest.fixture(scope="module")
def postgres(postgres18: PostgresServer, postgres18_template: str) -> Iterator[PostgresDatabase]:
    with fresh_database(postgres18, postgres18_template) as url:
        database = PostgresDatabase(url)
        yield database
        database.close()


@pytest.mark.parametrize("first", SAMPLE[::10])
def test_nothing_goes_wrong_on_postgresql_either(first: int, postgres: PostgresDatabase) -> None:
    place = SAMPLE.index(first)
    for seed in SAMPLE[place : place + 10]:
        outcome = run_seed(seed, database=postgres)
        assert not outcome.violations, told(outcome)


def test_the_same_seed_tells_the_same_story_in_another_process() -> None:
    command = [sys.executable, "-m", "durably.testing.simulation", "--first", "5", "--seeds", "1", "--story"]
    stories = [
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": chance}, capture_output=True, text=True, check=True
        ).stdout
        for chance in ("1", "2")
    ]

    assert stories[0] == stories[1]
    assert stories[0].count("\n") > 50


def test_the_same_seed_tells_the_same_story_whatever_was_played_before() -> None:
    story = run_seed(3).trace
    run_seed(4)

    assert run_seed(3).trace == story


def test_the_command_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--jobs", "1"]) == 0
    assert "3 seeds" in capsys.readouterr().out
