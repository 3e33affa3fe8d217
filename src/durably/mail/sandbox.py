"""Rendering a source that nobody vouches for: no way out of it, and no more text and work than a mail can need.

Jinja2's sandbox keeps a template away from the program. What is added here keeps it from eating the memory: whatever
can make much of little is asked beforehand how much that would be, and everything that is made is counted. Time is
bounded only by what is counted: passes of loops, calls, and characters.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from traceback import walk_tb
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, NoReturn

from jinja2 import BaseLoader, StrictUndefined, Template, TemplateError, TemplateNotFound, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.meta import find_referenced_templates
from jinja2.runtime import Context, LoopContext, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg, pass_context
from markupsafe import Markup

from durably.core.task import clean
from durably.errors import BadOption, DurablyError
from durably.mail.weights import (
    FILTERS_MAKE,
    ITEM,
    LIMIT,
    LISTS,
    METHODS_MAKE,
    TEXTS,
    bits,
    braces,
    fit,
    percent,
    reach,
    short,
    size,
    total,
    weight,
)

WORK = 10 * LIMIT
"""Characters that one part of a mail may make in all."""
CALL = 500
"""Characters that a call or another file counts for."""
LONGEST = 1_000_000
"""Bytes of a source."""
SHOWN = 300

Read = Callable[[str], str | None]
"""Gives the source of a file that a template extends, includes or imports; None if there is no such file."""

OF_TEXT = (
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii"
    " isdecimal isdigit islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition"
    " removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip"
    " swapcase title upper zfill"
)
PLAIN: dict[type, str] = {
    str: OF_TEXT,
    Markup: f"{OF_TEXT} striptags unescape",
    **dict.fromkeys((bytes, bytearray), "decode"),
    **dict.fromkeys((int, float), "is_integer"),
    **dict.fromkeys((list, tuple, deque), "count index"),
    **dict.fromkeys((set, frozenset), "isdisjoint issubset issuperset"),
    **dict.fromkeys((dict, OrderedDict, Counter), "get items keys values"),
}
"""What a template can use of Python's own types: nothing that changes them, and nothing that is not counted."""
METHODS = {kind: frozenset(names.split()) for kind, names in PLAIN.items()}


class Pieces(list[str]):
    """Text that is put together, and counted meanwhile."""

    def __init__(self, sandbox: Any, pieces: Iterable[str] = ()) -> None:
        super().__init__()
        self._sandbox, self._length = sandbox, 0
        self.extend(pieces)

    def append(self, piece: str) -> None:
        self._length += len(piece)
        fit(self._length)
        self._sandbox.spend(len(piece) + 8)
        super().append(piece)

    def extend(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            self.append(piece)


class Counting(CodeGenerator):
    """Writes the code of a template so that loops, lists and joined text are counted."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        for loop in list(node.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        super().visit_Template(node, frame)

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.pieces()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        escaped = "context.eval_ctx.autoescape" if frame.eval_ctx.volatile else bool(frame.eval_ctx.autoescape)
        self.write(f"environment.joined({escaped}, ")
        super().visit_Tuple(nodes.Tuple(node.nodes, "load"), frame)
        self.write(")")

    def visit_List(self, node: Any, frame: Frame, made: Any = CodeGenerator.visit_List) -> None:
        self.write("environment.made(")
        made(self, node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.visit_List(node, frame, CodeGenerator.visit_Dict)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self.visit_List(node, frame, CodeGenerator.visit_Tuple)
        else:
            super().visit_Tuple(node, frame)


class Part(Template):
    """A template whose text is counted when it is imported, too."""

    def make_module(self, vars: Any = None, shared: bool = False, locals: Any = None) -> TemplateModule:
        context = self.new_context(vars, shared, locals)
        return TemplateModule(self, context, Pieces(self.environment, self.root_render_func(context)))


class Notes(Namespace):
    """A namespace that does not show what is in it: that could be longer than anything that was counted."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Files(BaseLoader):
    """The files that a template extends, includes or imports."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def load(self, environment: Any, name: str, globals: Any = None) -> Template:
        source = self._read(name)
        if source is None:
            raise TemplateNotFound(name, f"there is no file {name!r} among the templates")
        return Part.from_code(environment, compiled(name, source), globals)


class Sandbox(ImmutableSandboxedEnvironment):
    """Where one part of a mail is rendered; the next one gets its own, so that nothing is left over."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = Counting
    template_class = Part

    def __init__(self, read: Read) -> None:
        escaped = re.compile(r"html|.*\.html", re.DOTALL)
        super().__init__(
            undefined=StrictUndefined,
            autoescape=lambda name: name is not None and escaped.fullmatch(name) is not None,
            finalize=shown,
            optimized=False,
            auto_reload=False,
            loader=Files(read),
        )
        self.filters, self.tests = FILTERS, TESTS
        self.globals = dict(GLOBALS)
        self.left = WORK

    def spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise SecurityError("this is too much work for a mail; loop less, or over less")

    def made(self, value: Any) -> Any:
        """Count what was made, and hand it on."""
        if isinstance(value, TEXTS):
            fit(len(value))
            self.spend(ITEM + len(value))
        else:
            self.spend(ITEM + ITEM * len(value) if isinstance(value, (dict, *LISTS)) else ITEM)
        return value

    def pieces(self) -> Pieces:
        return Pieces(self)

    def concat(self, pieces: Iterable[str]) -> str:
        return "".join(pieces if isinstance(pieces, Pieces) else Pieces(self, pieces))

    def joined(self, escaped: bool, parts: tuple[Any, ...]) -> Any:
        fit(weight(parts))
        return self.made((markup_join if escaped else str_join)(parts))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        of_a_type = isinstance(obj, type)
        kind = obj if of_a_type else type(obj)
        for plain, allowed in METHODS.items():
            if issubclass(kind, plain) and hasattr(plain, attr) and (of_a_type or attr not in allowed):
                return False
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        fit(weight(argument) if isinstance(argument, (dict, *LISTS)) else 0)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)

        def fitting(*values: Any, **named: Any) -> str:
            fit(braces(value.__self__, (values, named)))
            assert wrapped is not None
            return wrapped(*values, **named)

        return None if wrapped is None else fitting

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = obj.__self__ if isinstance(obj, MethodType | BuiltinMethodType) else None
        if isinstance(obj, LoopContext):
            args = tuple(counted(context, one) for one in args)
        elif isinstance(owner, TEXTS):
            args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
            fit(METHODS_MAKE.get(obj.__name__, total)(owner, *args, **kwargs))
        elif isinstance(obj, BuiltinMethodType):
            fit(total(*args, **kwargs))
        self.spend(CALL)
        return self.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, TEXTS):
            fit(percent(left, right))
        elif operator == "+":
            fit(size(left) + size(right))
        elif operator == "*":
            fit(size(left) * reach(right) + size(right) * reach(left))
            short(bits(left) + bits(right))
        elif operator == "**":
            short(bits(left) * reach(right))
        return self.made(super().call_binop(context, operator, left, right))

    def join_path(self, template: Any, parent: str) -> str:
        self.spend(CALL)
        fit(weight(template))
        return str(template)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Leave the traceback as it is: where the error lies is read from it."""
        raise


@pass_context
def shown(context: Context, value: Any) -> Any:
    fit(weight(value) if isinstance(value, (dict, *LISTS)) else 0)
    return value


@pass_context
def counted(context: Any, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        context.environment.spend(ITEM)
        yield value


@pass_context
def join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
    found = list(value if attribute is None else map(make_attrgetter(context.environment, attribute), value))
    fit(weight(found) + len(found) * weight(d))
    return context.environment.made(DEFAULT_FILTERS["join"](context.eval_ctx, found, d))


def guarded(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is asked how much it would make."""
    makes = FILTERS_MAKE.get(name, total)
    takes = _PassArg.from_obj(filter)

    @pass_context
    def asked(context: Any, /, *values: Any, **named: Any) -> Any:
        fit(makes(*values, **named))
        known = {_PassArg.context: context, _PassArg.eval_context: context.eval_ctx}
        first = () if takes is None else (known.get(takes, context.environment),)
        return context.environment.made(filter(*first, *values, **named))

    return asked


