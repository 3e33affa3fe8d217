"""Task ids: UUIDv7 whose `rand_a` carries the partition, so that it can be found from the id alone."""

from __future__ import annotations

import os
import random
import threading
from hashlib import blake2b
from itertools import accumulate
from zlib import crc32

from durably.core.moment import Clock

PARTITIONS = 4096
LAYOUT = "%s-7%03x-%04x-%012x"
START = 0x1FFFFFFFFFFFFFFF
STEP = 0xFFFFFFFF
"""The last 62 bits of an id begin by chance, and go on by chance within a millisecond."""

_chance = random.Random(os.urandom(32))
getattr(os, "register_at_fork", dict)(after_in_child=lambda: _chance.seed(os.urandom(32)))


def partition_for(text: str) -> int:
    """The partition that everything with this key shares."""
    return crc32(text.encode("utf-8", "surrogatepass")) % PARTITIONS


def partition_of(task_id: str) -> int:
    """The partition that an id carries."""
    return int(task_id[15:18], 16)


def _time(milliseconds: int) -> str:
    """The part of an id that tells when it was made."""
    return f"{milliseconds >> 16 & 0xFFFFFFFF:08x}-{milliseconds & 0xFFFF:04x}"


def _layout(time: str, partition: int, rest: int) -> str:
    return LAYOUT % (time, partition, rest >> 48 & 0x3FFF | 0x8000, rest & 0xFFFFFFFFFFFF)


class Ids:
    """A source of new ids; the clock and the randomness are given, so that a simulation can repeat them."""

    def __init__(self, clock: Clock, source: random.Random | None = None) -> None:
        self._clock = clock
        self._bits = (source or _chance).getrandbits
        self._lock = threading.Lock()
        self._at = self._rest = 0
        self._time = _time(0)

    def task(self, anchor: str | None) -> str:
        """A new task id; the anchor (its key, or its unique key) decides the partition, else chance does.

        In a partition every id is higher than the one before, however little the clock has moved.
        """
        bits = self._bits(74)
        partition = bits >> 62 if anchor is None else partition_for(anchor)
        at = self._clock.now() // 1000
        with self._lock:
            if at > self._at:
                self._at, self._rest, self._time = at, bits & START, _time(at)
            else:
                self._rest += 1 + (bits & STEP)
            time, rest = self._time, self._rest
        return LAYOUT % (time, partition, rest >> 48 & 0x3FFF | 0x8000, rest & 0xFFFFFFFFFFFF)

    def tasks(self, count: int) -> list[str]:
        """So many new task ids at once, each in a partition of chance, and each higher than the one before."""
        bits = memoryview(self._bits(64 * count).to_bytes(8 * count)).cast("Q")
        at = self._clock.now() // 1000
        with self._lock:
            if at > self._at:
                self._at, self._rest, self._time = at, self._bits(START.bit_length()), _time(at)
            time = self._time
            rests = list(accumulate([1 + (one & STEP) for one in bits], initial=self._rest))
            self._rest = rests[-1]
        return [
            LAYOUT % (time, one >> 52, rest >> 48 & 0x3FFF | 0x8000, rest & 0xFFFFFFFFFFFF)
            for one, rest in zip(bits, rests[1:], strict=True)
        ]

    def session(self) -> str:
        """A new incarnation: never a hostname, never reused."""
        return f"{self._bits(96):024x}"


def derived(task_id: str, attempt: int, index: int | str, anchor: str | None) -> str:
    """The id of what an attempt spawned: the same inputs give the same id, so a repeated commit inserts nothing."""
    digest = int.from_bytes(blake2b(f"{task_id}/{attempt}/{index}".encode(), digest_size=10).digest())
    partition = digest >> 68 if anchor is None else partition_for(anchor)
    return _layout(task_id[:13], partition, digest)
