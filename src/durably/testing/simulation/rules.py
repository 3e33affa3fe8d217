"""What must hold after every single commit, checked against the commit before. Nothing here trusts the engine's code.

Each rule compares two snapshots and yields complaints; the watcher remembers what one snapshot cannot show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from durably.core.change import Applied, Verdict
from durably.core.moment import SECOND
from durably.core.task import Options, unpack_options
from durably.stores.operations.accept import Accepted
from durably.stores.operations.commit import Committed
from durably.stores.statement import Operation
from durably.testing.simulation.bucket import Bucket
from durably.testing.simulation.commit import Commit, Complaints
from durably.testing.simulation.ledger import Execution, Ledger
from durably.testing.simulation.ordering import Ordering
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import Scenario
from durably.testing.simulation.snapshot import End, Row, Rules, SessionRow, Snapshot
from durably.testing.simulation.trace import Trace

RULING = frozenset({"set_limit", "set_queue"})
"""Operations by which an operator sets limits and queues."""


class Watcher:
    """Looks at the store after every commit that changed something."""

    def __init__(
        self,
        look: Callable[[Rules | None], Snapshot],
        trace: Trace,
        ledger: Ledger,
        complain: Callable[[str], None],
        scenario: Scenario,
    ) -> None:
        self._look = look
        self._trace = trace
        self._ledger = ledger
        self._complain = complain
        self._owners: dict[str, Process] = {}
        self._fair = scenario.fair
        self._punctual = not scenario.weather.late
        self._steady = not scenario.jumps
        self._opened: dict[str, float] = {}
        self._counted: dict[int, int] = {}
        self._ordering = Ordering(trace, steady=not scenario.jumps)
        self._top_token = 0
        self._buckets: dict[str, Bucket] = {}
        self._leased_at: dict[tuple[str, int], int] = {}
        self._messages: dict[str, int] = {}
        self._digests = 0
        self.numbers: dict[str, int] = {}
        """The number of the call that each task was made for."""
        self.rows: dict[str, Row] = {}
        """Every task as it was when it was last seen alive."""
        self.replayed: set[str] = set()
        """Dead letters that got a new cycle."""
        self.now = look(None)
        self._rules = (
            self._conservation,
            self._versions,
            self._fences,
            self._lapses,
            self._promotions,
            self._claims,
            self._limits,
            self._ordering.complaints,
            self._uniqueness,
            self._cancellations,
            self._caps,
        )

    def observe(self, process: Process, op: Operation[Any], answer: Any) -> None:
        """Something was committed."""
        before, after = self.now, self._look(None if op.name in RULING else self.now.rules)
        commit = Commit(process, op, answer, process.clock.now(), before, after)
        self.now = after
        for session in after.sessions.keys() - before.sessions.keys():
            self._owners[session] = process
            self._opened[session] = process.clock.monotonic()
        for row in after.tasks.values():
            if row.id not in self.numbers:
                self._meet(row)
        self.rows.update(after.tasks)
        self._tell(commit)
        for rule in self._rules:
            for complaint in rule(commit):
                self._complain(f"{complaint} ({op.name} of {process.name})")

    def refresh(self) -> Snapshot:
        """Take the store as it is now, whoever has changed it."""
        self.now = self._look(None)
        return self.now

    def left_behind(self, now: Snapshot) -> list[str]:
        """The sessions that belong to nobody any more, or to someone who has opened another one since."""
        newest: dict[Process, SessionRow] = {}
        for row in sorted(now.sessions.values(), key=lambda row: row.started_at):
            if self._owners[row.id].alive:
                newest[self._owners[row.id]] = row
        return sorted(now.sessions.keys() - {row.id for row in newest.values()})

    def is_of_a_worker(self, session: str) -> bool:
        """Whether it was a worker that opened it, and not somebody who only tried something at once."""
        return self._owners[session].mortal

    def begins(self, execution: Execution, process: Process) -> None:
        """A handler begins: it must hold the lease, and nobody else may hold one of the same key."""
        called = self._trace.called(execution.task)
        lease = self.now.leases.get(execution.task)
        holds = lease is not None and lease.token == execution.token
        if not holds and execution.fresh and self._steady:
            self._complain(f"{called} begins under token {execution.token} without holding its lease")
        row = self.rows[execution.task]
        leased_at = self._leased_at.get((execution.task, execution.token), 0)
        if row.expires_at is not None and row.expires_at <= leased_at:
            self._complain(f"{called} begins although it had expired when it was claimed")
        if holds and execution.alone:
            for other in self._ledger.running():
                if other.worker == process.name and other is not execution and self._is_current(other):
                    self._complain(f"{called} is on its last crash life and begins beside {other.number}")
        for other in self._ledger.running():
            if (
                other.task == execution.task
                and other.worker == process.name
                and not (other is execution or other.asked)
            ):
                self._complain(f"{called} begins again in {process.name}, where it still runs")
            same = execution.key is not None and other.key == execution.key and other is not execution
            if same and holds and self._is_current(other):
                self._complain(f"{called} begins while {self._trace.called(other.task)} of the same key runs")

    def _is_current(self, execution: Execution) -> bool:
        lease = self.now.leases.get(execution.task)
        return lease is not None and lease.token == execution.token

    def _owner(self, session: str | None) -> str:
        return self._owners[session].name if session in self._owners else "nobody"

    def _meet(self, row: Row) -> None:
        told = msgspec.json.decode(row.payload)
        if "number" not in told:
            self.numbers[row.id] = 0
            if "destination" in told:
                self._ledger.accepted.append(row.id)
            self._trace.name(row.id, self._name(told))
            return
        number = self.numbers[row.id] = told["number"]
        count = self._counted[number] = self._counted.get(number, 0) + 1
        self._trace.name(row.id, f"#{number}" if count == 1 else f"#{number}/{count}")

    def _name(self, told: dict[str, Any]) -> str:
        """What a task is called that is not of the script."""
        match told:
            case {"destination": destination, "message": message}:
                return f"message {self._count(message)} to {destination}"
            case {"notification": notification, "recipient": recipient, "channel": channel}:
                return f"notification {self._count(notification)} to {recipient} by {channel}"
            case {"kind": kind, "recipient": recipient, "channel": channel}:
                self._digests += 1
                return f"digest {self._digests} of {kind} to {recipient} by {channel}"
            case _:
                return f"the letter about {self._trace.called(told['letter']['id'])}"

    def _count(self, what: str) -> int:
        return self._messages.setdefault(what, len(self._messages) + 1)

    def _tell(self, commit: Commit) -> None:
        before, after, called = commit.before, commit.after, self._trace.called
        for task in {**before.tasks, **after.tasks}:
            was, became = before.state(task), after.state(task)
            lease, end = after.leases.get(task), after.ends.get(task)
            if was == became and before.leases.get(task) == lease:
                continue
            if lease is not None:
                how = f" by {self._owner(lease.session)}, token {lease.token}, attempt {lease.attempt}"
            elif end is not None:
                how = f": {end.reason}" if end.reason else ""
            else:
                row = after.tasks[task]
                wait = max(row.ready_at - commit.now, 0) / SECOND
                how = f" for {wait:.3f} s" if wait else ""
            self._trace.say(commit.process.name, f"{commit.op.name}: {called(task)} {was} -> {became}{how}")
        for session, tenure in after.sessions.items():
            state = tenure.state
            if session not in before.sessions or before.sessions[session].state != state:
                self._trace.say(commit.process.name, f"{commit.op.name}: session of {self._owner(session)} is {state}")
        for place, key in after.keys.items():
            if key.state == "paused" and (place not in before.keys or before.keys[place].state != "paused"):
                self._trace.say(commit.process.name, f"{commit.op.name}: the key {'/'.join(place)} is paused")

    def _conservation(self, commit: Commit) -> Complaints:
        """What was accepted is live or ended, never both and never neither; an end is final."""
        before, after, called = commit.before, commit.after, self._trace.called
        for task in before.tasks.keys() | before.ends.keys():
            if task not in after.tasks and task not in after.ends:
                yield f"{called(task)} is lost: it was {before.state(task)}"
        for task in after.tasks.keys() & after.ends.keys():
            yield f"{called(task)} is live and ended at once"
        for task, end in before.ends.items():
            again = commit.op.name == "revive" or (commit.op.name == "replay" and end.state == "dead")
            if again and task in after.tasks:
                self.replayed.add(task)
                self._ordering.forget(task)
            elif after.ends.get(task) != end:
                yield f"{called(task)} ended as {end.state} and then changed again"

    def _versions(self, commit: Commit) -> Complaints:
        """Whatever changes raises the version; the lifetime number of attempts never falls."""
        before, after, called = commit.before, commit.after, self._trace.called
        for task, row in after.tasks.items():
            was = before.tasks.get(task)
            if was is None or was == row:
                continue
            if row.version <= was.version:
                yield f"{called(task)} changed but its version stayed {row.version}"
            if row.attempt < was.attempt:
                yield f"{called(task)} went back from attempt {was.attempt} to {row.attempt}"

    def _fences(self, commit: Commit) -> Complaints:
        """A change is applied only to the lease, or the wait, that it was decided on."""
        called = self._trace.called
        for verdict in _verdicts(commit):
            if not isinstance(verdict, Applied):
                continue
            task, lease = verdict.change.task, commit.before.leases.get(verdict.change.task.id)
            if lease is None and task.state == "leased":
                yield f"{called(task.id)}: a change of token {task.token} was applied, but nobody holds it"
            elif lease is not None and (task.state != "leased" or task.token != lease.token):
                yield f"{called(task.id)}: a change of token {task.token} was applied, but it is held by {lease.token}"
        for task_id in commit.after.ends.keys() - commit.before.ends.keys():
            end, lease = commit.after.ends[task_id], commit.before.leases.get(task_id)
            if end.state == "done" and (lease is None or lease.token != end.token):
                yield f"{called(task_id)} was completed under token {end.token}, which does not hold it"

    def _lapses(self, commit: Commit) -> Complaints:
        """Only a session whose lease is over is declared dead, and only from the dead something is taken."""
        for session, row in commit.after.sessions.items():
            state, was = row.state, commit.before.live(session)
            if was and state == "dead" and commit.op.name != "close_session" and row.expires_at >= commit.now:
                yield f"the session of {self._owner(session)} was declared dead before its lease was over"
            if was and state == "dead" and commit.op.name == "mark_dead":
                yield from self._judgement(commit, session)
        for verdict in _verdicts(commit):
            change = verdict.change
            crashed = change.attempt is not None and change.attempt.outcome == "crashed"
            if not isinstance(verdict, Applied) or not crashed:
                continue
            if commit.before.live(change.task.session):
                yield f"{self._trace.called(change.task.id)} was taken from a session that lives"
            yield from self._charged(commit, change.task.id)

    def _charged(self, commit: Commit, task: str) -> Complaints:
        """A crash counts, and the attempt that it cost is not refunded."""
        was, now = commit.before.tasks[task], commit.after.tasks.get(task)
        spent = was.spent if was.state == "leased" else was.spent + 1
        if now is not None and (now.crashes <= was.crashes or now.spent < spent):
            yield f"{self._trace.called(task)} crashed and was not charged for it"

    def _judgement(self, commit: Commit, session: str) -> Complaints:
        """Nobody is declared dead by one who has only just arrived, nor because the store was away for all."""
        own = [one for one in commit.after.sessions.values() if self._owners[one.id] is commit.process]
        if not own or not self._punctual:
            # A request that comes late was sent under a session that may be gone by now.
            return
        # It may have opened another one without knowing, when the answer was lost.
        judge = min(own, key=lambda one: self._opened[one.id])
        owner, lease = self._owners[session], (judge.expires_at - judge.beat_at) / SECOND
        moment = owner.clock.monotonic()
        if moment - self._opened[judge.id] < lease:
            yield f"{commit.process.name} has only just opened its session and declares {owner.name} dead"
        # A client gives a session up whose end the store has not heard of; it has no pulse.
        awake = owner.mortal and owner.alive and owner.main.runs and owner.pulse.runs
        if self._fair and awake and moment - owner.thawed_at > lease:
            yield f"{owner.name} runs and is declared dead by {commit.process.name}, only because the store was away"

    def _claims(self, commit: Commit) -> Complaints:
        """A claim takes what is due, not cancelled and not held back, for a live session, under a higher token."""
        before, called = commit.before, self._trace.called
        top = self._top_token
        for lease in commit.leased:
            row = commit.after.tasks[lease.task]
            self._leased_at[lease.task, lease.token] = commit.now
            self._top_token = max(self._top_token, lease.token)
            if lease.token <= top:
                yield f"{called(lease.task)} got token {lease.token}, but {top} was given out before"
            if not commit.after.live(lease.session):
                yield f"{called(lease.task)} was claimed by a session that is not live"
            if lease.task in before.cancels:
                yield f"{called(lease.task)} was claimed although its cancellation was asked for"
            was = before.tasks.get(lease.task)
            if was is not None and lease.attempt <= was.attempt:
                yield f"{called(lease.task)} was claimed and its attempt {lease.attempt} is not a new one"
            if was is not None and was.state == "delayed":
                yield f"{called(lease.task)} was claimed while it was delayed"
            state, cutoff = before.queues.get(row.queue, ("active", None))
            if state == "paused" or (cutoff is not None and row.created_at > cutoff):
                yield f"{called(lease.task)} was claimed although its queue is {state}"
            key = before.keys.get(row.turn) if row.turn is not None else None
            gone = any(before.tasks[task].turn == row.turn for task in before.tasks.keys() - commit.after.tasks.keys())
            if key is not None and not gone and (key.state != "ready" or key.ready_at > commit.now):
                yield f"{called(lease.task)} was claimed although its key was {key.state} until {key.ready_at}"

    def _promotions(self, commit: Commit) -> Complaints:
        """What is delayed waits until it is due."""
        for task, row in commit.after.tasks.items():
            was = commit.before.tasks.get(task)
            if was is not None and was.state == "delayed" and row.state != "delayed" and was.ready_at > commit.now:
                yield f"{self._trace.called(task)} was promoted before it was due"

    def _limits(self, commit: Commit) -> Complaints:
        """No more run at once, and no more begin per second, than the limits say. Of a key only one runs at a time."""
        started = [commit.after.tasks[lease.task] for lease in commit.leased]
        names = {name for row in started for name in _gates(row)}
        for name in sorted(names & commit.after.gates.keys()):
            gate = commit.after.gates[name]
            rows = [commit.after.tasks[task] for task in commit.after.leases]
            held = {row.turn or row.id for row in rows if name in _gates(row)}
            if gate.concurrency is not None and len(held) > gate.concurrency:
                yield f"{len(held)} tasks of {name} are leased, and {gate.concurrency} are allowed"
            if gate.rate is not None:
                if name not in self._buckets or self._buckets[name].gate != gate:
                    self._buckets[name] = Bucket(gate, commit.now)
                bucket = self._buckets[name]
                left = min(bucket.take(commit.now) for row in started if name in _gates(row))
                if left < -0.001:
                    yield f"tasks of {name} begin faster than {gate.rate}/s with a burst of {gate.burst:g}"

    def _uniqueness(self, commit: Commit) -> Complaints:
        """A unique key until the end belongs to a task that has not ended, and so does every answer that names one."""
        after, called = commit.after, self._trace.called
        for scope, key, task in after.uniques:
            if scope in ("live", "waiting") and task not in after.tasks:
                yield f"the unique key {key} is taken by {called(task)}, which is {after.state(task)}"
            elif scope == "waiting" and (task in after.leases or after.tasks[task].attempt > 0):
                yield f"the unique key {key} is still taken by {called(task)}, which has been claimed"
        held = {(scope, task) for scope, _, task in after.uniques}
        for row in after.tasks.values():
            lost = row.unique_scope in ("live", "forever") and (row.unique_scope, row.id) not in held
            if lost and row.id not in self.replayed:
                yield f"the unique key {row.unique_key} is free although {called(row.id)} has not ended"
        for answer in commit.answer if commit.op.name == "accept" else []:
            if isinstance(answer, Accepted) and answer.id not in after.tasks and answer.id not in after.ends:
                yield f"{called(answer.id)} was accepted and is not there"

    def _cancellations(self, commit: Commit) -> Complaints:
        """What was asked to stop while it ran never goes back to wait."""
        for row in commit.after.tasks.values():
            if row.cancel is not None and row.id not in commit.after.leases:
                yield f"{self._trace.called(row.id)} was asked to stop and waits to run again"

    def _caps(self, commit: Commit) -> Complaints:
        """No task is tried again once it has killed its process as often as it may."""
        rows: list[Row | End] = [*commit.after.tasks.values(), *commit.after.ends.values()]
        for row in rows:
            cap = max(readable(row.options).crash_cap, 2)
            if row.crashes > cap:
                yield f"{self._trace.called(row.id)} has crashed {row.crashes} times, and {cap} are allowed"


def readable(options: bytes | None) -> Options:
    """A task's options; the usual ones, where someone spoilt them."""
    try:
        return unpack_options(options)
    except msgspec.MsgspecError:
        return Options()


def _gates(row: Row) -> set[str]:
    return {f"q:{row.queue}"} | ({f"g:{row.gate}"} if row.gate is not None else set())


def _verdicts(commit: Commit) -> list[Verdict]:
    """What the worker was told about each change that it wanted to commit."""
    if commit.op.name == "commit_and_go_on":
        committed: Committed = commit.answer
        return committed.verdicts
    return list(commit.answer) if commit.op.name == "commit" else []
