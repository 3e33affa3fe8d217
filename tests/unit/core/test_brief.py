"""Values in error messages: short, whatever they are."""

from __future__ import annotations

import pytest

from durably.core.brief import brief


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("red", "'red'"),
        (b"red", "b'red'"),
        (5, "5"),
        ("x" * 100, f"'{'x' * 100}'"),
        ("x" * 101, f"'{'x' * 99}..."),
        (b"x" * 101, f"b'{'x' * 98}..."),
        ("\0" * 49, repr("\0" * 49)),
        ("\0" * 51, repr("\0" * 51)[:100] + "..."),
        (list(range(60)), str(list(range(60)))[:100] + "..."),
        (["x" * 196], repr(["x" * 196])),
        (["x" * 197], repr(["x" * 197])[:100] + "..."),
        (Rude(), "a value of type Rude"),
    ],
)
def test_a_value_is_shown_in_about_a_hundred_characters(value: object, shown: str) -> None:
    assert brief(value) == shown
