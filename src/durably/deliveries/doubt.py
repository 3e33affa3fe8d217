"""Whether a peer may have something although nobody can say so."""

from __future__ import annotations

from durably.stores.operations.read import attempts
from durably.stores.protocol import Store
from durably.worker.context import Context


async def may_have_arrived(store: Store, task: Context) -> bool:
    """Whether an earlier attempt died before it could say what the peer did.

    A replay counts crashes anew, but not what they may have left with the peer.
    """
    if task.crashes > 0 or task.attempt == 1 or task.spent > 1:
        return task.crashes > 0
    earlier = await store.arun(attempts(task.id))
    return any(one.outcome == "crashed" for one in earlier)