def weighed(test: Any) -> Callable[..., bool]:
    def asked(value: Any) -> bool:
        fit(weight(value))
        return bool(test(value))

    return asked


FILTERS = {name: guarded(name, filter) for name, filter in DEFAULT_FILTERS.items()} | {"counted": counted, "join": join}
TESTS = DEFAULT_TESTS | {name: weighed(DEFAULT_TESTS[name]) for name in ("lower", "upper")}
GLOBALS = {"cycler": Cycler, "dict": dict, "joiner": Joiner, "namespace": Notes, "range": safe_range}


@lru_cache(maxsize=100)
def compiled(name: str, source: str) -> CodeType:
    """The code of a source; its name says whether values are escaped."""
    if len(source.encode()) > LONGEST:
        raise SecurityError(f"a source has at most {LONGEST:,} bytes")
    return Sandbox(lambda name: None).compile(source, name)


@lru_cache(maxsize=100)
def references(source: str) -> frozenset[str]:
    """What a source extends, includes or imports by name; nothing if it cannot be read."""
    try:
        return frozenset(filter(None, find_referenced_templates(Sandbox(lambda name: None).parse(source))))
    except Exception:
        return frozenset()


def rendered(template: str, part: str, source: str, context: Mapping[str, Any], read: Read) -> str:
    """A part of a template with its values."""
    with telling(template, part):
        sandbox = Sandbox(read)
        code = Part.from_code(sandbox, compiled(part, source), sandbox.make_globals(None))
        text = "".join(Pieces(sandbox, code.generate(context)))
        fit(len(text.encode()))
        return text


@contextmanager
def telling(template: str, part: str) -> Iterator[None]:
    """Whatever goes wrong is told with where."""
    try:
        yield
    except Exception as error:
        where, line = part, 0
        if isinstance(error, TemplateSyntaxError):
            where, line = error.name or part, error.lineno
        else:
            for frame, number in walk_tb(error.__traceback__):
                source = frame.f_globals.get("__jinja_template__")
                if source is not None:
                    where, line = source.name, source.get_corresponding_lineno(number)
        said = error.message if isinstance(error, TemplateError) else str(error)
        if not isinstance(error, TemplateError | DurablyError):
            said = f"{type(error).__name__}: {said}"
        place = f"{where}, line {line}" if line else where
        raise BadOption(f"template {template!r} ({place}): {' '.join(clean(said or '', SHOWN).split())}") from error
