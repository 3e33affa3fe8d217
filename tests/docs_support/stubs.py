"""Comparing the signatures that a page shows with those of the code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


def complaints(code: str, find: Callable[[str], Any]) -> list[str]:
    """What a block of stubs says that is not so; `find` answers the object of a name."""
    found: list[str] = []
    for node in ast.parse(code).body:
        if isinstance(node, ast.ClassDef):
            found += [f"{node.name}.{told}" for told in _class_complaints(node, find(node.name))]
        elif isinstance(node, Function):
            found += _function_complaints(node, find(node.name))
    return found


def _class_complaints(shown: ast.ClassDef, real: Any) -> list[str]:
    found: list[str] = []
    for node in shown.body:
        if isinstance(node, Function):
            method = getattr(real, node.name, None)
            found += [f"{node.name} does not exist"] if method is None else _function_complaints(node, method)
        elif isinstance(node, ast.AnnAssign):
            found += _field_complaints(ast.unparse(node.target), node.value, real)
    fields = [ast.unparse(node.target) for node in shown.body if isinstance(node, ast.AnnAssign)]
    struct = list(getattr(real, "__struct_fields__", ()))
    only_fields = len(fields) == len(shown.body)
    return [*found, f"has the fields {struct}"] if only_fields and struct and fields != struct else found


def _field_complaints(name: str, default: ast.expr | None, real: Any) -> list[str]:
    if default is not None:
        defaults = inspect.signature(real).parameters
        return [] if defaults[name].default == ast.literal_eval(default) else [f"{name} has another default"]
    in_init = f"self.{name}" in inspect.getsource(real.__init__) if inspect.isfunction(real.__init__) else False
    return [] if hasattr(real, name) or in_init else [f"{name} does not exist"]


def _function_complaints(shown: Function, real: Any) -> list[str]:
    found = []
    if isinstance(shown, ast.AsyncFunctionDef) != inspect.iscoroutinefunction(real):
        found.append(f"{shown.name} is not as asynchronous as shown")
    signature = inspect.signature(real)
    bound = [argument for argument in _arguments(shown) if argument.name not in ("self", "cls")]
    actual = [
        inspect.Parameter(one.name, one.kind, default=one.default, annotation=_bare(one.annotation))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    if bound != actual:
        found.append(f"{shown.name}{signature} is what it is")
    if shown.returns is not None and ast.unparse(shown.returns) != _bare(signature.return_annotation):
        found.append(f"{shown.name} answers {signature.return_annotation}")
    return found


def _bare(annotation: Any) -> str:
    return str(annotation).replace("builtins.", "")


def _arguments(shown: Function) -> list[inspect.Parameter]:
    """The parameters of a stub, as `inspect` would tell them."""
    given = shown.args
    plain: list[tuple[ast.arg, Any]] = [(one, inspect.Parameter.POSITIONAL_ONLY) for one in given.posonlyargs]
    plain += [(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in given.args]
    first = len(plain) - len(given.defaults)
    defaults = [None] * first + [*given.defaults]
    found = [_parameter(one, kind, default) for (one, kind), default in zip(plain, defaults, strict=True)]
    if given.vararg is not None:
        found.append(_parameter(given.vararg, inspect.Parameter.VAR_POSITIONAL, None))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(_parameter(one, inspect.Parameter.KEYWORD_ONLY, default))
    if given.kwarg is not None:
        found.append(_parameter(given.kwarg, inspect.Parameter.VAR_KEYWORD, None))
    return found


def _parameter(shown: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    annotation = "" if shown.annotation is None else ast.unparse(shown.annotation)
    return inspect.Parameter(shown.arg, kind, default=value, annotation=annotation)
