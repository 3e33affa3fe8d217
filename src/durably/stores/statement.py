"""Operations are generators that yield statements; whoever drives one decides on which connection they run.

That is how one implementation serves the engine's own connections, synchronous and asynchronous, and the
connection of a caller who wants a task accepted with the caller's own transaction.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib import resources
from itertools import repeat
from operator import itemgetter
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

Rows = list[tuple[Any, ...]]


class Part(NamedTuple):
    """One SQL statement, and which of the arguments it takes, in its order; minus one is the time."""

    text: str
    takes: tuple[int, ...]


class Query(NamedTuple):
    """A named query: one statement, or a few that belong together."""

    name: str
    parts: tuple[Part, ...]


class Statement(NamedTuple):
    """A query with its arguments. With `each`, lists are columns, and it applies to every row of them.

    What is no list is then the same for every row.
    """

    query: Query
    args: tuple[Any, ...]
    each: bool


Steps = Generator[Statement, Rows, T]


class Dialect(NamedTuple):
    """What makes one database's SQL text into runnable queries."""

    package: str
    macros: dict[str, str]
    numbered: bool
    """True for $1 (PostgreSQL, which has its own now()); False for ? (SQLite, which is told the time)."""
    schema: str = "durably"


class Queries:
    """The named queries of one store: `q("name", ...)` runs once, `q.each("name", ...)` for every row."""

    def __init__(self, queries: dict[str, Query]) -> None:
        self._queries = queries

    def __call__(self, name: str, *args: Any) -> Statement:
        return Statement(self._queries[name], args, False)

    def each(self, name: str, *columns: Any) -> Statement:
        return Statement(self._queries[name], columns, True)

    def __contains__(self, name: str) -> bool:
        return name in self._queries

    def without(self, *names: str) -> Queries:
        """The same, but for some."""
        return Queries({name: query for name, query in self._queries.items() if name not in names})

    @property
    def names(self) -> list[str]:
        return sorted(self._queries)

    def text(self, name: str) -> str:
        """The SQL of a query, for people and for tests of its plan."""
        return ";\n".join(part.text for part in self._queries[name].parts)


def load(dialect: Dialect) -> Queries:
    """Read every .sql file of a store's package: a line `-- :name` begins a query."""
    found: dict[str, Query] = {}
    for file in sorted(resources.files(dialect.package).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            for name, text in _named(file.read_text("utf-8")):
                if name in found:
                    raise ValueError(f"the query {name!r} is defined twice in {dialect.package}")
                found[name] = _compiled(name, text, dialect)
    return Queries(found)


def _named(text: str) -> list[tuple[str, str]]:
    _, *blocks = re.split(r"^-- :(\w+)\n", text, flags=re.MULTILINE)
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def _compiled(name: str, text: str, dialect: Dialect) -> Query:
    for macro, columns in dialect.macros.items():
        text = text.replace("{" + macro + "}", columns)
    text = re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE).strip()
    parts = []
    for piece in re.split(r";\s*\n", text):
        named = re.findall(r"\?\d+|:now", piece)
        takes = tuple(-1 if name == ":now" else int(name[1:]) - 1 for name in named)
        if dialect.numbered:
            parts.append(Part(re.sub(r"\?(\d+)", r"$\1", in_schema(piece, dialect.schema)), takes))
        else:
            parts.append(Part(re.sub(r"\?\d+|:now", "?", piece), takes))
    return Query(name, tuple(parts))


def in_schema(text: str, schema: str) -> str:
    """The SQL text with the configured schema in place of the default one."""
    return text.replace("durably.", f"{schema}.").replace("'durably'", f"'{schema}'")


_json = msgspec.json.Encoder().encode


def plain_calls(statement: Statement, now: int) -> list[tuple[str, tuple[Any, ...]]]:
    """The calls that a statement means on a database without arrays: lists become JSON, rows become calls."""
    query, given, each = statement
    calls = []
    for row in _rows(given) if each else (given,):
        args = (*row, now) if _NOT_PLAIN.isdisjoint(map(type, row)) else (*map(_plain, row), now)
        for text, takes in query.parts:
            calls.append((text, _picker(takes)(args)))
    return calls


@functools.cache
def _picker(takes: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes these of a list."""
    return itemgetter(*takes) if len(takes) > 1 else lambda args: tuple([args[index] for index in takes])


def _rows(columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of columns, some of which may be one value for all of them."""
    count = max(len(value) for value in columns if type(value) in _COLUMN)
    return zip(*(value if type(value) in _COLUMN else repeat(value, count) for value in columns), strict=True)


_COLUMN = (list, tuple)
_NOT_PLAIN = frozenset({list, bool})


def _plain(value: Any) -> Any:
    """A value that no adapter of the application's gets to see."""
    kind = type(value)
    return _json(value).decode() if kind is list else int(value) if kind is bool else value


def array_call(statement: Statement) -> tuple[str, tuple[Any, ...]]:
    """The one call that a statement means on a database with arrays."""
    [part] = statement.query.parts
    return part.text, statement.args


class Operation(msgspec.Struct, Generic[T_co], frozen=True, eq=False):
    """Something to do in one transaction; `steps` begins it anew, so that it can be repeated after a collision."""

    name: str
    steps: Callable[[Queries], Steps[T_co]]
    writes: bool = True
    single: bool = False

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


class Otherwise(Exception):
    """What an operation has written must be undone; it is run again without the statement of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"not by {name}")
        self.name = name


def operation(
    *, writes: bool = True, single: bool = False
) -> Callable[[Callable[Concatenate[Queries, P], Steps[T]]], Callable[P, Operation[T]]]:
    """Make a generator function over queries into a function that answers with an `Operation`.

    `single` promises that it needs no transaction around it: of its statements, at most one writes, or each that does
    stands by itself.
    """

    def decorate(function: Callable[Concatenate[Queries, P], Steps[T]]) -> Callable[P, Operation[T]]:
        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
            return Operation(function.__name__, lambda q: function(q, *args, **kwargs), writes=writes, single=single)

        return make

    return decorate
