"""Options: checked when they are given, with an error that says what is allowed."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from durably import BadOption, Durably, Retry, Unique


@pytest.fixture
def app() -> Durably:
    return Durably("sqlite://")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": ""}, "queue: '' must be text of 1 to 200"),
        ({"queue": "a/b"}, "must not contain '/'"),
        ({"queue": "a\0b"}, "NUL"),
        ({"namespace": "a/b"}, "namespace: 'a/b' must not contain '/'"),
        ({"priority": 10}, "from 0 \\(last\\) to 9 \\(first\\)"),
        ({"priority": True}, "priority"),
        ({"key": 7}, "key: 7"),
        ({"key": "\ud800"}, "surrogates"),
        ({"order": "fifo"}, "order: 'fifo' is not one of block, overtake, pause"),
        ({"unique": Unique("x", scope="always")}, "not one of waiting, live, period, forever"),
        ({"unique": Unique("x", scope="period")}, "needs period="),
        ({"unique": Unique("x", period=0)}, "longer than nothing"),
        ({"unique": 5}, "must be text or Unique"),
        ({"retry": "often"}, "is not a policy"),
        ({"timeout": 0}, "longer than nothing"),
        ({"expires": "soon"}, "not a duration"),
        ({"tags": "red"}, "must be a list of texts"),
        ({"tags": ["t"] * 21}, "21 are too many"),
        ({"crash_cap": 1}, "from 2 to 100"),
        ({"limit": ""}, "limit"),
        ({"colour": "red"}, "there is no option colour; the options are at, at_most_once"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(app: Durably, options: dict[str, Any], complaint: str) -> None:
    async def work() -> None: ...

    with pytest.raises(BadOption, match=complaint):
        app.task(**options)(work)
    fine = app.task(work)
    with pytest.raises(BadOption, match=complaint):
        fine.using(**options)


def test_delay_and_at_exclude_each_other_and_at_needs_a_zone(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="delay or at, not both"):
        work.using(delay=1, at=datetime.now(UTC))
    with pytest.raises(BadOption, match="no time zone"):
        work.using(at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(BadOption, match="must be a datetime"):
        work.using(at="tomorrow")  # type: ignore[arg-type]


def test_later_options_win_and_leave_the_earlier_binding_alone(app: Durably) -> None:
    @app.task(queue="billing", priority=3)
    async def work() -> None: ...

    urgent = work.using(priority=9)
    reports = urgent.using(queue="reports", key="k")

    assert [one.enqueue().info().priority for one in (work, urgent, reports)] == [3, 9, 9]
    assert [one.enqueue().info().queue for one in (work, urgent, reports)] == ["billing", "billing", "reports"]
    app.close()


def test_a_function_cannot_travel_with_a_task(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="declaration only"):
        work.using(retry=Retry.custom(lambda failures: 1.0, attempts=3, cap="1m"))


def test_two_tasks_cannot_have_one_name(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="already declared"):
        app.task(name="work")(work.function)


def test_a_store_that_is_not_known_is_named_with_those_that_are() -> None:
    for url in ("mysql://x", "nonsense", "sqlite://host/file.db"):
        with pytest.raises(BadOption, match="sqlite:///"):
            Durably(url)


SNIPPET = """
from durably import Durably

app = Durably("sqlite://")

@app.task(queue="billing")
async def charge(order: str, cents: int) -> str:
    return order

@app.task
def plain(number: int) -> bytes:
    return b""

reveal_type(charge.enqueue("o-1", 5).result())
reveal_type(plain.using(key="k").call(3))
charge.enqueue("o-1", "five")
charge.using(priority=3).enqueue("o-1")
plain.call(number="x")
charge.using(colour="red")
charge.using(priority="high")
"""


def test_the_type_checker_knows_a_wrong_argument(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "snippet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    told = [line.partition(": ")[2] for line in done.stdout.splitlines()]

    assert told[0] == 'note: Revealed type is "str"'
    assert told[1] == 'note: Revealed type is "durably.client.definition.Call[bytes]"'
    assert [line[:7] for line in told].count("error: ") == 5
    for number, wrong in ((16, '"str"; expected "int"'), (17, "missing"), (18, '"str"; expected "int"')):
        [line] = [
            line for line in done.stdout.splitlines() if line.startswith(f"snippet.py:{number}:") and "error" in line
        ]
        assert wrong.lower() in line.lower()
