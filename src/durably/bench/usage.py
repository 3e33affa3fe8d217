"""What a process and everything below it has used. Linux tells; elsewhere there is nothing to read."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")
HERTZ = os.sysconf("SC_CLK_TCK")


def processor_seconds(*pids: int) -> float | None:
    """The processor time of these processes and of all below them, those that have ended included."""
    table = {pid: stat for pid in _all() if (stat := _stat(pid))}
    if not table:
        return None
    below = defaultdict(list)
    for pid, stat in table.items():
        below[int(stat[1])].append(pid)
    waiting, ticks = list(pids), 0
    while waiting:
        pid = waiting.pop()
        waiting.extend(below[pid])
        ticks += sum(map(int, table[pid][11:15])) if pid in table else 0
    return ticks / HERTZ


def peak_memory(pid: int) -> int | None:
    """The most bytes that this process has had in memory."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _all() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()] if PROC.exists() else []


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything; the parent is the second, the times are 11 to 14."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
