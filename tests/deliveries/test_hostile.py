"""Servers that mean harm: whatever they do is an outcome, in bounded time and memory."""

from __future__ import annotations

import asyncio
import time

import pytest

from durably.core.delivery import Kind, Outcome
from durably.deliveries.classify import Reply, webhook
from durably.deliveries.client import Client
from durably.deliveries.guard import Guard
from tests.support.hostile_http import HOSTILE, serve

HERE = Guard(http=True, allow=["127.0.0.1/32"])
OK, TRANSIENT, THROTTLED, UNKNOWN = Kind.OK, Kind.TRANSIENT, Kind.THROTTLED, Kind.UNKNOWN
BEFORE = {"refuses", "never_accepts"}
"""Nothing was ever sent to these."""
TAKEN = {
    "resets_in_answer_body",
    "answers_before_request",
    "closes_after_answer",
    "resets_next_request",
    "slow_body",
    "endless_body",
    "endless_chunks",
    "length_too_long",
    "length_too_short",
    "answers_twice",
    "chunks_cut",
    "ok_with_broken_body",
    "gzip_bomb",
    "deflate_bomb",
    "gzip_garbage",
    "gzip_cut",
    "coding_unknown",
    "lf_in_header",
    "folded_header",
    "space_before_colon",
    "bytes_in_header",
}
"""These said 2xx, and what they said after it does not matter."""
EITHER = {
    "endless_chunk_size",
    "endless_chunk_extension",
    "endless_trailers",
    "gzip_bomb_twice",
    "never_answers_again",
}
"""Here it depends on how much of it came in one piece, or on which request it was."""
ASKED = {"retry_after_long", "retry_after_9999", "retry_after_1900", "retry_after_twice"}
"""These named a time that can be understood."""


SILENT = {
    "never_accepts",
    "never_answers",
    "never_reads",
    "stops_reading",
    "reads_slowly",
    "slow_head",
    "endless_continue",
    "endless_processing",
    "endless_hints",
    "never_answers_again",
    "gzip_bomb_twice",
    "tls_stalls",
    "tls_slow_handshake",
}
"""However long one waits for these, no answer comes."""


def patience(name: str) -> float:
    """Seconds for one attempt: no more than needed where none will do, and plenty where an answer comes."""
    return 0.3 if name in SILENT else 3.0 if name == "slow_body" else 60.0


def expected(name: str) -> set[Kind]:
    if name in EITHER:
        return {OK, UNKNOWN}
    if name == "resets_before_reading":
        return {TRANSIENT, UNKNOWN}
    if name in TAKEN:
        return {OK}
    if name in ASKED:
        return {THROTTLED}
    if name in BEFORE or name.startswith(("tls_", "redirects_", "retry_after_")):
        return {TRANSIENT}
    if name in ("answers_before_body", "status_999", "switches_protocols"):
        return {TRANSIENT}
    return {UNKNOWN}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_an_outcome(name: str) -> None:
    hostile = HOSTILE[name]

    async def story(port: int) -> list[Outcome]:
        client = Client(HERE)
        outcomes = []
        for _ in range(2):
            scheme = "https" if hostile.tls else "http"
            url = f"{scheme}://127.0.0.1:{port}/hook"
            reply = await client.post(url, {"content-type": "text/plain"}, b"x" * 2000, patience(name))
            outcomes.append(webhook(reply, time.time()) if isinstance(reply, Reply) else reply)
        await client.aclose()
        return outcomes

    with serve(hostile) as server:
        outcomes = asyncio.run(story(server.port))

    assert {outcome.kind for outcome in outcomes} <= expected(name)
    assert all(len(outcome.reason) < 2000 for outcome in outcomes)
    assert all(outcome.unreachable for outcome in outcomes if name in ("refuses", "never_accepts", "tls_stalls"))
