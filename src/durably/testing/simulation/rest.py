"""What must hold once everything has come to rest: nothing is left over, and the store tells what really happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from durably.core.retry import Retry
from durably.testing.simulation.ledger import Execution, Ledger
from durably.testing.simulation.rules import Watcher, readable
from durably.testing.simulation.scenario import Play, Scenario
from durably.testing.simulation.snapshot import End, Remains, Snapshot
from durably.testing.simulation.trace import Trace

Complaints = Iterator[str]
GRAIN = 2e-6
"""Seconds that the store, which counts microseconds, may round away."""
EXCUSES = ("cancelled", "discarded", "expired", "skipped", "too late", "it was read")


class Rest:
    """The reckoning."""

    def __init__(
        self,
        scenario: Scenario,
        ledger: Ledger,
        watcher: Watcher,
        trace: Trace,
        now: Snapshot,
        remains: Remains,
    ) -> None:
        self._steady = not scenario.jumps
        self._late = scenario.weather.late > 0
        self._plays = {play.number: play for play in scenario.plays}
        self._ledger = ledger
        self._trace = trace
        self._watcher = watcher
        self._now = now
        self._remains = remains
        self._by_number: dict[int, list[End]] = {}
        for end in self._now.ends.values():
            self._by_number.setdefault(watcher.numbers[end.id], []).append(end)

    def complaints(self) -> Complaints:
        """Everything that is wrong."""
        yield from self._leftovers()
        yield from self._promises()
        yield from self._hooks()
        for end in self._now.ends.values():
            play = self._plays.get(self._watcher.numbers[end.id])
            if play is not None:
                yield from self._completion(end, play)
                yield from self._dead_letter(end, play)
                yield from self._once(end)
                yield from self._budget(end, play)
                if self._steady:
                    yield from self._timing(end)
            yield from self._reason(end)

    def _leftovers(self) -> Complaints:
        now, called = self._now, self._trace.called
        ended = max((end.finished_at for end in now.ends.values()), default=0)
        for task in now.tasks:
            yield f"{called(task)} is still {now.state(task)}"
        for what, rows in {
            "markers": now.turns,
            # One that is ready and has no task goes with the next poll, and the last worker may have left before it.
            "key rows": [place for place, key in now.keys.items() if key.state != "ready"],
            # One that was put off goes when its time comes, if there is nobody left to wait.
            "limit groups": [(queue, gate) for queue, gate, ready_at in now.lines if ready_at <= ended],
            "permits": self._remains.permits,
            "cancel requests": sorted(now.cancels),
            # Whoever tries at once lets its session lapse if it could not be closed.
            "live sessions": [one for one in now.sessions if now.live(one) and self._watcher.is_of_a_worker(one)],
        }.items():
            # A request that comes late may open a session of which its worker does not know.
            if rows and not (what == "live sessions" and self._late):
                yield f"{len(rows)} {what} are left over: {rows}"

    def _promises(self) -> Complaints:
        """Every promise was kept, and every call became one task at most."""
        called = self._trace.called
        for promise in self._ledger.promises:
            if promise.task not in self._now.ends and promise.task not in self._now.tasks:
                yield f"#{promise.number} was accepted as {promise.task}, and there is no such task"
        for number, play in self._plays.items():
            count = len(self._by_number.get(number, []))
            promised = len({promise.task for promise in self._ledger.promises if promise.number == number})
            unsure = self._ledger.unsure.count(number)
            if "unique" in play.options and self._late:
                # The answer named the task that held the key; the first request came when the key was free again.
                unsure += len(play.at)
            if play.at and not promised <= count <= promised + unsure:
                yield f"#{number} was promised {promised} times (and perhaps {unsure} more) and became {count} tasks"
        for number, play in self._plays.items():
            if play.then is None:
                continue
            spawned = {
                execution.spawned
                for end in self._by_number.get(number, [])
                for execution in self._ledger.of(end.id)
                if end.state == "done" and execution.token == end.token
            }
            found = {end.id for end in self._by_number.get(play.then, [])}
            if spawned != found:
                missing, surplus = sorted(map(called, spawned - found)), sorted(map(called, found - spawned))
                yield f"the successors of #{number} are wrong: {missing} missing, {surplus} too many"

    def _completion(self, end: End, play: Play) -> Complaints:
        """What is done was returned by an attempt that held the lease, and its result is the one recorded.

        Only the worker whose attempt it was may say so; after a crash nobody does.
        """
        called = self._trace.called(end.id)
        for told in self._ledger.events(end.id, "completed"):
            if end.state != "done" or told.event.session != end.session:
                yield f"{called} was called completed by {told.worker}, and it is {end.state} under token {end.token}"
        if end.state != "done":
            return
        winners = [one for one in self._ledger.of(end.id) if one.token == end.token and one.ending == "return"]
        if len(winners) != 1:
            yield f"{called} is done under token {end.token}, which {len(winners)} returning attempts had"
        if end.result != msgspec.json.encode(f"{play.number} under {end.token}"):
            yield f"{called} is done, but its result is {end.result!r}"

    def _dead_letter(self, end: End, play: Play) -> Complaints:
        """A dead letter has its payload, its reason, and every error that anyone reported."""
        if end.state != "dead":
            return
        called = self._trace.called(end.id)
        spoiled = end.id in self._ledger.spoiled
        if not (spoiled or msgspec.json.decode(end.payload)["number"] == play.number) or not end.reason:
            yield f"{called} is dead without its payload or its reason"
        kept = {(task, attempt) for task, attempt, _ in self._remains.attempts}
        for told in self._ledger.events(end.id, "failed", "timed out", "crashed"):
            if (end.id, told.event.attempt) not in kept:
                yield f"{called} is dead, and its attempt {told.event.attempt} ({told.event.kind}) is not kept"
        if not any(task == end.id for task, _ in kept) and not (end.reason or "").startswith("at most once"):
            yield f"{called} is dead without any attempt that failed"
        misread = any(task == end.id and outcome == "spoiled" for task, _, outcome in self._remains.attempts)
        if misread and not (spoiled or play.note):
            yield f"{called} could not be read, and nothing is wrong with it"
        cap = readable(end.options).crash_cap
        if (end.reason or "").startswith("killed") and end.crashes < cap:
            yield f"{called} is dead after {end.crashes} crashes, and {cap} were allowed"

    def _once(self, end: End) -> Complaints:
        """What runs at most once begins again only when it asked for that itself."""
        ran = self._ledger.of(end.id)
        if end.once and not self._was_resumed(end) and any(one.ending != "snooze" for one in ran[:-1]):
            yield f"{self._trace.called(end.id)} runs at most once and began {len(ran)} times"

    def _budget(self, end: End, play: Play) -> Complaints:
        """No more failures than the policy allows; one that is exhausted has used them all."""
        retry: Retry = play.options["retry"]
        rows = Counter(outcome for task, _, outcome in self._remains.attempts if task == end.id)
        failed = rows["failed"] + rows["timed out"]
        if failed > retry.attempts and not self._was_resumed(end):
            yield f"{self._trace.called(end.id)} failed {failed} times, and {retry.attempts} are allowed"
        if (end.reason or "").startswith("attempts exhausted") and failed + rows["crashed"] < retry.attempts:
            yield f"{self._trace.called(end.id)} was given up after {dict(rows)}, and {retry.attempts} are allowed"

    def _timing(self, end: End) -> Complaints:
        """Nothing begins before it is due: not the first attempt, and none that was told to wait."""
        called, ran = self._trace.called(end.id), self._ledger.of(end.id)
        play = self._plays[self._watcher.numbers[end.id]]
        delay = play.options.get("delay", 0.0)
        if ran and play.at and ran[0].started < min(play.at) + delay - GRAIN:
            yield f"{called} was to be delayed by {delay} s and began too early"
        if self._was_resumed(end):
            return
        for told in self._ledger.events(end.id, "failed", "timed out", "snoozed"):
            this = _with_attempt(ran, told.event.attempt)
            after = [one for one in ran if one.attempt > told.event.attempt]
            if this is None or this.ended is None or this.ended > told.at or not after:
                continue
            if after[0].started < this.ended + told.event.delay - GRAIN:
                yield f"{called} was to wait {told.event.delay:.3f} s after attempt {this.attempt} and did not"

    def _reason(self, end: End) -> Complaints:
        """Nothing is cancelled without a reason; what a caller was told would never run did not."""
        called = self._trace.called(end.id)
        if end.state == "cancelled" and not (end.reason or "").startswith(EXCUSES):
            yield f"{called} was cancelled without need: {end.reason}"
        if end.id in self._ledger.cancelled:
            told = self._ledger.cancelled[end.id]
            if end.state != "cancelled" or any(one.started > told for one in self._ledger.of(end.id)):
                yield f"{called} was cancelled before it began, and went on as {end.state}"

    def _hooks(self) -> Complaints:
        """Every death was announced, once."""
        announced = Counter(letter["task"] for letter in self._ledger.letters)
        for end in self._now.ends.values():
            wanted = end.state == "dead" and readable(end.options).on_dead is not None
            if wanted and not announced[end.id]:
                yield f"{self._trace.called(end.id)} died, and its hook never ran"
        for task in announced:
            if self._now.state(task) != "dead" and task not in self._watcher.replayed:
                yield f"the hook ran for {self._trace.called(task)}, which is {self._now.state(task)}"

    def _was_resumed(self, end: End) -> bool:
        """Whether a person gave it a new budget."""
        return end.id in self._watcher.replayed or (
            end.key is not None and (end.queue, end.key) in self._ledger.resumed
        )


def _with_attempt(ran: list[Execution], attempt: int) -> Execution | None:
    return next((one for one in ran if one.attempt == attempt), None)
