"""The state machine: what workers, callers, operators and time can do, in any order."""

from __future__ import annotations

import sys
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from durably.testing.world import LEASE, World
from tests.model.stage import Stage, one_of
from tests.model.wishes import CLAIMS, GATES, LINES, OUTCOMES, QUEUES, Claims, Outcome, pick, wishes


class StoreMachine(RuleBasedStateMachine):
    """One story. The store and the model go through it side by side, and are compared after every step."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.stage = Stage(world)

    def teardown(self) -> None:
        """With faults off everything comes to its end; a story that has already failed is not told further."""
        try:
            if sys.exc_info()[0] is None:
                self.stage.drain()
        finally:
            self.stage.world.close()

    @initialize(several=st.lists(wishes, min_size=2, max_size=5))
    def begin(self, several: list[dict[str, Any]]) -> None:
        for wish in several:
            self.stage.enqueue(wish)

    # Callers

    @rule(wish=wishes, count=st.integers(1, 3))
    def enqueue(self, wish: dict[str, Any], count: int) -> None:
        """One, or several of a kind one after the other."""
        for _ in range(count):
            self.stage.enqueue(wish)

    @rule(first=wishes, second=wishes)
    def enqueue_together(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        """Two in one transaction; they may want the same key."""
        self.stage.enqueue(first, second)

    @rule(which=pick)
    def ask_again(self, which: int) -> None:
        """A caller that got no answer asks once more."""
        self.stage.ask_again(which)

    @rule(which=pick, what=st.sampled_from(("change", "change", "progress", "old progress")))
    def say_again(self, which: int, what: str) -> None:
        """A worker that got no answer says it once more."""
        match what:
            case "change":
                self.stage.commit_again(which)
            case "progress":
                self.stage.tell_progress(one_of(self.stage.running(), which))
            case "old progress":
                self.stage.tell_progress(one_of(self.stage.leases_seen(which), which))

    # Workers

    @rule(which=pick, how=st.sampled_from(CLAIMS))
    def claim(self, which: int, how: Claims) -> None:
        self.stage.claim(self._session(which), how)

    @rule(which=pick, how=st.sampled_from(OUTCOMES))
    def work(self, which: int, how: Outcome) -> None:
        """Whoever runs a task says how it went."""
        self._work(which, how)

    @rule(which=pick, first=st.sampled_from(OUTCOMES), second=st.sampled_from(OUTCOMES))
    def work_on(self, which: int, first: Outcome, second: Outcome) -> None:
        """The same again, so that retries and ends are not rare."""
        self._work(which, first)
        self._work(which, second)

    @rule(which=pick, how=st.sampled_from(OUTCOMES))
    def report_late(self, which: int, how: Outcome) -> None:
        """A worker that was away for a while: the task may be someone else's by now."""
        look = one_of(self.stage.leases_seen(which), which)
        if look is not None:
            self.stage.commit(self.stage.decided(look, how))

    @rule(which=pick, how=st.lists(st.sampled_from(OUTCOMES), min_size=2, max_size=4))
    def report_together(self, which: int, how: list[Outcome]) -> None:
        """A batch in which some are good and one may be stale; it holds one report of a task at most."""
        chosen = {look.task.id: look for look in self.stage.running()[: len(how) - 1]}
        stale = one_of(self.stage.leases_seen(which), which)
        if stale is not None:
            chosen.setdefault(stale.task.id, stale)
        self.stage.commit(*(self.stage.decided(*pair) for pair in zip(chosen.values(), how, strict=False)))

    @rule(which=pick, what=st.sampled_from(("open", "beat", "beat", "close", "ask", "bury")))
    def session(self, which: int, what: str) -> None:
        name = one_of(self.stage.names, which)
        if what == "open" or name is None:
            self.stage.open(LEASE // 5)
        elif what == "beat":
            self.stage.beat(name)
        elif what == "close":
            self.stage.close(name)
        elif what == "ask":
            self.stage.ask_what_is_held(name)
        else:
            self.stage.bury()

    @rule(which=pick, how=st.sampled_from(CLAIMS))
    def crash(self, which: int, how: Claims) -> None:
        """A worker dies with what it had claimed, and is found out."""
        self.stage.claim(self._session(which), how)
        self.stage.advance(31)
        self.stage.mark_dead()
        self.stage.lapse()

    # Time

    @rule(seconds=st.sampled_from((0.5, 2.0, 5.0, 5.0, 10.0, 21.0, 31.0, 61.0, 8 * 86400.0)), then=st.booleans())
    def time_passes(self, seconds: float, then: bool) -> None:
        self.stage.advance(seconds)
        if then:
            self.stage.promote()

    @rule(which=pick, what=st.sampled_from(("promote", "old list", "expire", "prune", "dead", "lapse", "lapse late")))
    def look_after(self, which: int, what: str) -> None:
        """What workers do in the background."""
        match what:
            case "promote":
                self.stage.promote()
            case "old list":
                self.stage.promote_by_an_old_list()
            case "expire":
                self.stage.expire()
            case "prune":
                self.stage.prune()
            case "dead":
                self.stage.mark_dead()
            case "lapse":
                self.stage.lapse()
            case "lapse late":
                self.stage.lapse_late(which)

    # People

    @rule(which=pick, what=st.sampled_from(("one", "three", "late", "late", "request", "settle")))
    def cancel(self, which: int, what: str) -> None:
        match what:
            case "one":
                self.stage.cancel(self.stage.live_ids(which, 1))
            case "three":
                self.stage.cancel(self.stage.live_ids(which, 3))
            case "late":
                self.stage.cancel_late(which)
            case "request":
                self.stage.request_cancel(self.stage.live_ids(which, 2), f"asked {which}")
            case "settle":
                self.stage.settle_requests()

    @rule(which=pick, what=st.sampled_from(("replay one", "replay three", "purge")))
    def dead_letters(self, which: int, what: str) -> None:
        if what == "purge":
            self.stage.purge(which)
        else:
            self.stage.replay(which, 1 if what == "replay one" else 3)

    @rule(queue=st.sampled_from(QUEUES), state=st.sampled_from(("active", "active", "paused", "draining")))
    def set_a_queue(self, queue: str, state: Literal["active", "paused", "draining"]) -> None:
        self.stage.set_queue(queue, state)

    @rule(
        gate=st.sampled_from(GATES),
        concurrency=st.sampled_from((None, 1, 1, 2, 0)),
        rate=st.sampled_from((None, None, 0.5, 4.0)),
    )
    def set_a_limit(self, gate: str, concurrency: int | None, rate: float | None) -> None:
        self.stage.set_limit(gate, concurrency, rate)

    @rule(which=pick, line=st.sampled_from((None, *LINES)), what=st.sampled_from(("pause", "pause", "resume", "skip")))
    def set_a_key(self, which: int, line: tuple[str, str] | None, what: str) -> None:
        line = line or one_of(self.stage.waiting_lines(), which) or LINES[0]
        if what == "pause":
            self.stage.pause_key(line)
        elif what == "resume":
            self.stage.resume_key(line)
        else:
            self.stage.skip_key(line)

    def _session(self, which: int) -> str:
        """Mostly one that is live; whoever is not must be told so."""
        names = self.stage.names if which % 10 == 9 else self.stage.live()
        return one_of(names, which) or self.stage.open()

    def _work(self, which: int, how: Outcome) -> None:
        if not self.stage.running():
            self.stage.claim(self._session(which), CLAIMS[0])
        look = one_of(self.stage.running(), which)
        if look is not None:
            self.stage.commit(self.stage.decided(look, how))
