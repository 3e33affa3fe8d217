"""What the source says, found by reading it: the kinds of events, the codes of `why`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs_support.markdown import ROOT

SOURCE = ROOT / "src" / "durably"
_PLACES = {"Event": 0, "Report": 2, "apply": 1, "failed": 3}
"""Where the kind of an event stands in the calls that name one."""


def event_kinds() -> set[str]:
    """Every kind of event that is emitted somewhere."""
    files = [*SOURCE.glob("worker/*.py"), *SOURCE.glob("client/*.py")]
    kinds = {text for file in files for call in _calls(file) for text in _kinds_in(call)}
    return kinds | {"failed"}  # the default of `Executor.failed`


def why_codes() -> set[str]:
    """Every code that `why` can answer."""
    calls = _calls(SOURCE / "core" / "explain.py")
    return {text for call in calls if _name(call) == "Why" for text in _texts(call.args[0])}


def _kinds_in(call: ast.Call) -> Iterator[str]:
    place = _PLACES.get(_name(call))
    if place is not None and len(call.args) > place:
        yield from _texts(call.args[place])


def _calls(file: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _texts(value: ast.expr) -> list[str]:
    """The texts that an expression can be, where it is written out."""
    match value:
        case ast.Constant(str() as text):
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body), *_texts(orelse)]
        case _:
            return []
