"""How much text something in a template would make: asked before it is made."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, MappingView
from itertools import chain
from numbers import Rational
from string import Formatter
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from markupsafe import escape

LIMIT = 5_000_000
"""Characters of any text that is made on the way, and bytes of the result."""
ITEM = 50
"""Characters that an item of a list or a pass of a loop counts for."""
WIDEST = 1_000
"""Characters to which a format can pad."""
BITS = 10_000
"""Bits of a number."""

TEXTS = (str, bytes, bytearray)
LISTS = (list, tuple, set, frozenset, deque, MappingView)
CONVERSION = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
NESTED = re.compile(r"%\([^()]*\(")


def fit(length: int) -> None:
    """Refuse what would be too long."""
    if length > LIMIT:
        raise SecurityError(f"this makes more than {LIMIT:,} characters")


def weight(value: Any, seen: dict[int, tuple[Any, int]] | None = None) -> int:
    """About how long a value is as text, without writing out a list that holds another one over and over."""
    if isinstance(value, TEXTS):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    if not isinstance(value, (dict, *LISTS)):
        return 0 if isinstance(value, Undefined) else len(str(value))
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = value, 0
        parts: Iterable[Any] = chain.from_iterable(value.items()) if isinstance(value, dict) else value  # type: ignore[assignment]
        seen[id(value)] = value, 2 + sum(4 + weight(part, seen) for part in parts)
    return seen[id(value)][1]


def total(*values: Any, **named: Any) -> int:
    return sum(map(weight, (*values, *named.values())))


def reach(value: Any) -> int:
    """How much a width adds: so many blanks, or the text itself."""
    return abs(value) if isinstance(value, int) else weight(value)


def size(value: Any) -> int:
    """What a text or list counts for that is repeated or made longer."""
    return len(value) if isinstance(value, TEXTS) else ITEM * len(value) if isinstance(value, list | tuple) else 0


def bits(value: Any) -> int:
    whole = (value.numerator, value.denominator) if isinstance(value, Rational) else ()
    return sum(int(one).bit_length() for one in whole)


def short(length: int) -> None:
    if length > BITS:
        raise SecurityError(f"this makes a number of more than {BITS:,} bits")


def narrow(widths: Iterable[str]) -> None:
    if any(width == "*" or (width and int(width) > WIDEST) for width in widths):
        raise SecurityError(f"a format says how wide it is, and pads to {WIDEST:,} characters at most")


def percent(pattern: Any, values: Any) -> int:
    fit(weight(pattern))
    text = pattern.decode("latin-1") if isinstance(pattern, bytes | bytearray) else str(pattern)
    if NESTED.search(text):
        raise SecurityError("a name in a format has no parentheses")
    narrow(chain.from_iterable(CONVERSION.findall(text)))
    return len(text) + text.count("%") * (WIDEST + weight(values))


def braces(pattern: str, values: Any) -> int:
    fields = [(name, spec or "") for _, name, spec, _ in Formatter().parse(pattern) if name is not None]
    if not all(re.fullmatch(r"\w*", name) and "{" not in spec for name, spec in fields):
        raise SecurityError("a format takes values by name or number; look into them before")
    narrow(re.findall(r"\d+", " ".join(spec for _, spec in fields)))
    return len(pattern) + len(fields) * (WIDEST + weight(values))


def replaced(s: Any, old: Any, new: Any, count: Any = None) -> int:
    fit(weight(s) + weight(old))
    times = max(str(text).count(str(part)) for text in (s, escape(s)) for part in (old, escape(old)))
    return weight(s) + times * weight(new)


LISTING = (
    "abs attr count dictsort first float groupby int items last length list map max min random reject rejectattr"
    " reverse select selectattr unique"
)
FILTERS_MAKE: dict[str, Callable[..., int]] = {
    **dict.fromkeys(LISTING.split(), lambda value, *others, **named: total(*others, **named)),
    **dict.fromkeys(("d", "default"), lambda *values, **named: 0),
    "batch": lambda value, linecount, fill_with=None: ITEM * reach(linecount),
    "center": lambda value, width=80: weight(value) + reach(width),
    "format": lambda value, *values, **named: percent(value, named or values),
    "indent": lambda s, width=4, first=False, blank=False: (1 + weight(s)) * (1 + reach(width)),
    "pprint": lambda value: weight(value) ** 2,
    "replace": replaced,
    "round": lambda value, precision=0, method="common": LIMIT // 500 * reach(precision),
    "slice": lambda value, slices, fill_with=None: ITEM * reach(slices),
    "sort": lambda value, reverse=False, case_sensitive=False, attribute=None: LIMIT // 100 * weight(attribute),
    "sum": lambda iterable, attribute=None, start=0: LIMIT + 1 if isinstance(start, LISTS) else weight(attribute),
    "tojson": lambda value, indent=None: weight(value) * (1 + (reach(indent) * weight(value) if indent else 0)),
    "urlize": lambda value, *others, **named: (1 + weight(value)) * (3 + total(*others, **named)),
    "wordwrap": lambda s, width=79, break_long_words=True, wrapstring="\n", break_on_hyphens=True: (
        (1 + weight(s)) * (1 + weight(wrapstring))
    ),
}
"""How much a filter makes at most. Those that are not named make about as much as they are given."""
METHODS_MAKE: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), lambda s, width, fill=" ": len(s) + reach(width)),
    "expandtabs": lambda s, tabsize=8: len(s) + s.count("\t") * reach(tabsize),
    "join": lambda s, values: weight(values) + len(s) * len(values),
    "replace": replaced,
}
