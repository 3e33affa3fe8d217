"""The interpreter of a process that only works."""

from __future__ import annotations

import gc
import sys

SELDOM = (10_000, 20, 50)
TURN = 0.0001
"""After so many seconds a thread that needs the interpreter gets it, instead of after fifty times as many."""


def settle_in(*, threaded: bool) -> None:
    """Collect garbage less often, and leave alone what is in memory by now: a tenth of a worker's time went there.

    A store with a thread of its own needs the interpreter after every statement, and for short. If it had to wait for
    the usual five milliseconds while tasks run, it would do little else.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    if threaded:
        sys.setswitchinterval(TURN)
