"""The mutants that no test can notice, each with the reason: reviewed by hand, kept in equivalent.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

LISTED = Path(__file__).with_name("equivalent.toml")


def equivalent(path: Path = LISTED) -> dict[str, str]:
    """The reason by the name of the mutant."""
    found: dict[str, str] = {}
    for group in tomllib.loads(path.read_text())["equivalent"]:
        reason = " ".join(group["because"].split())
        for name in group["mutants"]:
            if not reason or name in found:
                raise ValueError(f"{path.name}: {name} has {'two reasons' if reason else 'no reason'}")
            found[name] = reason
    return found


def stale(listed: Iterable[str], mutants: Iterable[str]) -> list[str]:
    """What is listed and is no mutant any more: the code has changed, so must the list."""
    known = set(mutants)
    return sorted(name for name in listed if name not in known)
