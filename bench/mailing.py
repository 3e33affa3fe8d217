"""Measurements of mail: one recipient each, through one transport to a receiver on this machine."""

from __future__ import annotations

import sys

from bench.contenders import ROOT, Entry
from bench.delivering import delivered, receiving
from bench.stage import Stage
from durably.bench.drain import Drained
from durably.bench.process import Contender, clocked

RECEIVER = Contender("receiver", (sys.executable, "-m", "bench.raw.mails"), {"PYTHONPATH": str(ROOT)})


def mails(stage: Stage, entry: Entry, count: int) -> Drained:
    """Accept so many mails, and let a worker send them."""
    with stage.place(entry) as place, receiving(RECEIVER, count) as (marks, port):
        clocked(entry.contender, "send", url=place.url, count=count, port=port)
        stage.settle(place)
        return delivered(entry, place, marks, count, count, {"count": count, "port": port})
