"""Task ids: UUIDv7 whose `rand_a` carries the partition, so that it can be found from the id alone."""

from __future__ import annotations

import os
import random
import threading
from hashlib import blake2b
from itertools import accumulate
from weakref import WeakSet
from zlib import crc32

from durably.core.moment import Clock

PARTITIONS = 4096
TAIL = "7%03x-%04x-%012x"
CHANCE = 61
STEP = 0xFFFFFFFF
LAST = 0x3FFFFFFFFFFFFFFF
"""The last 62 bits of an id begin with so many bits of chance, and go on by chance."""
AHEAD = 128
"""So many ids are made together, but for their time: to make one alone costs more than ten times as much."""

_chance = random.Random(os.urandom(32))
_sources: WeakSet[Ids] = WeakSet()


def _begin_anew() -> None:
    """A child must not make the ids that its parent has ahead."""
    _chance.seed(os.urandom(32))
    for source in _sources:
        source.begin_anew()


getattr(os, "register_at_fork", dict)(after_in_child=_begin_anew)


def partition_for(text: str) -> int:
    """The partition that everything with this key shares."""
    return crc32(text.encode("utf-8", "surrogatepass")) % PARTITIONS


def partition_of(task_id: str) -> int:
    """The partition that an id carries."""
    return int(task_id[15:18], 16)


def _time(milliseconds: int) -> str:
    """The part of an id that tells when it was made."""
    return f"{milliseconds >> 16 & 0xFFFFFFFF:08x}-{milliseconds & 0xFFFF:04x}"


def _tail(partition: int, rest: int) -> str:
    """All that follows."""
    return TAIL % (partition, rest >> 48 & 0x3FFF | 0x8000, rest & 0xFFFFFFFFFFFF)


class Ids:
    """A source of new ids; the clock and the randomness are given, so that a simulation can repeat them."""

    def __init__(self, clock: Clock, source: random.Random | None = None) -> None:
        self._clock = clock
        self._bits = (source or _chance).getrandbits
        self._lock = threading.Lock()
        self._moment = (0, _time(0))
        self._tails: list[str] = []
        self._rest = self._bits(CHANCE)
        _sources.add(self)

    def begin_anew(self) -> None:
        """Forget what was made ahead."""
        self._lock = threading.Lock()
        self._tails, self._rest = [], self._bits(CHANCE)

    def task(self, anchor: str | None) -> str:
        """A new task id; the anchor (its key, or its unique key) decides the partition, else chance does.

        In a partition every id is higher than the one before, however little the clock has moved.
        """
        try:
            tail = self._tails.pop()
        except IndexError:
            tail = self._next_tail()
        if anchor is not None:
            tail = f"7{partition_for(anchor):03x}{tail[4:]}"
        return f"{self._now()}-{tail}"

    def tasks(self, count: int) -> list[str]:
        """So many new task ids at once, each in a partition of chance, and each higher than the one before."""
        with self._lock:
            self._tails = []
            tails = self._more(count)
        time = self._now()
        return [f"{time}-{tail}" for tail in tails]

    def _now(self) -> str:
        """The time as an id tells it, which never runs backwards."""
        at = self._clock.now() // 1000
        moment = self._moment
        if at > moment[0]:
            # Another thread may set it to a moment that is a little older; whoever reads the clock next mends that.
            self._moment = moment = (at, _time(at))
        return moment[1]

    def _next_tail(self) -> str:
        with self._lock:
            while True:
                try:
                    return self._tails.pop()
                except IndexError:
                    self._tails = self._more(AHEAD)[::-1]

    def _more(self, count: int) -> list[str]:
        """What follows the time in so many ids, each higher than the one before."""
        if self._rest + count * (STEP + 1) > LAST:
            at = self._moment[0] + 1
            self._rest, self._moment = self._bits(CHANCE), (at, _time(at))
        bits = memoryview(self._bits(64 * count).to_bytes(8 * count)).cast("Q")
        rests = list(accumulate([1 + (one & STEP) for one in bits], initial=self._rest))
        self._rest = rests[-1]
        return [
            TAIL % (one >> 52, rest >> 48 & 0x3FFF | 0x8000, rest & 0xFFFFFFFFFFFF)
            for one, rest in zip(bits, rests[1:], strict=True)
        ]

    def session(self) -> str:
        """A new incarnation: never a hostname, never reused."""
        return f"{self._bits(96):024x}"


def derived(task_id: str, attempt: int, index: int | str, anchor: str | None) -> str:
    """The id of what an attempt spawned: the same inputs give the same id, so a repeated commit inserts nothing."""
    digest = int.from_bytes(blake2b(f"{task_id}/{attempt}/{index}".encode(), digest_size=10).digest())
    partition = digest >> 68 if anchor is None else partition_for(anchor)
    return f"{task_id[:13]}-{_tail(partition, digest)}"
