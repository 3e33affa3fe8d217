"""The processes of a soak: started, replaced when they die, killed, frozen and limited by their process ids."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEASE = 2.0
POISONED = 9
FULL = 1 << 20
"""How large a file may be while the disk is full: the ledger's parts are smaller, the database is larger."""


class Member:
    """One process."""

    def __init__(self, role: str, slot: int, process: subprocess.Popen[bytes]) -> None:
        self.role = role
        self.slot = slot
        self.process = process
        self.pid = process.pid
        self.killed = False
        self.dismissed = False

    def kill(self) -> None:
        """End it with -9, and return when it is gone."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Crew:
    """So many workers and producers, at any time."""

    def __init__(self, store: str, folder: Path, seed: int, *, workers: int, producers: int, ahead: int) -> None:
        self._folder = folder
        self._ahead = ahead
        self._seed = seed
        self._environment = os.environ | {"SOAK_STORE": store, "SOAK_LEDGER": str(folder / "ledger")}
        self._wanted = {"worker": workers, "producer": producers}
        self._members: dict[tuple[str, int], Member] = {}
        self._full = False
        self.started: Counter[str] = Counter()
        self.poisoned = 0
        self.surprises: list[str] = []
        """Processes that ended although nobody made them."""

    def members(self, role: str) -> list[Member]:
        """Those of this role that live, oldest first."""
        alive = [member for member in self._members.values() if member.role == role and member.process.poll() is None]
        return sorted(alive, key=lambda member: member.pid)

    def tend(self) -> None:
        """Replace who died."""
        for role, wanted in self._wanted.items():
            for slot in range(wanted):
                member = self._members.get((role, slot))
                if member is None or member.process.poll() is not None:
                    if member is not None:
                        self._bury(member)
                    self._members[role, slot] = self._start(role, slot)

    def fill_disk(self) -> None:
        """From now on nobody can write beyond the first megabyte of any file."""
        self._full = True
        self._limit(FULL)

    def free_disk(self) -> None:
        self._full = False
        self._limit(resource.RLIM_INFINITY)

    def dismiss(self, role: str) -> None:
        """Ask all of a role to leave, and wait for them."""
        self._wanted[role] = 0
        leaving = self.members(role)
        for member in leaving:
            member.dismissed = True
            member.process.terminate()
        for member in leaving:
            member.process.wait()
            self._bury(member)

    def end(self) -> None:
        """Nobody outlives the soak, whatever happened to it."""
        for member in self._members.values():
            if member.process.poll() is None:
                member.kill()

    def _start(self, role: str, slot: int) -> Member:
        number = self.started[role]
        self.started[role] += 1
        if role == "worker":
            command = ["-m", "durably", "worker", "tests.soak.app:app", "--no-parent", "--log-text"]
            command += ["--log-level", "warning", "--lease", f"{LEASE}s", "--concurrency", "64", "--poll", "250ms"]
            command += ["--ahead", str(self._ahead)]
        else:
            command = ["-m", "tests.soak.producer", f"{chr(ord('a') + slot)}{number}", str(self._seed)]
        with open(self._folder / f"{role}-{slot}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self._full:
            _limit(process.pid, FULL)
        return Member(role, slot, process)

    def _bury(self, member: Member) -> None:
        code = member.process.returncode
        if member.role == "worker" and code == POISONED:
            self.poisoned += 1
        elif code != 0 and not member.killed and not (member.dismissed and code == -signal.SIGTERM):
            log = (self._folder / f"{member.role}-{member.slot}.log").read_text(errors="replace")
            tail = "\n".join(log.splitlines()[-30:])
            self.surprises.append(f"a {member.role} ended by itself with exit code {code}:\n{tail}")
        self._members.pop((member.role, member.slot), None)

    def _limit(self, size: int) -> None:
        for member in self._members.values():
            if member.process.poll() is None:
                _limit(member.pid, size)


def _limit(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
