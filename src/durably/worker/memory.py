"""The garbage collector of a process that only works."""

from __future__ import annotations

import gc

SELDOM = (10_000, 20, 50)


def settle_in() -> None:
    """Leave alone what is in memory by now, and look at the rest less often: a tenth of a worker's time went there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
