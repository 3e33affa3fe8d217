"""Small pieces of text and the tables that are made of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from durably.cli.table import cut, table, wide
from durably.cli.words import counted, limit, printable, rate, relative
from durably.core.limits import Gate


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "")


def test_relative_times_have_one_unit() -> None:
    now = datetime.now(UTC)

    assert relative(now - timedelta(minutes=3, seconds=40)) == "3m ago"
    assert relative(now + timedelta(days=2, seconds=5)) == "in 2d"
    assert relative(now) == "just now"


def test_counts_and_rates_read_well() -> None:
    assert [counted(number, "task") for number in (0, 1, 12000)] == ["0 tasks", "1 task", "12,000 tasks"]
    assert [rate(20), rate(0.5), rate(1 / 1800), rate(1 / 7200)] == ["20/s", "30/m", "2/h", "0.5/h"]
    assert limit(None) == ""
    assert limit(Gate("q:x", 3, 0.5, 30.0, 0.0, 0)) == "3 at once, 30/m (burst 30)"


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\x1b[31m\r\n\x9b") == "a\\x1b[31m\\x0d\\x0a\\x9b"
    assert printable("a\n\tb\x1b", lines=True) == "a\n    b\\x1b"


def test_a_table_aligns_text_left_and_numbers_right_and_leaves_empty_columns_out() -> None:
    assert table(("NAME", "EMPTY", "COUNT"), [("a", None, 5), ("longer", "", 1200)]) == (
        "NAME    COUNT\na           5\nlonger   1200"
    )


def test_a_table_counts_the_columns_that_letters_take() -> None:
    assert [wide(text) for text in ("abc", "日本", "é", "e\u0301")] == [3, 4, 1, 1]
    assert table(("A", "B"), [("日本", "x"), ("abcd", "y")]) == "A     B\n日本  x\nabcd  y"


def test_what_is_cut_says_so() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"
    assert cut("日本語日本", 6) == "日本…"


def test_a_narrow_terminal_takes_from_the_widest_column_and_spares_the_important(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("0190a5d1-0000-7000-8000-000000000000", "cancelled", "x" * 40, "y" * 10)]
    headings = ("ID", "STATE", "LONG", "SHORT")

    monkeypatch.setenv("COLUMNS", "70")
    assert table(headings, rows, whole=("STATE",)).splitlines()[1].split() == [
        "0190a5d1-0000-7000-8000",
        "cancelled",
        "x" * 21 + "…",
        "y" * 10,
    ]
    monkeypatch.setenv("COLUMNS", "20")
    assert table(headings, rows, whole=("STATE",)).splitlines()[1].split() == [
        "0190a5d1-0000-7000-8000",
        "cancelled",
        "xxxxx…",
        "yyyyy…",
    ]
