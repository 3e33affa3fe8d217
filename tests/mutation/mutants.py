"""Every small wrong change that can be made to a module: one at a time, described in the module's own words."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
UNSPOKEN = ("annotation", "returns", "decorator_list", "ctx", "type_params")
UNHEARD = ("gc", "total")
"""Arguments of classes that no test can hear: one is about speed alone, one for the type checker."""
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass
class Mutant:
    """One wrong change: where it is, and what stands there instead."""

    module: str
    scope: str
    """The function that it is in; empty for what runs when the module is imported."""
    line: int
    change: str
    tree: ast.Module
    spot: Spot
    replacement: ast.AST

    @property
    def name(self) -> str:
        """What it is called, whatever line it is on."""
        return f"{self.module}{'.' + self.scope if self.scope else ''}: {self.change}"

    def compiled(self) -> CodeType:
        """The module's code with this change in it."""
        kept = self.spot.get()
        self.spot.put(self.replacement)
        try:
            return compile(ast.fix_missing_locations(copy.deepcopy(self.tree)), f"<mutant of {self.module}>", "exec")
        finally:
            self.spot.put(kept)


@dataclass
class Spot:
    """A place in a tree that can hold another node."""

    owner: ast.AST
    field: str
    index: int | None

    def get(self) -> Any:
        held = getattr(self.owner, self.field)
        return held if self.index is None else held[self.index]

    def put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text; equal changes in one function are numbered."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for scope, spot, node in _spots(tree):
        for before, after, replacement in _replacements(node):
            mutant = Mutant(module, scope, getattr(node, "lineno", 0), f"{before} -> {after}", tree, spot, replacement)
            seen[mutant.name] += 1
            if seen[mutant.name] > 1:
                mutant.change += f" ({seen[mutant.name]})"
            found.append(mutant)
    return found


def _spots(tree: ast.Module) -> Iterator[tuple[str, Spot, ast.AST]]:
    """Every node that says something at run time, with the function that it is in."""

    def walk(owner: ast.AST, scope: str, path: str) -> Iterator[tuple[str, Spot, ast.AST]]:
        for field, value in ast.iter_fields(owner):
            if field in UNSPOKEN or (isinstance(owner, ast.keyword) and owner.arg in UNHEARD):
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or _says_nothing(node):
                    continue
                inner = scope
                if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body":
                    inner = scope or path
                yield inner, Spot(owner, field, index if isinstance(value, list) else None), node
                name = getattr(node, "name", None)
                defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                yield from walk(node, inner, f"{path}.{name}".lstrip(".") if defines else path)

    return walk(tree, "", "")


def _says_nothing(node: ast.AST) -> bool:
    """Docstrings, imports, and what only a type checker reads."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.match_case(body=[ast.Expr(value=ast.Call(func=ast.Name(id="assert_never")))]):
            return True
        case ast.ClassDef(bases=bases):
            return any(isinstance(base, ast.Name) and base.id in ("Protocol", "TypedDict") for base in bases)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr())):
            return name[:1].isupper() and not name.isupper()
    return False


Replacement = tuple[str, str, ast.AST]


def _replacements(node: ast.AST) -> Iterator[Replacement]:
    match node:
        case ast.stmt():
            yield from _statements(node)
        case ast.Compare():
            yield from _compared(node)
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield _instead(node, ast.BoolOp(other, values))
            for index in range(len(values)):
                left = values[:index] + values[index + 1 :]
                yield _instead(node, left[0] if len(left) == 1 else ast.BoolOp(op, left))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield _instead(node, operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield _instead(node, ast.BinOp(left, OPERATORS[type(op)](), right))
        case ast.IfExp(body=body, orelse=orelse):
            yield _instead(node, body)
            yield _instead(node, orelse)
        case ast.Call():
            yield from _called(node)
        case ast.Constant():
            yield from _constants(node)
        case ast.comprehension(target=target, iter=source, ifs=conditions) if conditions:
            for index in range(len(conditions)):
                fewer = conditions[:index] + conditions[index + 1 :]
                yield _instead(node, ast.comprehension(target, source, fewer, 0))
        case ast.match_case(pattern=pattern, guard=guard, body=body):
            if guard is not None:
                yield (
                    f"case {ast.unparse(pattern)} if {ast.unparse(guard)}",
                    "case without if",
                    ast.match_case(pattern, None, body),
                )
            yield f"case {ast.unparse(pattern)}", "no such case", ast.match_case(pattern, ast.Constant(False), body)
        case ast.MatchOr(patterns=patterns):
            for index in range(len(patterns)):
                rest = patterns[:index] + patterns[index + 1 :]
                yield _instead(node, rest[0] if len(rest) == 1 else ast.MatchOr(rest))
        case ast.ExceptHandler(type=ast.Tuple(elts=kinds)):
            for index, kind in enumerate(kinds):
                others = ast.Tuple(kinds[:index] + kinds[index + 1 :], ast.Load())
                handler = ast.copy_location(ast.ExceptHandler(others, node.name, node.body), node)
                yield f"except {', '.join(map(_brief, kinds))}", f"not {_brief(kind)}", handler


def _instead(node: ast.AST, other: ast.AST) -> Replacement:
    return _brief(node), _brief(other), ast.copy_location(other, node) if hasattr(node, "lineno") else other


def _brief(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _statements(node: ast.stmt) -> Iterator[Replacement]:
    nothing = ast.copy_location(ast.Pass(), node)
    match node:
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield _instead(node, ast.Return(ast.Constant(None)))
        case ast.Raise() | ast.Expr() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield _brief(node), "nothing", nothing
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield _brief(node), "nothing", nothing
        case ast.If(test=test, body=body, orelse=orelse):
            if not isinstance(test, ast.Compare | ast.BoolOp) and not _is_not(test):
                yield (
                    f"if {_brief(test)}",
                    "if not",
                    ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), test), body, orelse), node),
                )


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _compared(node: ast.Compare) -> Iterator[Replacement]:
    for index, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield _instead(node, ast.Compare(node.left, ops, node.comparators))


def _called(node: ast.Call) -> Iterator[Replacement]:
    symmetric = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
    for index in range(0 if symmetric else len(node.args) - 1):
        first, second = node.args[index : index + 2]
        spread = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        if not spread and ast.dump(first) != ast.dump(second):
            args = [*node.args[:index], second, first, *node.args[index + 2 :]]
            yield _instead(node, ast.Call(node.func, args, node.keywords))
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            fewer = node.keywords[:index] + node.keywords[index + 1 :]
            told = f"{_brief(node.func)}(... {keyword.arg}={_brief(keyword.value)})"
            yield told, f"no {keyword.arg}=", ast.copy_location(ast.Call(node.func, node.args, fewer), node)
    if isinstance(node.func, ast.Name) and node.func.id in TWINS:
        twin = ast.Name(TWINS[node.func.id], ast.Load())
        yield _instead(node, ast.Call(twin, node.args, node.keywords))


def _constants(node: ast.Constant) -> Iterator[Replacement]:
    match node.value:
        case bool(value):
            yield _instead(node, ast.Constant(not value))
        case int(value):
            yield _instead(node, ast.Constant(value + 1))
            yield _instead(node, ast.Constant(value - 1))
        case float(value):
            yield _instead(node, ast.Constant(value * 2 + 1))
        case str(value):
            yield repr(value), "other text", ast.copy_location(ast.Constant(f"X{value}"), node)
        case bytes(value):
            yield repr(value), "other bytes", ast.copy_location(ast.Constant(b"X" + value), node)
