"""What a soak did and found, in numbers and as Markdown."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.soak.crew import LEASE
from tests.soak.faults import PEACE, Fault
from tests.soak.ledger import Line
from tests.soak.snapshot import Snapshot

HITS = 0.7
"""The share of kills that must have hit running work."""


class Report(msgspec.Struct, frozen=True):
    """A soak in numbers."""

    store: str
    seed: int
    minutes: float
    accepted: int
    unsure: int
    rolled_back: int
    ends: dict[str, int]
    processes: dict[str, int]
    faults: dict[str, int]
    met: dict[str, int]
    """How many connections, replies or calls the faults of a kind met."""
    kills: int
    hits: int
    interrupted: int
    poisoned: int
    fenced: int
    crashed: int
    sessions_dead: int
    sessions_lost: int
    again: int
    """Tasks whose handler ran to its end more than once."""
    recoveries: list[float]
    """From a kill to the next attempt of a task that it interrupted, with nothing else going wrong meanwhile."""
    disturbed: list[float]
    """The same, of kills that other faults followed at once."""
    violations: list[str]

    @property
    def idle(self) -> list[str]:
        """What this soak did not put to the test, and should have."""
        wanted = {"worker killed": self.hits >= HITS * self.kills > 0, "worker frozen": self.fenced > 0}
        wanted |= {"poison": self.poisoned > 0, "producer killed": self.unsure > 0}
        if self.store == "postgres":
            wanted |= {kind: self.met.get(kind, 0) > 0 for kind in ("connections cut", "connections silent")}
            wanted |= {"replies lost": self.met.get("replies lost", 0) > 0}
            wanted |= {"server crashed": self.faults.get("server crashed", 0) > 0}
        else:
            wanted |= {"disk full": self.met.get("disk full", 0) > 0}
        return [f"{what}: it did not happen, or hit nothing" for what, happened in wanted.items() if not happened]


def drawn_up(
    *,
    store: str,
    seed: int,
    seconds: float,
    lines: list[Line],
    faults: list[Fault],
    snapshot: Snapshot,
    processes: dict[str, int],
    poisoned: int,
    violations: list[str],
) -> Report:
    """The report on a soak that is over."""
    count = Counter(line.what for line in lines)
    answered = {line.label for line in lines if line.what in ("accepted", "unsure", "rolled back")}
    unanswered = {line.label for line in lines if line.what == "offered"} - answered
    kills = [fault for fault in faults if fault.kind == "worker killed"]
    hits = [taken_back(lines, fault) for fault in kills]
    recoveries, disturbed = recovery_times(lines, faults)
    ran = Counter(line.task for line in lines if line.what == "ran")
    met: Counter[str] = Counter()
    for fault in faults:
        met[fault.kind] += fault.count
    return Report(
        store=store,
        seed=seed,
        minutes=seconds / 60,
        accepted=len({label for line in lines if line.what == "accepted" for label in line.labels}),
        unsure=count["unsure"] + len(unanswered),
        rolled_back=count["rolled back"],
        ends=dict(Counter(row.state for row in snapshot.rows)),
        processes=processes,
        faults=dict(Counter(fault.kind for fault in faults)),
        met=dict(met),
        kills=len(kills),
        hits=sum(hit > 0 for hit in hits),
        interrupted=sum(hits),
        poisoned=poisoned,
        fenced=count["fenced"],
        crashed=count["crashed"],
        sessions_dead=count["session_dead"],
        sessions_lost=count["session_lost"],
        again=sum(times > 1 for times in ran.values()),
        recoveries=recoveries,
        disturbed=disturbed,
        violations=violations,
    )


def taken_back(lines: list[Line], fault: Fault) -> int:
    """How many of the attempts that a kill interrupted were still on record as running, and had to be taken back."""
    interrupted = {line.task for line in fault.interrupted}
    return len({line.task for line in lines if line.what == "crashed" and line.at > fault.began} & interrupted)


def recovery_times(lines: list[Line], faults: list[Fault]) -> tuple[list[float], list[float]]:
    """How long the tasks of killed workers waited for their next attempt: in peace, and with other faults meanwhile.

    Only first attempts count: after a second crash a task waits on purpose.
    """
    began = {(line.task, line.attempt): line.at for line in lines if line.what == "began"}
    poisoned = [(line.at, line.at) for line in lines if line.what == "began" and line.name == "poison"]
    peaceful: list[float] = []
    disturbed: list[float] = []
    for fault in faults:
        if fault.kind != "worker killed":
            continue
        others = [(one.began, one.ended) for one in faults if one is not fault] + poisoned
        alone = all(end < fault.began - PEACE or begin > fault.began + PEACE for begin, end in others)
        for line in fault.interrupted:
            again = began.get((line.task, 2))
            if line.attempt == 1 and again is not None:
                (peaceful if alone else disturbed).append(again - fault.began)
    return peaceful, disturbed


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def as_markdown(report: Report) -> str:
    """For people."""
    rows = [
        ("time", f"{report.minutes:.1f} minutes, seed {report.seed}"),
        ("tasks accepted", f"{report.accepted:,}"),
        ("enqueues that nobody is sure of, rolled back", f"{report.unsure:,}, {report.rolled_back:,}"),
        ("tasks ended", ", ".join(f"{count:,} {state}" for state, count in sorted(report.ends.items()))),
        ("processes started", ", ".join(f"{count} {role}s" for role, count in sorted(report.processes.items()))),
        *((kind, _met(kind, count, report)) for kind, count in sorted(report.faults.items())),
        ("kills of workers that hit running work", f"{report.hits} of {report.kills} ({report.interrupted} attempts)"),
        ("workers killed by their own task", f"{report.poisoned}"),
        ("sessions declared dead, lost", f"{report.sessions_dead}, {report.sessions_lost}"),
        ("attempts taken back from dead workers", f"{report.crashed:,}"),
        ("writes fenced out", f"{report.fenced:,}"),
        ("tasks whose handler ran to its end more than once", f"{report.again:,}"),
        (f"recovery after a kill (lease {LEASE:g} s, target {PEACE:g} s)", _times(report.recoveries)),
        ("recovery with other faults meanwhile", _times(report.disturbed)),
        ("violations", f"{len(report.violations)}"),
        ("not put to the test", "; ".join(report.idle) or "nothing"),
    ]
    table = "\n".join(f"| {what} | {value} |" for what, value in rows)
    found = "".join(f"\n- {violation}" for violation in report.violations[:50])
    return f"## {report.store}\n\n| what | how much |\n|---|---|\n{table}\n{found}"


def _met(kind: str, count: int, report: Report) -> str:
    met = report.met.get(kind, 0)
    return f"{count} times" + (f", met {met:,}" if met else "")


def _times(values: list[float]) -> str:
    if not values:
        return "not measured"
    return f"p50 {percentile(values, 0.5):.2f} s, p99 {percentile(values, 0.99):.2f} s, of {len(values):,} attempts"
