"""The versioned SQL files of a store."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple


class Migration(NamedTuple):
    """One numbered step of the schema."""

    version: int
    name: str
    text: str


def migrations(package: str) -> list[Migration]:
    """Every migration of a store's package, in order."""
    folder = resources.files(package) / "migrations"
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            name = file.name.removesuffix(".sql")
            found.append(Migration(int(name[:4]), name, file.read_text("utf-8")))
    return sorted(found)


def split(text: str) -> list[str]:
    """The statements of a migration; a function body between dollar quotes is left whole."""
    statements, current, quoted = [], "", False
    for line in text.splitlines():
        if line.startswith("--"):
            continue
        quoted ^= line.count("$$") % 2 == 1
        current += line + "\n"
        if not quoted and line.rstrip().endswith(";"):
            statements.append(current.strip().rstrip(";"))
            current = ""
    return statements
