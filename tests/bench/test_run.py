"""A tiny run for real: `python -m bench`, and `durably bench` on both stores."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import bench.__main__ as command
from bench.measurements import QUICK, measurements
from durably.cli import main

TINY = replace(QUICK, seconds=0.1, tasks=3_000, waits=20)


def test_a_tiny_run_measures_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "QUICK", TINY)

    code = command.main(["--quick", "--peers", "none", "--only", "sqlite.drain-1", "--out", str(tmp_path)])

    assert code == 0
    outcome = json.loads((tmp_path / "results.json").read_text("utf-8"))
    rates = {name: one["median"]["rate"] for name, one in outcome["measurements"]["sqlite.drain-1"].items()}
    assert rates.keys() == {"durably", "bare loop of 500", "bare loop of 1000"}
    assert all(rate > 0 for rate in rates.values())
    assert re.search(r"reached +\d+\.\d\d  at least 0.35 SQLite, drain", capsys.readouterr().out)
    assert not re.search(r"/home/|/root/|/tmp/", (tmp_path / "README.md").read_text("utf-8"))


def test_the_measurements_can_be_listed_and_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(measurements())
    assert [one.name for one in command.chosen(["drain"])] == [
        "postgres.drain-1",
        "postgres.drain-2",
        "sqlite.drain-1",
        "sqlite.drain-2",
    ]


@pytest.mark.parametrize("wrong", [["--only", "nothing"], ["--peers", "nobody"]])
def test_what_there_is_not_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(wrong)


def test_an_own_file_is_measured_beside_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "shop.db")
    main(["migrate", "--store", store])
    capsys.readouterr()

    assert main(["bench", "--store", store, "--seconds", "0.1", "--tasks", "2000"]) == 0

    assert "drain with one worker process" in capsys.readouterr().out
    assert not list(tmp_path.glob("durably-bench-*"))
    assert main(["tasks", "list", "--store", store]) == 0
    assert capsys.readouterr().out == "No tasks match.\n"


def test_an_own_database_is_measured_in_a_schema_that_goes(
    migrated_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--store", migrated_postgres_url, "--seconds", "0.1", "--tasks", "2000", "--json"]) == 0

    figures = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["drain with two worker processes"] > 0
    with psycopg.connect(migrated_postgres_url) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'durably%'").fetchall()
    assert left == [("durably",)]
