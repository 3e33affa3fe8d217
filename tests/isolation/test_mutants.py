"""A test that cannot fail proves nothing: each of these breaks one precaution, and the schedules must notice."""

from __future__ import annotations

import pytest

from durably.stores.statement import Queries, Query

from .arena import Alter, Cast, Schedules, all_of_them, arena, cast, this_one, trial
from .worlds import GROUPS, KEYED, LAST, World


def broken(name: str, was: str, becomes: str) -> Alter:
    """Queries of which one lacks something."""

    def alter(queries: Queries) -> Queries:
        known = {each: queries(each).query for each in queries.names}
        [part] = known[name].parts
        assert was in part.text
        return Queries({**known, name: Query(name, (part._replace(text=part.text.replace(was, becomes)),))})

    return alter


MUTANTS: dict[str, tuple[World, Cast, Schedules, Alter]] = {
    "a session can die while it claims": (
        KEYED,
        cast(KEYED, "claim gone", "reap"),
        all_of_them,
        broken("lock_session", "FOR SHARE", ""),
    ),
    "a waiting task is changed without the lock of its key": (
        LAST,
        cast(LAST, "claim a", "cancel m1"),
        all_of_them,
        broken("ensure_keys", " ORDER BY queue, key", " WHERE false ORDER BY queue, key"),
    ),
    "permits are counted without the lock of their gate": (
        GROUPS,
        cast(GROUPS, "claim a", "claim b"),
        all_of_them,
        broken("lock_gates", "FOR UPDATE SKIP LOCKED", ""),
    ),
    "an admitted key is only noticed, not waited for": (
        LAST,
        cast(LAST, "claim b", "complete t1", "accept c1"),
        all_of_them,
        broken("share_keys", "FOR KEY SHARE", ""),
    ),
    "an empty key is dropped without a second look": (
        LAST,
        cast(LAST, "claim b", "complete t1", "accept c1"),
        all_of_them,
        broken("lock_empty_keys", "FOR UPDATE", ""),
    ),
    "an empty line is dropped without its lock": (
        GROUPS,
        cast(GROUPS, "claim a", "poll b elsewhere", "accept c2"),
        this_one(("one", "lines_left"), ("caller", "commit"), ("two", "end"), ("one", "end")),
        broken("lock_lines", "FOR UPDATE SKIP LOCKED", ""),
    ),
    "a caller leaves no marker where it has seen a row of the key": (
        LAST,
        cast(LAST, "complete t1", "poll b elsewhere", "accept c1", level="REPEATABLE READ"),
        all_of_them,
        broken(
            "insert_tasks",
            "FROM accepted WHERE state = 'blocked'",
            "FROM accepted a WHERE state = 'blocked'\n"
            "  AND NOT EXISTS (SELECT 1 FROM durably.keys k WHERE (k.queue, k.key) = (a.queue, a.key))",
        ),
    ),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_missing_precaution_is_noticed(what: str, migrated_postgres_url: str) -> None:
    world, pair, schedules, alter = MUTANTS[what]
    with arena(migrated_postgres_url, world, alter) as stage:
        assert trial(stage, pair, schedules, until_one_fails=True).failures
