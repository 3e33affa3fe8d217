"""Pieces of SQL that several statements have in common, and the dialect that knows them by their names."""

from __future__ import annotations

from durably.stores.columns import (
    Spelling,
    brief_columns,
    destination_columns,
    ended_columns,
    head_columns,
    live_columns,
    task_columns,
)
from durably.stores.statement import Dialect

CLAIMED = (
    "CROSS JOIN LATERAL unnest(c.tasks) AS i(id) CROSS JOIN LATERAL (SELECT * FROM durably.tasks"
    " WHERE id = i.id AND state = 'leased' AND token = c.token OFFSET 0) t"
)
"""The tasks `t` that are still leased under the claim `c`."""
NOTED = """noted AS (
    INSERT INTO durably.prunes (prune_at, count, tasks)
    SELECT prune_at, count(*), array_agg(id) FROM kept WHERE prune_at IS NOT NULL GROUP BY prune_at
)"""
"""A note of when to remove what was `kept` in history: one for all that go at the same moment."""
ENDED = """ended AS MATERIALIZED (
    SELECT count(*) AS count, array_agg(id) AS tasks FROM gone
), noted AS (
    INSERT INTO durably.prunes (prune_at, count, tasks)
    SELECT now + ?6::bigint, count, tasks FROM moment, ended WHERE count > 0 AND ?6::bigint IS NOT NULL
)"""
"""The same for what is `gone` and is all kept equally long, and how many these are."""
OTHERS = """SELECT durably.now() AS now,
           NOT EXISTS (SELECT 1 FROM durably.turns)
       AND NOT EXISTS (SELECT 1 FROM durably.cancel_requests)
       AND NOT EXISTS (SELECT 1 FROM durably.lines
                        WHERE queue = ANY(?1::text[]) AND ready_at <= (SELECT durably.now()))
       AND NOT EXISTS (SELECT 1 FROM durably.queues WHERE name = ANY(?1::text[]))
       AND NOT EXISTS (SELECT 1 FROM durably.gates WHERE name = ANY(?2::text[])) AS plain,
           (SELECT count(*) FROM (SELECT 1 FROM durably.keys
                                   WHERE state = 'ready' AND queue = ANY(?1::text[])
                                     AND ready_at <= (SELECT durably.now()) LIMIT ?3::int) k)
         + (SELECT count(*) FROM (SELECT 1 FROM durably.tasks
                                   WHERE state = 'ready' AND queue = ANY(?1::text[]) LIMIT ?3::int) t) AS waiting"""
"""The time; whether these queues are open, with nobody before whom a claim must do something else; how many wait."""


SPELLING = Spelling("::text", "encode({}, 'hex')", "json_build_array({})::text")


def dialect(schema: str) -> Dialect:
    """The dialect for a schema name."""
    return Dialect(
        "durably.stores.postgres",
        {
            "task": task_columns("::text"),
            "brief": brief_columns(SPELLING),
            "live": live_columns("::text", "::int"),
            "head": head_columns(SPELLING, "(SELECT nextval('durably.token_seq'))", "?4::bigint"),
            "next_head": head_columns(SPELLING, "(SELECT token FROM fence)", "(SELECT now FROM others)"),
            "chain": head_columns(SPELLING, "(SELECT nextval('durably.token_seq'))", "(SELECT now FROM others)"),
            "ended": ended_columns("::text", "false"),
            "destination": destination_columns(),
            "claimed": CLAIMED,
            "noted": NOTED,
            "ended_together": ENDED,
            "others": OTHERS,
            "leased": "k.state = 'leased' AND (k.head = t.id OR strpos(k.followers, t.id::text) > 0)",
        },
        numbered=True,
        schema=schema,
    )
