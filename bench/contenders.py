"""Who is measured: Durably, the bare loops, and the peers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from durably.bench.process import Contender

ROOT = Path(__file__).parents[1]
OURS = "durably"

EVERYTHING = frozenset(
    {"enqueue", "callers-64", "callers-1000", "bulk", "drain-1", "drain-2", "latency", "latency-half"}
)

HOOKS = frozenset({"hooks", "hooks-fifo", "hooks-dead"})
MAILS = frozenset({"mails"})


@dataclass(frozen=True)
class Entry:
    """A contender in the tables of one store."""

    contender: Contender
    side: str
    """In which store's tables it stands."""
    takes: frozenset[str]
    """The measurements that it takes part in."""
    kind: str = "peer"
    store: str = ""
    """The server that it needs."""
    share: float = 1.0
    """The share of the tasks that it gets, since some need a minute for what others do in a second."""

    @property
    def name(self) -> str:
        return self.contender.name


def ours() -> list[Entry]:
    """Durably on both stores."""
    program = Contender(OURS, (sys.executable, "-m", "durably.bench.program"), parameters={"schema": "durably"})
    alone = {"delayed", "keys", "ahead", "threads", "features", "growth"}
    return [
        Entry(program, "postgres", EVERYTHING | alone | {"transactions", "xmin"}, "ours", "postgres"),
        Entry(program, "sqlite", EVERYTHING | alone, "ours", "sqlite"),
        Entry(_module(OURS, "bench.hooks", schema="durably"), "postgres", HOOKS, "ours", "postgres"),
        Entry(_module(OURS, "bench.mails", schema="durably"), "postgres", MAILS, "ours", "postgres"),
    ]


def ceilings() -> list[Entry]:
    """The bare loops."""
    return [
        _bare("postgres", "bare insert", ["enqueue"], loop="claim"),
        _bare("postgres", "COPY", ["bulk"], loop="claim"),
        _bare("postgres", "claim 500, delete", ["drain-1", "drain-2"], loop="claim"),
        _bare("postgres", "engine-shaped loop", ["drain-1", "drain-2"], loop="engine"),
        _bare("postgres", "the same with history", ["drain-1"], loop="history"),
        _bare("postgres", "notify, claim, call", ["latency"], loop="notify"),
        Entry(_module("bare HTTP client", "bench.raw.hooks"), "postgres", frozenset({"hooks"}), "ceiling", "postgres"),
        Entry(_module("bare SMTP client", "bench.raw.mails"), "postgres", MAILS, "ceiling", "postgres"),
        _bare("sqlite", "bare insert", ["enqueue"], batch=500),
        _bare("sqlite", "inserts of 1000", ["bulk"], batch=500),
        _bare("sqlite", "bare loop of 500", ["drain-1"], batch=500),
        _bare("sqlite", "bare loop of 1000", ["drain-1"], batch=1000),
    ]


def _bare(store: str, name: str, takes: Iterable[str], **parameters: object) -> Entry:
    return Entry(_module(name, f"bench.raw.{store}", **parameters), store, frozenset(takes), "ceiling", store)


def _module(name: str, module: str, **parameters: object) -> Contender:
    return Contender(name, (sys.executable, "-m", module), {"PYTHONPATH": str(ROOT)}, parameters)
