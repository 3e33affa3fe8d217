"""The words of a notification that has no template. Pure."""

from __future__ import annotations

from typing import Any

from durably.core.task import clean
from durably.notifications.catalogue import Kind


def plain(kind: Kind, data: list[Any]) -> tuple[str, str, str | None]:
    """Title, text and HTML: the data, line by line."""
    first = data[0] if isinstance(data[0], dict) else {}
    title = str(first.get("title", kind.name)) if len(data) == 1 else f"{kind.name} ({len(data)})"
    return clean(" ".join(title.split()), 200), "\n\n".join(_lines(one) for one in data), None


def _lines(data: Any) -> str:
    if isinstance(data, dict):
        shown = [f"{name}: {value}" for name, value in data.items() if name not in ("title", "text")]
        return "\n".join([*([str(data["text"])] if "text" in data else []), *shown])
    return str(data)
