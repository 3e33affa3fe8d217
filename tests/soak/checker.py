"""The judge: compares what producers and handlers wrote down with what the store says. A pure function of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.soak.ledger import Line
from tests.soak.snapshot import Row, Snapshot

Complaints = Iterator[str]

ENDS = ("done", "dead", "cancelled")
CRASH_CAP = 3
FAILURES = {"keyed": 1, "retried": 3, "hopeless": 1, "exhausting": 3}
"""How often a task of this name can fail; the others never do."""
DYING = ("hopeless", "exhausting", "poison")
MOURNED = ("hopeless", "exhausting")


def violations(lines: list[Line], snapshot: Snapshot, *, ahead: int = 1) -> list[str]:
    """Everything that must not be; `ahead` is how many tasks of a key a worker takes with one lease."""
    return list(Case(lines, snapshot, ahead).complaints())


class Case:
    """The evidence, sorted."""

    def __init__(self, lines: list[Line], snapshot: Snapshot, ahead: int) -> None:
        self._store = snapshot
        self._ahead = ahead
        self._rows = {row.id: row for row in snapshot.rows}
        self._by_label: dict[str, list[Row]] = {}
        for row in snapshot.rows:
            self._by_label.setdefault(row.label, []).append(row)
        self._offered: dict[str, str] = {}
        self._outbox: set[str] = set()
        self._answers: dict[str, set[str]] = {}
        self._accepted: list[Line] = []
        self._began: dict[str, list[Line]] = {}
        self._ended: dict[tuple[str, int], Line] = {}
        self._ran: set[tuple[str, int]] = set()
        self._told: dict[str, Counter[str]] = {}
        for line in sorted(lines, key=lambda line: line.at):
            self._sort(line)

    def _sort(self, line: Line) -> None:
        match line.what:
            case "offered":
                self._offered.update(dict.fromkeys(line.labels, line.name))
                if line.note == "outbox":
                    self._outbox.add(line.label)
            case "accepted" | "unsure" | "rolled back":
                for label in line.labels:
                    self._answers.setdefault(label, set()).add(line.what)
                if line.what == "accepted":
                    self._accepted.append(line)
            case "began":
                self._began.setdefault(line.task, []).append(line)
            case "ran" | "failed":
                self._ended[line.task, line.token] = line
                if line.what == "ran":
                    self._ran.add((line.task, line.token))
            case "completed" | "dead":
                self._told.setdefault(line.task, Counter())[line.what] += 1

    def complaints(self) -> Complaints:
        yield from self._accepted_but_not_ended()
        yield from self._invented()
        yield from self._torn_transactions()
        yield from self._out_of_order()
        yield from self._successors()
        yield from self._hooks()
        for row in self._store.rows:
            if row.state in ENDS:
                yield from self._completion(row)
                yield from self._attempts(row)
                yield from self._wrong_end(row)
        yield from (f"{count} {table} are left over" for table, count in self._store.left.items() if count)
        yield from (f"the database is damaged: {what}" for what in self._store.damage)

    def _accepted_but_not_ended(self) -> Complaints:
        for line in self._accepted:
            if line.many:
                missing = [label for label in line.labels if label not in self._by_label]
                yield from (f"{label} was accepted with others, and there is no such task" for label in missing)
                continue
            row = self._rows.get(line.task)
            if row is None:
                yield f"{line.label} was accepted as {line.task}, and there is no such task"
            elif row.label != line.label or row.name != line.name:
                yield f"{line.label} was accepted as {line.task}, which is {row.name} {row.label!r}"
        for row in self._store.rows:
            if row.state not in ENDS:
                yield f"{called(row)} has not ended: it is {row.state}"

    def _invented(self) -> Complaints:
        for label, rows in self._by_label.items():
            if len(rows) > 1:
                yield f"{label!r} became {len(rows)} tasks: {[row.id for row in rows]}"
        for row in self._store.rows:
            if row.name in ("child", "mourn"):
                continue
            if self._offered.get(row.label) != row.name:
                yield f"{called(row)} was offered by nobody"
            elif self._answers.get(row.label) == {"rolled back"}:
                yield f"{called(row)} exists, and its transaction was rolled back"

    def _torn_transactions(self) -> Complaints:
        for label in self._outbox:
            if (label in self._store.orders) != (label in self._by_label):
                yield f"of order and task {label!r} only one exists"
        yield from (f"nobody made the order {label!r}" for label in self._store.orders - self._outbox)

    def _out_of_order(self) -> Complaints:
        """Of two tasks that were accepted one after the other, the second begins when the first has ended.

        The end is that of the attempt that the store recorded: a zombie may have gone on for longer, and is excluded by
        its token. What a producer was not sure of overlapped with what came next, and has no place in the order.
        Whoever runs ahead may have begun the second under an earlier token, after an attempt of the first that got
        lost.
        """
        lines: dict[str, list[Row]] = {}
        sure = {line.task for line in self._accepted}
        for row in self._store.rows:
            if row.key is not None and row.id in sure:
                lines.setdefault(row.key, []).append(row)
        for rows in lines.values():
            rows.sort(key=lambda row: int(row.label.rpartition(".")[2]))
            for before, after in pairwise(rows):
                end = self._end_of(before)
                begun = self._began.get(after.id, [])
                if self._ahead > 1:
                    begun = [line for line in begun if line.token >= before.token]
                if end is None or not begun:
                    continue
                if begun[0].at < end.at:
                    yield f"{called(after)} began before {called(before)} had ended, in key {after.key}"
                if min(line.token for line in begun) < before.token:
                    yield f"{called(after)} had a lower token than {called(before)}, in key {after.key}"

    def _end_of(self, row: Row) -> Line | None:
        """The last that was seen of the attempt that the store recorded."""
        begun = [line for line in self._began.get(row.id, []) if line.token == row.token]
        return self._ended.get((row.id, row.token)) or (begun[-1] if begun else None)

    def _successors(self) -> Complaints:
        for row in self._store.rows:
            if row.name == "parent":
                children = len(self._by_label.get(f"{row.label}/child", []))
                if (row.state == "done") != (children == 1):
                    yield f"{called(row)} is {row.state} and has {children} successors"
            elif row.name == "child" and row.label.removesuffix("/child") not in self._by_label:
                yield f"{called(row)} is the successor of nobody"

    def _hooks(self) -> Complaints:
        for row in self._store.rows:
            if row.name == "mourn":
                dead = self._rows.get(row.label.removeprefix("mourn/"))
                if dead is None or dead.state != "dead":
                    yield f"{called(row)} tells of a death that did not happen"
            elif row.name in MOURNED and row.state == "dead" and f"mourn/{row.id}" not in self._by_label:
                yield f"{called(row)} died, and its hook was not enqueued"

    def _completion(self, row: Row) -> Complaints:
        told = self._told.get(row.id, Counter())
        if told.total() > 1:
            yield f"{called(row)} was recorded as ended {told.total()} times: {dict(told)}"
        if told["completed"] and row.state != "done":
            yield f"{called(row)} was recorded as completed and is {row.state}"
        if row.state == "done" and (row.id, row.token) not in self._ran:
            yield f"{called(row)} is done under token {row.token}, and no attempt with that token ran to its end"

    def _attempts(self, row: Row) -> Complaints:
        begun = self._began.get(row.id, [])
        if self._ahead > 1 and row.key is not None:
            # What followed a head that was lost was not charged, and counts as the same attempt when it runs again.
            begun = list({line.attempt: line for line in sorted(begun, key=lambda line: line.token)}.values())
        numbers = [line.attempt for line in begun]
        if len(set(numbers)) < len(numbers):
            yield f"{called(row)} began the same attempt twice: {numbers}"
        by_attempt = sorted(begun, key=lambda line: line.attempt)
        for one, other in pairwise(by_attempt):
            if other.token <= one.token:
                yield f"{called(row)} got token {other.token} after {one.token}"
        if begun and max(numbers) > row.attempt:
            yield f"{called(row)} began attempt {max(numbers)}, and the store knows of {row.attempt}"
        if row.name == "once" and len(begun) > 1:
            yield f"{called(row)} must not begin twice and began {len(begun)} times"
        trials = self._store.trials.get(row.id, [])
        failed = sum(trial.outcome != "crashed" for trial in trials)
        crashed = len(trials) - failed
        if failed > FAILURES.get(row.name, 0):
            yield f"{called(row)} failed {failed} times"
        if row.crashes > CRASH_CAP or row.crashes != crashed:
            yield f"{called(row)} counts {row.crashes} crashes, {crashed} are kept, {CRASH_CAP} are allowed"

    def _wrong_end(self, row: Row) -> Complaints:
        trials = self._store.trials.get(row.id, [])
        kept = row.spent - 1 if row.state == "done" else row.spent
        if len(trials) != kept:
            yield f"{called(row)} is {row.state} after {row.spent} charged attempts, and {len(trials)} errors are kept"
        if row.state == "dead" and (not row.label or not row.reason or not trials):
            yield f"{called(row)} is dead without its payload, its reason or its errors"
        if not all(trial.kind and trial.message for trial in trials):
            yield f"{called(row)} has an attempt without its error"
        crashed_too_often = row.reason.startswith("killed its process") and row.crashes == CRASH_CAP
        interrupted = row.name == "once" and row.crashes == 1
        if row.state != ("dead" if row.name in DYING or crashed_too_often or interrupted else "done"):
            yield f"{called(row)} should not have ended as {row.state} ({row.reason})"


def called(row: Row) -> str:
    """How a complaint names a task."""
    return f"{row.name} {row.label!r} ({row.id})"
