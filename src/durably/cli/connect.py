"""Which store a command works on, and the options that say so."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from durably.app import Durably
from durably.cli.grammar import Parser
from durably.cli.locate import find_app
from durably.cli.output import note
from durably.cli.usage import Usage
from durably.errors import SchemaOutdated, StoreUnavailable

VARIABLE = "DURABLY_STORE"
ADDRESS = re.compile(r"\w+:")
SERVER = re.compile(r"(?i)\b(host|hostaddr|dbname|user|password)\s*=|:[^/]*@")
"""What is meant for a server, and is no name of a file."""
USUAL, DEMO = "durably.db", "durably-demo.db"

StoreCommand = Callable[[Durably, argparse.Namespace], int]


def on_store(parser: Parser, run: StoreCommand, *, may_create: bool = False, any_schema: bool = False) -> Parser:
    """Give a command the options that choose a store, and call it with an application on that store."""
    where = parser.add_argument_group("where the tasks are")
    where.add_argument(
        "--store", metavar="URL", help=f"sqlite:///file.db, postgresql://..., or a file (else ${VARIABLE}, ./{USUAL})"
    )
    where.add_argument("--schema", metavar="NAME", help="the schema in PostgreSQL (durably)")
    where.add_argument("--namespace", metavar="NAME", help="only this namespace; queue names belong to it")
    where.add_argument("--app", metavar="MODULE:APP", help="the store of this application, read with its codec")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def connected(options: argparse.Namespace) -> int:
        app = _application(options)
        try:
            _check(app, may_create and not vars(options).get("check"), any_schema)
            return run(app, options)
        finally:
            app.close()

    parser.set_defaults(run=connected)
    return parser


def chosen_namespace(app: Durably, options: argparse.Namespace) -> str | None:
    """The namespace to look at; None is all of them."""
    if options.namespace is not None or app.namespace != "default":
        return app.namespace
    return None


def _application(options: argparse.Namespace) -> Durably:
    if options.app is None:
        given = {"namespace": options.namespace, "schema": options.schema}
        return Durably(_url(options.store), **{name: value for name, value in given.items() if value is not None})
    if options.store or options.schema or options.namespace:
        raise Usage("--app brings its own store, schema and namespace: leave out --store, --schema and --namespace")
    return find_app(options.app)


def _url(given: str | None) -> str:
    value = given or os.environ.get(VARIABLE)
    if value:
        if SERVER.search(value) and not ADDRESS.match(value):
            # It is not quoted: it may hold a password.
            raise Usage("--store: write the address of a server like postgresql://user@host/database")
        return value if ADDRESS.match(value) else f"sqlite:///{quote(value, errors='surrogateescape')}"
    if Path(USUAL).exists():
        return f"sqlite:///{USUAL}"
    if Path(DEMO).exists():
        note(f"using ./{DEMO}, which the demo left here")
        return f"sqlite:///{DEMO}"
    raise Usage(
        f"which store? Give --store sqlite:///file.db or --store postgresql://..., set ${VARIABLE}, use --app "
        f"module:app, or go to a folder with a {USUAL}"
    )


def _check(app: Durably, may_create: bool, any_schema: bool) -> None:
    """Looking must change nothing: neither make a file nor tables in one that has none."""
    address = app.store.address
    if address.startswith("sqlite:///"):
        path = address.removeprefix("sqlite:///")
        if path == ":memory:":
            raise Usage("a store in memory lives in its own process only: name a file or a server")
        if not may_create and not os.path.exists(path):
            raise StoreUnavailable(f"there is no file {path}: check the path, or create it with `durably migrate`")
    if not any_schema and (pending := app.store.pending()):
        missing = "has no Durably tables" if pending[0].startswith("0001") else "has an older schema"
        raise SchemaOutdated(f"{address} {missing}: run `durably migrate`")
