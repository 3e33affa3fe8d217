"""What the source says: the kinds of events, the codes of `why`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from durably.observe.events import Kind
from tests.docs_support.markdown import ROOT

SOURCE = ROOT / "src" / "durably"


def event_kinds() -> set[str]:
    """Every kind of event; the type checker sees to it that no other is emitted."""
    return set(get_args(Kind))


def why_codes() -> set[str]:
    """Every code that `why` can answer."""
    calls = _calls(SOURCE / "core" / "explain.py")
    return {text for call in calls if _name(call) == "Why" for text in _texts(call.args[0])}


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
