"""The story: accept, kill, recover, retry, bury, fix, replay; and then compare with the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import IO

from durably.core.explain import SessionFacts
from durably.core.task import State
from durably.demo.app import app, ledger
from durably.demo.audit import Check, audit, every_task, steps
from durably.demo.files import Place, next_commands
from durably.demo.ledger import Entry, read
from durably.demo.orders import (
    FAST,
    Plan,
    accept_a_call,
    accept_invoices,
    accept_the_rest,
    place_orders,
    stored_orders,
)
from durably.demo.screen import Screen
from durably.demo.telling import Tale, told
from durably.demo.workers import LEASE, kill_in_the_middle, running, wait_until


def tell(place: Place, *, fast: bool) -> int:
    """Tell it; the exit code is 0 if everything that was promised held."""
    return told(place, app, lambda screen, log: Story(place, FAST if fast else Plan(), screen, log))


class Story(Tale):
    """Five acts and a verdict."""

    title = "Durably: two workers, one SQLite file, one kill -9"
    writers = "the shop and by its handlers"
    last_act = 6

    def __init__(self, place: Place, plan: Plan, screen: Screen, log: IO[bytes]) -> None:
        super().__init__(app, ledger, place, screen, log)
        self._plan = plan
        self._hopeless = ""

    def play(self) -> None:
        self._accept()
        with running(2, app, self._log, release=1) as sessions:
            self._kill(sessions)
            self._retry()
            fixable = self._bury()
        self._fix(fixable)

    def _accept(self) -> None:
        """Everything is enqueued."""
        self._screen.heading(f"1  Accept {self._plan.total:,} tasks")
        accepted = 0

        def count(more: int) -> None:
            nonlocal accepted
            accepted += more
            self._screen.progress(accepted, self._plan.total, " accepted")

        began = time.monotonic()
        place_orders(self._place.database, self._plan, count)
        asyncio.run(accept_the_rest(self._plan, count))
        took = time.monotonic() - began
        self._screen.say(
            f"Accepted and safe on disk, in {took:.1f} s: work for async functions and for threads, and bookings of "
            f"{self._plan.accounts} accounts, each to run in order. {self._plan.orders} were enqueued within the "
            f"shop's own transactions, together with their orders; number {self._plan.rolled_back} rolled back."
        )

    def _kill(self, sessions: list[SessionFacts]) -> None:
        """One worker dies in the middle of its work; the other one takes over."""
        self._screen.heading("2  Run them, and kill a worker in the middle")
        self._greet(sessions)
        victim, interrupted = wait_until(lambda: self._strike(sessions))
        killed = time.monotonic()
        self._screen.say(
            f"kill -9 {victim.pid}, while {len(interrupted)} handlers ran in it: it could report nothing and "
            "release nothing. Why is one of its tasks not done?"
        )
        self._why(interrupted[0].task)
        known = {session.id for session in app.sessions.list()}
        self._await_another(known, self._progress)
        wait_until(lambda: self._progress() and self._taken_back(interrupted, victim.id))
        self._screen.say(
            f"After {time.monotonic() - killed:.1f} s all its tasks were taken back by the others; its lease was "
            f"{LEASE} s, the default is 30 s."
        )
        wait_until(lambda: (self._progress() and not self._left()) or None)
        entries = read(self._place.ledger)
        keys = [entry.key for entry in interrupted if entry.key] or [entry.key for entry in entries if entry.key]
        self._screen.say(f"The bookings of {keys[0]}, as they ran: {steps(entries, str(keys[0]))}.")

    def _strike(self, sessions: list[SessionFacts]) -> tuple[SessionFacts, list[Entry]] | None:
        """Kill one of the workers once a third is done; None if it is too early, or none has handlers running."""
        if 3 * self._progress().get(State.DONE, 0) < self._plan.total:
            return None
        for session in sessions:
            if interrupted := kill_in_the_middle(session.pid, self._place.ledger):
                return session, interrupted
        return None

    def _taken_back(self, interrupted: list[Entry], session: str) -> bool | None:
        held = [entry for entry in interrupted if app.handle(entry.task).info().session == session]
        return None if held else True

    def _retry(self) -> None:
        """A failure that passes by itself."""
        self._screen.heading("3  Retry what fails, with growing pauses")
        handle = app.handle(asyncio.run(accept_a_call()))
        wait_until(lambda: handle.state() == State.DELAYED or None)
        self._why(handle.id)
        wait_until(lambda: handle.state() == State.DONE or None)
        info, attempts = handle.info(), handle.attempts()
        begins = [*(attempt.started_at for attempt in attempts[1:]), info.started_at]
        for attempt, later in zip(attempts, begins, strict=True):
            pause = 0.0 if later is None else (later - attempt.finished_at).total_seconds()
            self._screen.say(
                f"attempt {attempt.attempt} {attempt.outcome}: {attempt.message}; then {pause:.1f} s of rest"
            )
        self._screen.say(f"attempt {info.attempt}: {info.state}")

    def _bury(self) -> str:
        """Failures that do not pass: dead letters, with payload and error."""
        self._screen.heading("4  Bury what cannot succeed, with everything that is known about it")
        fixable, self._hopeless = asyncio.run(accept_invoices())
        letters = (fixable, self._hopeless)
        wait_until(lambda: all(app.handle(task).state() == State.DEAD for task in letters) or None)
        self._screen.say("Two invoices could not be read, and trying again would not help.")
        self._why(fixable)
        return fixable

    def _fix(self, fixable: str) -> None:
        """A new release can do what the old one could not."""
        self._screen.heading("5  Fix the bug, deploy, replay")
        with running(1, app, self._log, release=2) as [worker]:
            self._screen.say(
                "The old workers finished what they had begun, and left. Release 2, which knows decimal commas, runs "
                f"as process {worker.pid}."
            )
            replayed = app.dead.replay(task="read_invoice")
            wait_until(lambda: not self._left() or None)
        info = app.handle(fixable).info()
        self._screen.say(
            f"`durably dead replay --task read_invoice` gave {replayed} dead letters a new cycle: one is {info.state} "
            f"(it read {info.result}), the other one is dead again, for a person to decide."
        )

    def checks(self) -> Iterable[Check]:
        return audit(read(self._place.ledger), every_task(app), stored_orders(self._place.database))

    def commands(self) -> Iterable[str]:
        return next_commands(self._place.database, self._hopeless)

    def _progress(self) -> dict[str, int]:
        """Show how it goes; how many tasks are in which state."""
        counts = self._counts()
        rest = f" done, {counts.get(State.LEASED, 0)} running, {counts.get(State.DELAYED, 0)} waiting for a retry"
        self._screen.progress(counts.get(State.DONE, 0), self._plan.total, rest)
        return counts
