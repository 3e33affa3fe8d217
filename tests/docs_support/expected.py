"""Comparing real output with the output that a page shows: ids and times may differ, the rest may not."""

from __future__ import annotations

import re

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
_AGE = r"(?:just now|(?:in )?\d+(?:ms|s|m|h|d)(?: \d+[smh])?(?: ago)?)"
_VARYING = {
    "id": _UUID,
    "session": r"\b[0-9a-f]{24}\b",
    "moment": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
    "clock": r"\b\d\d:\d\d:\d\d\.\d{3}\b",
    "duration": r"\bduration=[0-9.e-]+",
    "place": r"\S+, process \d+",
    "size": r"\d+\.\d MB",
    "version": r"SQLite \d+\.\d+\.\d+",
    "seconds": r"\bin \d+\.\d\ds",
    "age": rf"\b{_AGE}\b",
    "space": r"\s+",
}
_TOKEN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _VARYING.items()))
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(output: str) -> str:
    """The output without a terminal's colours and line ends."""
    return _COLOUR.sub("", output).replace("\r\n", "\n")


def compare(shown: str, real: str) -> dict[str, str] | None:
    """The real ids in place of those that the page shows; None if a line that is shown did not come, in this order.

    Lines that the page leaves out may come in between.
    """
    ids: dict[str, str] = {}
    lines = iter(plain(real).splitlines())
    for line in shown.splitlines():
        if not line.strip() or line.strip() == "...":
            continue
        pattern, names = _pattern(line.strip())
        found = next((match for one in lines if (match := pattern.fullmatch(one.strip()))), None)
        if found is None:
            return None
        for name, value in zip(names, found.groups(), strict=True):
            if ids.setdefault(name, value) != value:
                return None
    return ids


def _pattern(line: str) -> tuple[re.Pattern[str], list[str]]:
    """What a line that is shown allows, and the ids in it, which are captured."""
    parts, names, end = [], [], 0
    for token in _TOKEN.finditer(line):
        parts.append(re.escape(line[end : token.start()]))
        end = token.end()
        kind = token.lastgroup or ""
        if kind == "id":
            parts.append(f"({_UUID})")
            names.append(token[0])
        else:
            parts.append(_VARYING[kind])
    parts.append(re.escape(line[end:]))
    return re.compile("".join(parts)), names
