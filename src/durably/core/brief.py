"""Values as error messages show them."""

from __future__ import annotations

LONGEST = 100


def brief(value: object) -> str:
    """The value in at most about a hundred characters, however long it is and whatever its `repr` does."""
    start = value[:LONGEST] if isinstance(value, str | bytes) else value
    try:
        shown = repr(start)
    except Exception:
        return f"a value of type {type(value).__qualname__}"
    return shown if start is value and len(shown) <= 2 * LONGEST else f"{shown[:LONGEST]}..."
