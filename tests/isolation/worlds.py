"""The states in which the parties begin. Each has one of everything that its acts could meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from durably.core.lifecycle import fail
from durably.core.retry import Retry
from durably.core.task import Draft, Policy
from durably.stores.operations import control
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.commit import commit

from .acts import (
    FAILURE,
    Act,
    accepts,
    accepts_and_cancels,
    applies_requests,
    beats,
    buries,
    cancels,
    claims,
    closes,
    completes,
    draft,
    expires,
    fails,
    gives_back,
    gives_up,
    goes_on,
    id_of,
    limits,
    notes_progress,
    pauses,
    polls_elsewhere,
    promotes,
    prunes,
    purges,
    reaps,
    releases,
    replays,
    resumes,
    runs_ahead,
    sets_queue,
    skips,
    snoozes,
)
from .maker import HOUR, Maker


@dataclass
class World:
    """A state to begin with, what can be done in it, and what callers may have open meanwhile."""

    name: str
    queues: list[str]
    build: Callable[[Maker], None]
    acts: list[Act]
    callers: list[Act] = field(default_factory=list)


def _plain(make: Maker) -> None:
    make.lease("a", draft("l1"))
    make.lease("gone", draft("l2"))
    make.kill(draft("x1"))
    make.finish(draft("h1"))
    make.accept(
        draft("r1"),
        draft("r2", expires_in=1),
        draft("d1", due_in=1),
        draft("d2", due_in=HOUR),
    )


PLAIN = World(
    "plain",
    ["q"],
    _plain,
    [
        accepts(draft("n1"), draft("n2")),
        accepts(draft("l1"), again=True),
        accepts(draft("h1"), again=True),
        accepts(draft("x1"), again=True),
        claims("a", ["q"]),
        claims("b", ["q"]),
        claims("b", ["q"], 1),
        claims("gone", ["q"]),
        gives_back("a"),
        completes("l1"),
        completes("l2"),
        fails("l1"),
        gives_up("l1"),
        snoozes("l1"),
        releases("l1"),
        notes_progress("l1"),
        notes_progress("l2"),
        cancels("r1"),
        cancels("l1"),
        cancels("d1", "l2", "r2"),
        promotes(),
        reaps(),
        expires(),
        buries(),
        beats("a"),
        beats("gone"),
        closes("a"),
        prunes(),
        replays("x1"),
        purges("x1"),
        sets_queue("q", "paused"),
        sets_queue("q", "draining"),
        limits("q:q", 8),
    ],
    [accepts_and_cancels(draft("c1"), "r1", "l1")],
)


def _keyed(make: Maker) -> None:
    for key, name, policy in (("block", "b", None), ("overtake", "o", Policy.OVERTAKE), ("pause", "p", Policy.PAUSE)):
        make.lease("a", draft(f"{name}1", "k", key=key, policy=policy))
        make.accept(draft(f"{name}2", "k", key=key, policy=policy))
    make.lease("gone", draft("g1", "k", key="lost"))
    make.accept(draft("g2", "k", key="lost"))
    make.kill(draft("x1", "k", key="idle"))
    [stopped] = make.lease("a", draft("s1", "k", key="stop", policy=Policy.PAUSE))
    make.run(commit([fail(stopped, FAILURE, Retry.never(), 0.0)]))
    make.accept(draft("s2", "k", key="stop"))
    make.accept(draft("i1", "k", key="idle"), draft("i2", "k", key="idle", expires_in=1))
    make.accept(draft("d1", "k", key="block", due_in=1), draft("d2", "k", key="fresh", due_in=1))
    make.admit()
    make.accept(draft("n1", "k", key="new", expires_in=1), draft("n2", "k", key="new"))


KEYED = World(
    "keyed",
    ["k"],
    _keyed,
    [
        accepts(draft("a1", "k", key="block"), draft("a2", "k", key="new")),
        accepts(draft("a3", "k", key="fresh")),
        claims("a", ["k"]),
        claims("b", ["k"]),
        claims("b", ["k"], 1),
        polls_elsewhere("b"),
        claims("gone", ["k"]),
        gives_back("a"),
        completes("b1"),
        completes("g1"),
        fails("b1"),
        fails("o1"),
        gives_up("p1"),
        gives_up("b1"),
        snoozes("b1"),
        releases("b1"),
        notes_progress("b1"),
        notes_progress("g1"),
        cancels("b1"),
        cancels("b2"),
        cancels("i1"),
        cancels("n1"),
        cancels("s1"),
        cancels("g1", "g2", "n2", "d1"),
        promotes(),
        reaps(),
        expires(),
        closes("a"),
        replays("x1"),
        pauses("k", "idle"),
        resumes("k", "stop"),
        skips("k", "stop"),
        sets_queue("k", "paused"),
    ],
    [
        accepts_and_cancels(draft("c1", "k", key="block"), "b2"),
        accepts_and_cancels(draft("c2", "k", key="new"), "n1"),
        accepts_and_cancels(draft("c3", "k", key="fresh")),
    ],
)


def _last_one(make: Maker) -> None:
    make.lease("a", draft("t1", "k", key="one"))
    make.accept(draft("d1", "k", key="one", due_in=1))
    make.accept(draft("m1", "k", key="two", expires_in=1))


LAST = World(
    "last of its key",
    ["k"],
    _last_one,
    [
        accepts(draft("a1", "k", key="one")),
        accepts(draft("a2", "k", key="two")),
        claims("a", ["k"]),
        claims("b", ["k"]),
        polls_elsewhere("b"),
        completes("t1"),
        fails("t1"),
        releases("t1"),
        cancels("t1"),
        cancels("m1"),
        expires(),
        promotes(),
        closes("a"),
        reaps(),
        pauses("k", "one"),
    ],
    [
        accepts_and_cancels(draft("c1", "k", key="one")),
        accepts_and_cancels(draft("c2", "k", key="two"), "m1"),
    ],
)


def _quiet(make: Maker) -> None:
    make.lease("a", draft("t1", "k", key="one"))
    make.accept(draft("t2", "k", key="one", expires_in=1), draft("t3", "k", key="one"))
    make.accept(draft("d1", "k", key="one", due_in=1))
    make.admit()


QUIET = World(
    "nobody else waits",
    ["k"],
    _quiet,
    [
        accepts(draft("a1", "k", key="one")),
        accepts(draft("a2", "k", key="two")),
        accepts(draft("a3", "k")),
        claims("a", ["k"]),
        claims("b", ["k"]),
        polls_elsewhere("b"),
        goes_on("t1", "a", ["k"]),
        completes("t1"),
        fails("t1"),
        cancels("t1"),
        cancels("t2"),
        expires(),
        promotes(),
        closes("a"),
        reaps(),
        pauses("k", "one"),
        sets_queue("k", "paused"),
        limits("q:k", 1),
    ],
    [
        accepts_and_cancels(draft("c1", "k", key="one"), "t2"),
        accepts_and_cancels(draft("c2", "k", key="two")),
    ],
)


def _ahead(make: Maker) -> None:
    make.run_ahead(
        "a", *(draft(f"t{place}", "k", key="one", expires_in=1 if place == 2 else None) for place in (1, 2, 3))
    )
    make.accept(draft("t4", "k", key="one"))
    make.run_ahead("gone", *(draft(f"g{place}", "k", key="lost") for place in (1, 2)))
    make.admit()


AHEAD = World(
    "run ahead",
    ["k"],
    _ahead,
    [
        accepts(draft("a1", "k", key="one")),
        claims("a", ["k"]),
        claims("b", ["k"]),
        polls_elsewhere("b"),
        runs_ahead("a", ["k"], "t1", going=("t2", "t3")),
        runs_ahead("a", ["k"], "t1", "t2"),
        runs_ahead("a", ["k"], "t1", "t2", "t3"),
        runs_ahead("gone", ["k"], "g1", going=("g2",)),
        fails("t1"),
        completes("g1"),
        cancels("t1"),
        cancels("t2", "t3", "t4"),
        cancels("g2"),
        notes_progress("t2"),
        expires(),
        closes("a"),
        reaps(),
        gives_back("a"),
        pauses("k", "one"),
        limits("q:k", 2),
    ],
    [
        accepts_and_cancels(draft("c1", "k", key="one"), "t2", "g2"),
        accepts_and_cancels(draft("c2", "k", key="two")),
    ],
)


def _groups(make: Maker) -> None:
    make.run(control.set_limit("g:api", 2, None, 1.0))
    make.run(control.set_limit("g:slow", 1, None, 1.0))
    make.lease("a", draft("y1", "g", gate="api"))
    make.lease("gone", draft("v1", "g", gate="slow"))
    make.kill(draft("x1", "g", gate="api"))
    make.accept(draft("y2", "g", gate="api"), draft("y3", "g", gate="api", expires_in=1))
    make.accept(draft("v2", "g", gate="slow"), draft("d1", "g", gate="slow", due_in=1))
    make.accept(draft("k1", "g", gate="api", key="key"), draft("k2", "g", gate="api", key="key"))
    make.accept(draft("o1", "g", gate="open"))
    make.admit()
    make.accept(draft("n1", "g", gate="new"))


GROUPS = World(
    "limit groups",
    ["g"],
    _groups,
    [
        accepts(draft("a1", "g", gate="api"), draft("a2", "g", gate="fresh")),
        claims("a", ["g"]),
        claims("b", ["g"]),
        claims("b", ["g"], 1),
        polls_elsewhere("b"),
        completes("y1"),
        completes("v1"),
        fails("y1"),
        snoozes("y1"),
        releases("y1"),
        cancels("y1"),
        cancels("y2"),
        cancels("n1", "k1"),
        promotes(),
        reaps(),
        expires(),
        buries(),
        replays("x1"),
        limits("g:api", 3),
        limits("g:api", None),
        limits("g:open", 3),
        sets_queue("g", "paused"),
    ],
    [accepts_and_cancels(draft("c1", "g", gate="api"), "y2"), accepts_and_cancels(draft("c2", "g", gate="open"))],
)


def _handed(make: Maker) -> None:
    make.run(control.set_limit("g:api", 2, None, 1.0))
    make.lease("a", draft("y1", "h", gate="api"))
    make.lease("gone", draft("y2", "h", gate="api"))
    make.accept(draft("y3", "h", gate="api"), draft("y4", "h", gate="api"))
    make.admit()


HANDED = World(
    "limit group that goes on",
    ["h"],
    _handed,
    [
        accepts(draft("a1", "h", gate="api")),
        goes_on("y1", "a", ["h"]),
        goes_on("y2", "gone", ["h"]),
        claims("b", ["h"]),
        completes("y2"),
        cancels("y1"),
        cancels("y3"),
        reaps(),
        closes("a"),
        gives_back("a"),
        limits("g:api", 3),
        limits("g:api", None),
        limits("q:h", 5),
        sets_queue("h", "paused"),
    ],
    [accepts_and_cancels(draft("c1", "h", gate="api"), "y3")],
)


def _limited_queue(make: Maker) -> None:
    make.run(control.set_limit("q:m", 4, None, 1.0))
    make.lease("a", draft("m1", "m"))
    make.lease("a", draft("h1", "m", key="key"))
    make.lease("gone", draft("m2", "m"))
    make.accept(draft("m3", "m"), draft("m4", "m"))
    make.accept(draft("h2", "m", key="key"), draft("o1", "m", key="other"))
    make.admit()


LIMITED = World(
    "limited queue",
    ["m"],
    _limited_queue,
    [
        accepts(draft("a1", "m"), draft("a2", "m", key="other")),
        claims("a", ["m"]),
        claims("b", ["m"]),
        gives_back("a"),
        completes("m1"),
        completes("h1"),
        fails("m1"),
        releases("h1"),
        cancels("m1"),
        cancels("m3"),
        cancels("o1"),
        reaps(),
        buries(),
        limits("q:m", 5),
        limits("q:m", None),
    ],
    [accepts_and_cancels(draft("c1", "m", key="key"), "m3")],
)


def _rates(make: Maker) -> None:
    make.run(control.set_limit("g:rate", None, 0.001, 3.0))
    make.lease("a", draft("t1", "r", gate="rate"))
    make.accept(draft("t2", "r", gate="rate"), draft("t3", "r", gate="rate"), draft("t4", "r", gate="rate"))
    make.admit()


RATES = World(
    "rates",
    ["r"],
    _rates,
    [
        accepts(draft("a1", "r", gate="rate")),
        claims("a", ["r"]),
        claims("b", ["r"], 2),
        completes("t1"),
        releases("t1"),
        cancels("t2"),
        limits("g:rate", None, 0.002),
    ],
)


def _unique(make: Maker) -> None:
    def unique(name: str, scope: str, key: str, **options: object) -> Draft:
        return draft(name, "u", unique_scope=scope, unique_key=key, fingerprint="same", **options)

    make.lease("a", unique("f1", "forever", "forever"), unique("l1", "live", "leased"))
    make.kill(unique("x1", "forever", "dead"))
    make.accept(unique("l2", "live", "live"), unique("w1", "waiting", "waiting"))
    make.accept(unique("p1", "period", "period", unique_for=1))


def _wants(name: str, scope: str, key: str, print_: str = "same") -> Draft:
    return draft(name, "u", unique_scope=scope, unique_key=key, fingerprint=print_)


UNIQUE = World(
    "unique keys",
    ["u"],
    _unique,
    [
        accepts(_wants("n1", "live", "new")),
        accepts(_wants("n2", "live", "new")),
        accepts(_wants("n3", "live", "new", "other"), _wants("n4", "live", "more")),
        accepts(_wants("n5", "live", "more"), _wants("n6", "live", "new")),
        accepts(_wants("n7", "live", "leased")),
        accepts(_wants("n8", "live", "live")),
        accepts(_wants("n9", "waiting", "waiting")),
        accepts(_wants("n10", "forever", "forever")),
        accepts(_wants("l1", "live", "leased"), again=True),
        claims("a", ["u"]),
        claims("b", ["u"]),
        completes("l1"),
        completes("f1"),
        fails("l1"),
        cancels("l2", "w1"),
        cancels("l1"),
        replays("x1"),
        prunes(),
    ],
    [accepts_and_cancels(_wants("c1", "live", "new")), accepts_and_cancels(_wants("c2", "live", "leased"))],
)


def _requests(make: Maker) -> None:
    make.lease("a", draft("l1"))
    make.lease("a", draft("h1", key="run"))
    make.accept(draft("h2", key="run"), draft("i1", key="idle"))
    make.admit()
    make.accept(draft("m1", key="new"), draft("r1"), draft("d1", due_in=1), draft("e1", key="late", due_in=1))
    wanted = ["l1", "h1", "h2", "i1", "m1", "r1", "d1", "e1"]
    make.run(request_cancel([id_of(name) for name in wanted], "asked"))


REQUESTS = World(
    "cancel requests",
    ["q"],
    _requests,
    [
        accepts(draft("a1", key="new")),
        applies_requests(),
        claims("a", ["q"]),
        claims("b", ["q"]),
        completes("l1"),
        completes("h1"),
        fails("h1"),
        releases("h1"),
        cancels("h2", "m1", "r1"),
        cancels("l1"),
        promotes(),
        pauses("q", "idle"),
        closes("a"),
        reaps(),
    ],
    [accepts_and_cancels(draft("c1", key="idle"), "i1", "h1")],
)

WORLDS = [PLAIN, KEYED, LAST, QUIET, AHEAD, GROUPS, HANDED, LIMITED, RATES, UNIQUE, REQUESTS]
