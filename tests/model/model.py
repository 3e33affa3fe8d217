"""What every store should do, in plain Python and with no regard for speed: the oracle of the state machine.

It is written from the documentation, and uses none of the engine's rules. Where a store has a choice (which tasks a
claim takes), the model is told what was chosen, and says whether that was allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.claims import check_limits, check_nothing_left_behind, check_order, limits_of, refusal
from tests.model.entry import Entry, Error
from tests.model.limits import Limit

SECOND = 1_000_000
RETENTION = 7 * 86400 * SECOND
CRASH_CAP = 3

Slot = tuple[str, str, str]
Line = tuple[str, str]


class Wanted(NamedTuple):
    """What someone asks to be accepted; moments are relative, in microseconds."""

    id: str
    name: str
    queue: str
    payload: bytes
    priority: int
    due_in: int
    key: str | None
    policy: str | None
    gate: str | None
    once: bool
    expires_in: int | None
    scope: str | None
    unique: str | None
    period: int | None
    fingerprint: str | None
    hook: bool
    keep: int | None


class Answer(NamedTuple):
    """What became of a request: accepted, existing or conflict; and the task that it is about."""

    what: str
    task: str


class Holder(NamedTuple):
    """Who has a unique key. The number of a period is part of its key, so it need not end."""

    task: str
    fingerprint: str | None


class Given(NamedTuple):
    """One task that a claim brought."""

    task: str
    token: int


@dataclass
class Session:
    expires_at: int
    live: bool = True


class Model:
    """Everything that was accepted, and every rule about what may become of it."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.entries: dict[str, Entry] = {}
        self.accepted = 0
        self.forgotten: set[str] = set()
        self.sessions: dict[str, Session] = {}
        self.unique: dict[Slot, Holder] = {}
        self.queues: dict[str, tuple[str, int | None]] = {}
        self.limits: dict[str, Limit] = {}
        self.pauses: dict[Line, str | None] = {}
        """The paused keys, with the task that each waits for if it gave up."""
        self.requests: list[tuple[str, str]] = []
        self.hooks: list[str] = []
        """The dead letters whose hook must have been accepted with their death."""
        self.token = 0
        self._places = 0

    # Accepting

    def accept(self, wanted: Wanted) -> Answer:
        """Accept a task, unless another one has its unique key; a request that is repeated changes nothing."""
        slot = self._slot(wanted)
        holder = self.unique.get(slot) if slot else None
        if holder is not None and holder.task != wanted.id:
            return Answer("existing" if holder.fingerprint == wanted.fingerprint else "conflict", holder.task)
        if wanted.id not in self.entries:
            if slot:
                self.unique[slot] = Holder(wanted.id, wanted.fingerprint)
            self._add(wanted)
        return Answer("accepted", wanted.id)

    def accept_hook(self, task: str, parent: str, payload: bytes) -> None:
        """The task that a death brought with it."""
        self.hooks.remove(parent)
        self._add(
            Wanted(
                task, "hook", "default", payload, 5, 0, None, None, None, False, None, None, None, None, None, False,
                None,
            )
        )  # fmt: skip

    def _add(self, wanted: Wanted) -> None:
        entry = Entry(
            wanted.id,
            wanted.name,
            wanted.queue,
            wanted.payload,
            wanted.priority,
            self.now,
            "delayed",
            self.now + max(wanted.due_in, 0),
            self._next_place(),
            wanted.key,
            wanted.policy,
            wanted.gate,
            wanted.once,
            None if wanted.expires_in is None else self.now + wanted.expires_in,
            wanted.scope,
            wanted.hook,
            wanted.keep,
        )
        if wanted.due_in <= 0:
            entry.state = entry.place_to_wait
        self.entries[entry.id] = entry
        self.accepted += 1

    def _slot(self, wanted: Wanted) -> Slot | None:
        if wanted.scope is None or wanted.unique is None:
            return None
        space = wanted.queue.partition("/")[0] if "/" in wanted.queue else "default"
        part = "" if wanted.period is None else f"@{self.now // wanted.period}"
        return space, wanted.scope, wanted.unique + part

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    # Claiming

    def claim(
        self, session: str, queues: Sequence[str], room: int, alone: bool, given: list[Given], live: bool
    ) -> None:
        """Check what a claim took, and believe it."""
        here = self.sessions.get(session)
        assert live == (here is not None and here.live), f"the claim says that session {session} is live: {live}"
        if not live:
            assert not given, f"session {session} is not live, and was given {given}"
            return
        self.settle_requests()
        takeable = {entry.id: entry for entry in self.entries.values() if refusal(self, entry, queues, alone) is None}
        taken = [self.entries[each.task] for each in given]
        assert len({each.task for each in given}) == len(given) <= room, f"room for {room}, given {given}"
        for entry in taken:
            assert entry.id in takeable, f"{entry} was claimed, but {refusal(self, entry, queues, alone)}"
        for each in given:
            assert each.token > self.token, f"token {each.token} comes after token {self.token}"
        check_order(taken, takeable)
        check_limits(self, taken)
        for each in given:
            self._lease(self.entries[each.task], session, each.token)
        self.token = max([self.token, *(each.token for each in given)])
        if len(taken) < room:
            check_nothing_left_behind(self, takeable)

    def _lease(self, entry: Entry, session: str, token: int) -> None:
        entry.state = "leased"
        entry.session, entry.token = session, token
        entry.attempt += 1
        entry.spent += 1
        entry.missed_at = None
        entry.revision += 1
        if entry.scope == "waiting":
            self._free(entry)
        for limit in limits_of(self, entry):
            limit.started.append(self.now)

    def first_of(self, line: Line) -> Entry | None:
        waiting = [entry for entry in self.entries.values() if entry.line == line and entry.state == "blocked"]
        return min(waiting, key=lambda entry: entry.place, default=None)

    # What a worker reports

    def complete(self, entry: Entry, result: bytes) -> None:
        self._end(entry, "done", None, result)

    def fail(self, entry: Entry, message: str, permanent: bool, delays: Sequence[int]) -> None:
        """The attempt failed: again after the delay for it, or no more."""
        entry.errors.append(Error(entry.attempt, "failed", message))
        if entry.cancel is not None:
            self._end(entry, "cancelled", entry.cancel)
        elif permanent or entry.once or entry.spent > len(delays):
            self._give_up(entry, message)
        else:
            self._wait(entry, delays[entry.spent - 1], behind=entry.policy == "overtake")

    def snooze(self, entry: Entry, wait: int) -> None:
        """Later, and no attempt is charged."""
        if entry.cancel is not None:
            self._end(entry, "cancelled", entry.cancel)
            return
        entry.spent = max(entry.spent - 1, 0)
        self._wait(entry, wait)

    def release(self, entry: Entry, started: bool) -> None:
        """A worker that leaves gives it back."""
        if entry.cancel is None and entry.once and started:
            self._give_up(entry, "may have run")
        else:
            self.snooze(entry, 0)

    def discard(self, entry: Entry, reason: str) -> None:
        self._end(entry, "cancelled", f"discarded: {reason}")

    def stop(self, entry: Entry) -> None:
        """A handler that was asked to stop has stopped."""
        self._end(entry, "cancelled", entry.cancel or "cancelled")

    def lapse(self, entry: Entry) -> None:
        """Its worker died: everything that it held is charged, and only a task that ran alone can be convicted."""
        entry.errors.append(Error(entry.attempt, "crashed", f"(session {entry.session})"))
        entry.crashes += 1
        if entry.cancel is not None:
            self._end(entry, "cancelled", entry.cancel)
        elif entry.once:
            self._give_up(entry, "may have run")
        elif entry.alone and entry.crashes >= CRASH_CAP:
            self._give_up(entry, f"killed its process {entry.crashes} times")
        else:
            entry.alone = entry.crashes >= CRASH_CAP - 1
            wait = 0 if entry.crashes == 1 else 5 * SECOND * 4 ** (entry.crashes - 2)
            self._wait(entry, wait, behind=entry.policy == "overtake")

    def _wait(self, entry: Entry, wait: int, behind: bool = False) -> None:
        """Back to wait: a keyed task keeps its place unless it goes behind the others."""
        keeps_place = entry.key is not None and not behind
        entry.state = "delayed" if wait > 0 and not keeps_place else entry.place_to_wait
        entry.ready_at = self.now + wait
        entry.session = None
        entry.revision += 1
        if behind:
            entry.place = self._next_place()

    def _give_up(self, entry: Entry, reason: str) -> None:
        """A dead letter, unless its key must wait for a person."""
        if entry.line is not None and entry.policy == "pause":
            entry.alone = False
            self._wait(entry, 0)
            self.pauses[entry.line] = entry.id
        else:
            self._end(entry, "dead", reason)

    def _end(self, entry: Entry, state: str, reason: str | None, result: bytes | None = None) -> None:
        entry.state, entry.reason, entry.result = state, reason, result
        entry.prune_at = None if state == "dead" else self.now + (RETENTION if entry.keep is None else entry.keep)
        entry.alone = False
        entry.revision += 1
        if entry.scope in ("waiting", "live"):
            self._free(entry)
        if state == "dead" and entry.hook:
            self.hooks.append(entry.id)
        if entry.line in self.pauses and (self.pauses[entry.line] == entry.id or self.first_of(entry.line) is None):
            del self.pauses[entry.line]

    def _free(self, entry: Entry) -> None:
        self.unique = {
            slot: holder
            for slot, holder in self.unique.items()
            if holder.task != entry.id or slot[1] not in ("waiting", "live")
        }

    # What time brings

    def due(self) -> list[str]:
        """The delayed tasks whose time has come, in the order in which they fell due."""
        found = [each for each in self.entries.values() if each.state == "delayed" and each.ready_at <= self.now]
        return [entry.id for entry in sorted(found, key=lambda entry: (entry.ready_at, entry.place))]

    def promote(self) -> list[str]:
        """Everything that is due takes its place at the end."""
        ids = self.due()
        for task in ids:
            self._join(self.entries[task])
        return ids

    def _join(self, entry: Entry) -> None:
        entry.state = entry.place_to_wait
        entry.ready_at = self.now
        entry.place = self._next_place()
        entry.revision += 1

    def expired(self) -> set[str]:
        """What waits, and whose time is over."""
        return {
            entry.id
            for entry in self.entries.values()
            if entry.state in ("delayed", "ready", "blocked")
            and entry.expires_at is not None
            and entry.expires_at <= self.now
        }

    def expire(self, entry: Entry) -> None:
        self._end(entry, "cancelled", "expired")

    def prune(self) -> int:
        """Forget what has outlived its retention; how many that were."""
        gone = [each.id for each in self.entries.values() if each.prune_at is not None and each.prune_at <= self.now]
        for task in gone:
            self._forget(task)
        return len(gone)

    def _forget(self, task: str) -> None:
        del self.entries[task]
        self.forgotten.add(task)

    # Sessions

    def open(self, session: str, lease: int) -> None:
        self.sessions[session] = Session(self.now + lease)

    def beat(self, session: str, lease: int) -> bool:
        here = self.sessions.get(session)
        if here is None or not here.live:
            return False
        here.expires_at = self.now + lease
        return True

    def mark_dead(self) -> set[str]:
        found = {name for name, each in self.sessions.items() if each.live and each.expires_at < self.now}
        for name in found:
            self.sessions[name].live = False
        return found

    def close(self, session: str) -> None:
        if session in self.sessions:
            self.sessions[session].live = False

    def bury(self) -> int:
        gone = [name for name, each in self.sessions.items() if not each.live and not self.held(name)]
        for name in gone:
            del self.sessions[name]
        return len(gone)

    def held(self, session: str) -> set[str]:
        """What is leased to a session."""
        return {entry.id for entry in self.entries.values() if entry.state == "leased" and entry.session == session}

    def lapsed(self) -> set[str]:
        """What is leased to a session that is not live."""
        live = {name for name, session in self.sessions.items() if session.live}
        running = [entry for entry in self.entries.values() if entry.state == "leased"]
        return {entry.id for entry in running if entry.session not in live}

    # What people ask for

    def cancel(self, entry: Entry, reason: str) -> bool:
        """What waits ends, what runs is asked to stop; False when it had ended."""
        if entry.ended:
            return False
        if entry.state == "leased":
            entry.cancel = reason
            entry.revision += 1
        else:
            self._end(entry, "cancelled", reason)
        return True

    def settle_requests(self) -> set[str]:
        """Carry out what was asked for in callers' transactions; of two requests for one task the later counts."""
        wanted = dict(self.requests)
        self.requests = []
        return {task for task, reason in wanted.items() if task in self.entries and self._settle(task, reason)}

    def _settle(self, task: str, reason: str) -> bool:
        return self.cancel(self.entries[task], reason)

    def replay(self, tasks: Sequence[str]) -> set[str]:
        """Dead letters begin a new cycle, at the end of their keys, in the order in which they were accepted."""
        found = [self.entries[task] for task in tasks if task in self.entries and self.entries[task].state == "dead"]
        for entry in sorted(found, key=lambda entry: (entry.created_at, entry.place)):
            entry.spent = entry.crashes = 0
            entry.session = entry.cancel = entry.reason = entry.result = entry.prune_at = entry.expires_at = None
            entry.scope = None if entry.scope in ("waiting", "live") else entry.scope
            self._join(entry)
        return {entry.id for entry in found}

    def purge(self, tasks: Sequence[str]) -> set[str]:
        found = {task for task in tasks if task in self.entries and self.entries[task].state == "dead"}
        for task in found:
            self._forget(task)
        return found

    def set_queue(self, queue: str, state: str) -> None:
        self.queues[queue] = (state, self.now if state == "draining" else None)

    def set_limit(self, name: str, concurrency: int | None, rate: float | None, burst: float) -> None:
        self.limits.pop(name, None)
        if concurrency is not None or rate is not None:
            self.limits[name] = Limit(concurrency, rate, burst, self.now)

    def pause_key(self, line: Line) -> bool:
        """Stop a key before its next task; False when nothing waits in it, one of its tasks runs, or it is stopped."""
        busy = any(entry.line == line and entry.state == "leased" for entry in self.entries.values())
        if busy or line in self.pauses or self.first_of(line) is None:
            return False
        self.pauses[line] = None
        return True

    def paused_head(self, line: Line) -> Entry | None:
        """The task that a paused key waits for: the one that gave up, or its first."""
        waits_for = self.pauses[line]
        return self.first_of(line) if waits_for is None else self.entries[waits_for]

    def resume_key(self, line: Line) -> None:
        """The first may try again, with a new budget."""
        head = self.paused_head(line)
        assert head is not None
        head.spent = head.crashes = 0
        head.alone = False
        self._wait(head, 0)
        del self.pauses[line]

    def skip_key(self, line: Line, reason: str) -> None:
        """The first is taken out, so that the others can go on."""
        head = self.paused_head(line)
        assert head is not None
        self._end(head, "cancelled", f"skipped: {reason}")
        self.pauses.pop(line, None)

    # What must always hold

    def check(self) -> None:
        """What is true of every reachable state, whatever led to it."""
        assert self.accepted == len(self.entries) + len(self.forgotten), "a task came or went without being noticed"
        running = [entry.line for entry in self.entries.values() if entry.state == "leased" and entry.line is not None]
        assert len(running) == len(set(running)), f"two tasks of one key run: {running}"
        for entry in self.entries.values():
            assert entry.crashes <= CRASH_CAP, f"{entry} has crashed too often"
            assert entry.spent <= entry.attempt, f"{entry} has spent more attempts than it had"
            assert entry.state != "done" or entry.attempt > 0, f"{entry} is done without an attempt"
