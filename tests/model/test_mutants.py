"""The model bites: a store or an engine with one rule broken is found out, and the summary says how soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from durably.core import lifecycle
from durably.core.change import Change
from durably.core.task import Task
from durably.stores.operations import commit, settle
from durably.stores.sqlite.store import DIALECT, SqliteStore
from durably.stores.statement import Part, Queries, Query, load
from durably.testing.world import World
from tests.model.telling import Teller
from tests.model.worlds import in_memory

STORIES = 1000

Tamper = Callable[[Queries], Queries]


def replaced(queries: Queries, name: str, parts: tuple[Part, ...]) -> Queries:
    known = {each: queries(each).query for each in queries.names}
    assert parts != known[name].parts, f"{name} is what it was"
    return Queries({**known, name: Query(name, parts)})


SOUND = load(DIALECT)


def rewritten(name: str, old: str, new: str) -> Tamper:
    """Queries one of which says something else."""
    assert any(old in part.text for part in SOUND(name).query.parts), f"{name} does not say {old}"

    def tamper(queries: Queries) -> Queries:
        parts = queries(name).query.parts
        return replaced(queries, name, tuple(part._replace(text=part.text.replace(old, new)) for part in parts))

    return tamper


def followed(name: str, text: str, *takes: int) -> Tamper:
    """Queries one of which does something more."""

    def tamper(queries: Queries) -> Queries:
        return replaced(queries, name, (*queries(name).query.parts, Part(text, takes)))

    return tamper


def test_a_store_that_is_sound_is_not_blamed() -> None:
    with pytest.raises(pytest.fail.Exception, match="noticed nothing"):
        caught(stories=3)


def caught(tamper: Tamper | None = None, stories: int = STORIES) -> int:
    """How many stories it took to notice."""

    def broken() -> World:
        world = in_memory()
        assert isinstance(world.store, SqliteStore)
        if tamper is not None:
            world.store.queries = tamper(world.store.queries)
        return world

    teller = Teller(broken)
    try:
        teller.tell(stories, 1, shrink=False)
    except Exception:
        return teller.told
    pytest.fail(f"{stories} stories noticed nothing")


STATEMENTS = {
    "a completion checks the id only": rewritten("finish_tasks", "version = ?", "? IS NOT NULL"),
    "an end checks the id only": rewritten("end_tasks", "version = ?", "? IS NOT NULL"),
    "a task that is put back is not fenced": rewritten("release_tasks", "version = ?", "? IS NOT NULL"),
    "a request to stop is not fenced": rewritten("flag_tasks", "version = ?", "? IS NOT NULL"),
    "attempts are not counted at the claim": rewritten("claim_ready", "attempt = attempt + 1, spent = spent + 1,", ""),
    "tokens do not rise": rewritten("claim_ready", "value = value + 1", "value = value"),
    "a failure frees the unique key": followed("release_tasks", "DELETE FROM durably_unique_keys WHERE task = ?", 0),
    "a claim does not free a waiting key": rewritten("free_unique", "scope IN", "scope = 'live' AND scope IN"),
    "a paused queue is claimed from": rewritten("survey", "coalesce(q.state, 'active')", "'active'"),
    "a draining queue is open": rewritten("set_queue", "THEN ? END", "THEN NULL END"),
    "promotion comes early": rewritten("promote", "ready_at <= ?", "ready_at <= ? + 60000000"),
    "a retry comes early": rewritten("release_tasks", "ready_at = ? + ?", "ready_at = ? + ? / 2"),
    "an end is overwritten by a later one": followed(
        "end_tasks", "UPDATE durably_history SET state = ?, reason = ? WHERE id = ?", 2, 3, 0
    ),
    "an end forgets the errors": followed("end_tasks", "DELETE FROM durably_attempts WHERE task = ?", 0),
    "a completion forgets the payload": rewritten("finish_tasks", "payload, options", "x'', options"),
    "an end forgets the payload": rewritten(
        "end_tasks", "payload, options, tags,\n       cancel", "x'', options, tags,\n       cancel"
    ),
    "two tasks of a key run at once": rewritten("pick_keys", "f.state = 'ready'", "f.state <> 'paused'"),
    "a key runs backwards": rewritten("heads", "ORDER BY f.seq LIMIT", "ORDER BY f.seq DESC LIMIT"),
    "a paused key is claimed": rewritten("pick_keys", "f.state = 'ready'", "f.state <> 'leased'"),
    "permits are not counted": rewritten("count_permits", "GROUP BY", "AND false GROUP BY"),
    "sessions die before their lease is over": rewritten("mark_dead", "expires_at <", "beat_at <"),
    "a dead session can claim": rewritten("lock_session", "state = 'live'", "true"),
    "a replay keeps the old budget": rewritten("replay", "attempt, 0, 0, once", "attempt, spent, crashes, once"),
    "what runs expires": rewritten("expired", "t.state <> 'leased'", "true"),
    "a repeated request brings an ended task back": rewritten("insert_plain", "NOT EXISTS", "true OR EXISTS"),
    "a repeated request brings an ended task of a key back": rewritten("insert_tasks", "NOT EXISTS", "true OR EXISTS"),
    "history is pruned before its time": rewritten("prune", "prune_at <=", "finished_at <="),
    "the last life is not lived alone": rewritten("claim_ready", "f.alone = ?", "? IS NOT NULL"),
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_a_statement_that_says_something_else_is_found(what: str, record_property: Callable[[str, Any], None]) -> None:
    record_property("caught", (what, caught(STATEMENTS[what])))


def refunded(task: Task) -> Change:
    """A crash that costs nothing."""
    change = LAPSE(task)
    return change if change.ends else msgspec.structs.replace(change, crashes=task.crashes)


def charged(task: Task, delay: float) -> Change:
    """A snooze that costs an attempt."""
    return msgspec.structs.replace(SNOOZE(task, delay), spent=task.spent)


def kept(*_: Any) -> Any:
    """A key that nobody gives back."""
    yield from ()


LAPSE, SNOOZE = lifecycle.lapse, lifecycle.snooze
RULES: dict[str, tuple[Any, str, Any]] = {
    "a crash is refunded": (lifecycle, "lapse", refunded),
    "a snooze is charged": (lifecycle, "snooze", charged),
    "a head that gave up does not pause its key": (settle, "_key_after", lambda change, held: ("ready", None, None)),
    "a key is not given back": (commit, "give_back_keys", kept),
    "a leased key is not compared": (settle, "_holds", lambda task, row: True),
}


@pytest.mark.parametrize("what", RULES)
def test_a_rule_that_decides_otherwise_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, Any], None]
) -> None:
    monkeypatch.setattr(*RULES[what])

    record_property("caught", (what, caught()))
