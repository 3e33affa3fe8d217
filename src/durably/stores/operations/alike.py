"""Successes that have most in common, where every statement costs more than what it does: one for all that are alike.

What they differ in goes by the number of the row: how long ago the attempt began, and where its result is among the
results, which go as one. A number comes again when its task has ended, so something must tell whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from durably.core.change import Change
from durably.stores.statement import Queries, Rows, Steps

TOGETHER = 16 * 1024 * 1024
"""Bytes of results that may be sent as one."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode


def fit_together(changes: Sequence[Change]) -> bool:
    """Whether their results are not too long for one statement."""
    return sum([len(change.result) for change in changes if change.result is not None]) <= TOGETHER


def finish_alike(q: Queries, changes: Iterable[Change]) -> Steps[set[str]]:
    """Write successes of plain tasks, claim by claim, and answer whose were written. The token tells whose they are."""
    claims: dict[tuple[int, int, int | None], list[Change]] = {}
    for change in changes:
        task = change.task
        claims.setdefault((task.token, task.version, change.keep_for), []).append(change)
    rows = yield q.each(
        "finish_alike_tasks",
        *zip(*claims, strict=True),
        *_differences(claims.values(), lambda change: change.started_ago or None),
    )
    return _landed(claims.values(), rows)


def end_alike(q: Queries, changes: Iterable[Change]) -> Steps[set[str]]:
    """The same of tasks whose leases are elsewhere. Their ids tell who they are."""
    groups: dict[tuple[int | str | None, ...], list[Change]] = {}
    for change in changes:
        task = change.task
        alike = (task.token, task.version, task.attempt, change.spent, change.crashes, task.session, change.keep_for)
        groups.setdefault(alike, []).append(change)
    rows = yield q.each(
        "end_alike_tasks",
        *zip(*groups, strict=True),
        *_differences(groups.values(), lambda change: f"{change.started_ago},{change.task.id}"),
    )
    return _landed(groups.values(), rows)


def _differences(
    groups: Iterable[Sequence[Change]], tell: Callable[[Change], int | str | None]
) -> tuple[list[str], list[bytes], list[int]]:
    """Of each group what is to be told of each, all results, and how many they are."""
    apart, together, counts = [], [], []
    for group in groups:
        told: dict[int, int | str | None] = {}
        # Before them all stands something: a part of what is empty would be nothing at all.
        results = [b" "]
        place = 2
        for change in group:
            one = tell(change)
            if change.result is not None:
                one = f"{one or 0}:{place:010}{len(change.result)}"
                place += len(change.result)
                results.append(change.result)
            told[change.task.seq] = one
        apart.append(_encode(told).decode())
        together.append(b"".join(results))
        counts.append(len(group))
    return apart, together, counts


def _landed(groups: Iterable[Sequence[Change]], rows: Rows) -> set[str]:
    """Whose ends were written; of each group a row tells that, if not of all."""
    landed: set[str] = set()
    for group, (some,) in zip(groups, rows, strict=True):
        landed.update([change.task.id for change in group] if some is None else _decode(some))
    return landed
