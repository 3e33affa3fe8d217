"""How a worker works, checked before it begins."""

from __future__ import annotations

import msgspec

from durably.core.moment import Duration, seconds
from durably.errors import BadOption
from durably.worker.session import BEATS_PER_LEASE, check_lease


class WorkerOptions(msgspec.Struct, frozen=True):
    """How a worker works. Durations are in seconds."""

    queues: tuple[str, ...]
    concurrency: int = 100
    lease: float = 30.0
    heartbeat: float = 7.5
    poll: float = 1.0
    grace: float = 25.0
    stuck_limit: int = 10
    scan: float = 0.5
    prune: float = 30.0
    ahead: int = 1


def worker_options(
    queues: tuple[str, ...],
    *,
    concurrency: int = 100,
    lease: Duration = 30.0,
    heartbeat: Duration | None = None,
    poll: Duration = 1.0,
    grace: Duration = 25.0,
    stuck_limit: int | None = None,
    ahead: int = 1,
) -> WorkerOptions:
    """Checked options."""
    if not queues:
        raise BadOption("a worker needs at least one queue to serve")
    if isinstance(concurrency, bool) or not 1 <= concurrency <= 10_000:
        raise BadOption(f"concurrency: {concurrency!r} must be from 1 to 10000")
    if isinstance(ahead, bool) or not 1 <= ahead <= 100:
        raise BadOption(f"ahead: {ahead!r} must be from 1 to 100")
    length = seconds(lease, "lease")
    interval = length / BEATS_PER_LEASE if heartbeat is None else seconds(heartbeat, "heartbeat")
    check_lease(length, interval)
    if seconds(poll, "poll") <= 0:
        raise BadOption("poll: it must be longer than nothing")
    return WorkerOptions(
        queues,
        concurrency,
        length,
        interval,
        seconds(poll, "poll"),
        seconds(grace, "grace"),
        max(1, concurrency // 2) if stuck_limit is None else stuck_limit,
        ahead=ahead,
    )
