"""Everything that a worker has in flight: starting attempts, interrupting them, and knowing which are stuck."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import copy_context

import msgspec

from durably.client.engine import Engine
from durably.core import lifecycle
from durably.core.task import NO_OPTIONS, Failure, Task, unpack_options
from durably.observe.events import Event
from durably.stores.operations.keys import Behind
from durably.worker.chains import Chain, Chains
from durably.worker.context import Context
from durably.worker.deadlines import Deadlines
from durably.worker.execute import AnyDefinition, Attempt, Executor, back_off, overdue
from durably.worker.report import Report, Reporter
from durably.worker.steps import Rest, as_coroutine, traces

log = logging.getLogger("durably.running")

AT_ONCE = 32
"""So many attempts begin in a row before the loop turns,"""
TURN = 0.0005
"""unless one of them ended so many seconds after the first began: then their handlers take their time."""
LENT = 1000
"""So many attempts may wait beside those that have a slot."""
LAST_CHANCE = 5.0
"""Seconds that a coroutine gets to react to the cancellation of its timeout before it counts as stuck."""


class Running:
    """The attempts in flight, and what was claimed and begins in a moment.

    An attempt holds its slot until its code has really returned.
    """

    def __init__(
        self,
        engine: Engine,
        definitions: Mapping[str, AnyDefinition],
        reporter: Reporter,
        concurrency: int,
        chance: random.Random,
        chains: Chains,
        noted: Callable[[Context], None],
        may_start: Callable[[], bool],
        may_follow: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._events = engine.events
        self._definitions = definitions
        self._reporter = reporter
        self._noted = noted
        self._may_start = may_start
        self._may_follow = may_follow
        self._loop = asyncio.get_running_loop()
        self._executor = Executor(engine, concurrency, chance)
        self._deadlines: Deadlines[Attempt] = Deadlines(self._loop, self._expire)
        self._introduce = self._context_of
        self._claimed: deque[tuple[Task, int]] = deque()
        self._chains = chains
        self._turn = 0
        self._latest = 0.0
        self._followed = False
        self._following = True
        self._beginners = 0
        self._waited = False
        self._attempts: dict[Attempt, None] = {}
        self._strikes: dict[str, int] = {}
        self.stuck: set[Attempt] = set()
        """The attempts that were timed out and whose code has not returned yet; their tasks may be tried again here."""
        self.freed = asyncio.Event()
        """Set whenever a slot becomes free."""
        self.lent = 0
        """Slots whose attempts only wait, and in which others may begin."""

    def __len__(self) -> int:
        return len(self._attempts) + len(self._claimed)

    @property
    def ids(self) -> set[str]:
        """The tasks in flight."""
        begun = {attempt.task.id for attempt in self._attempts}
        return begun | {task.id for task, _ in self._claimed} | {*self._chains.waiting()}

    @property
    def tokens(self) -> set[int]:
        """The tokens under which they are leased."""
        return {attempt.task.token for attempt in self._attempts} | {task.token for task, _ in self._claimed}

    def start(self, tasks: Sequence[Task], now: int, behind: Behind) -> None:
        """Begin an attempt of each of them, a few at a time."""
        if behind:
            self._chains.begin(tasks, behind, now, self._loop.time())
        self._claimed.extend([(task, now) for task in tasks])
        if not self._beginners:
            self._begin_soon()

    def _begin_soon(self) -> None:
        """Let some of those that were claimed begin when the loop turns, if there are any.

        One task of the loop is enough for all whose handlers end in their first step. If the last one had to wait, the
        next ones most likely must, and get one each.
        """
        self._turn = min(AT_ONCE, len(self._claimed))
        self._beginners = self._turn if self._waited else min(self._turn, 1)
        for _ in range(self._beginners):
            asyncio.Task(self._begin_some(), loop=self._loop, name="durably-attempts")

    async def _begin_some(self) -> None:
        """Begin attempts, each in contextvars of its own. The first one that must wait keeps this task."""
        mine = asyncio.current_task()
        assert mine is not None
        until = self._loop.time() + TURN
        untouched = traces(mine)
        waiting: tuple[Attempt, Rest] | None = None
        try:
            if not self._may_start():
                self._give_back_claimed()
            self._following = self._may_follow()
            while self._claimed and waiting is None and (self._turn > 0 or self._amid_a_chain):
                self._turn -= 1
                self._followed = False
                task, now = self._claimed.popleft()
                waiting = self._begin(task, now)
                if self._latest > until or traces(mine) != untouched:
                    break
        finally:
            self._beginners -= 1
            if not self._beginners:
                self._begin_soon()
        if waiting is not None:
            attempt, rest = waiting
            attempt.done = mine
            mine.set_name(attempt.task.id)
            await self._last_steps(attempt, rest)

    @property
    def _amid_a_chain(self) -> bool:
        """Whether the next one follows the last: a chain that is reported in pieces costs the store more."""
        return self._followed and self._turn > -AT_ONCE

    def _begin(self, task: Task, now: int) -> tuple[Attempt, Rest] | None:
        """Begin an attempt, if it can; what is left of it if it must wait."""
        # A row that nobody foresaw harms only itself.
        try:
            attempt = self._start(task, now)
        except Exception as error:
            log.exception("task %s could not be started", task.id)
            self._spoil(task, Failure.of(error))
            return None
        if attempt is None:
            return None
        variables = copy_context()
        rest = variables.run(self._first_step, attempt, variables)
        self._waited = rest is not None
        if rest is None:
            return None
        self._watch(attempt)
        return attempt, rest

    def _watch(self, attempt: Attempt) -> None:
        """An attempt has to wait: from now on it may be interrupted. Nobody could while it took its first step."""
        self._attempts[attempt] = None
        if attempt.timeout is not None:
            attempt.armed = attempt.timeout
            self._deadlines.arm(attempt.timeout, attempt, attempt.started)

    def _give_back_claimed(self) -> None:
        while self._claimed:
            task, _ = self._claimed.popleft()
            self.give_back(task)

    def give_back(self, task: Task) -> None:
        """Release a task that is leased and has not begun."""
        self._refuse(Report(task, lambda one: lifecycle.release(one, started=False), "released"))

    def _refuse(self, report: Report) -> None:
        """Report a task whose attempt does not begin."""
        self._break(report.task)
        self._reporter.add(report)
        self.freed.set()

    def _break(self, task: Task) -> None:
        """Nobody follows this one."""
        chain = self._chains.members.get(task.id)
        if chain is not None:
            self._chains.drop(chain)

    def _follow(self, chain: Chain, *, succeeded: bool) -> None:
        """Begin with whoever is next in a chain."""
        if not (succeeded and self._following):
            self._chains.drop(chain)
            return
        following = chain.waiting.popleft()
        now = chain.claimed_at if following.expires_at is None else chain.now(self._loop.time())
        self._claimed.appendleft((following, now))
        self._followed = True
        if not self._beginners:
            self._begin_soon()

    def _start(self, task: Task, now: int) -> Attempt | None:
        """An attempt that may begin; or report at once why it cannot."""
        definition = self._definitions.get(task.name)
        if definition is None:
            self._put_back(task)
            return None
        if task.cancel is not None:
            self._refuse(Report(task, lifecycle.stop, "cancelled"))
            return None
        if task.expires_at is not None and overdue(task, now):
            self._refuse(Report(task, lifecycle.expire, "expired"))
            return None
        try:
            options = NO_OPTIONS if task.options is None else unpack_options(task.options)
            arguments = self._executor.arguments(definition, task)
        except Exception as error:
            self._spoil(task, Failure.of(error))
            return None
        started = self._loop.time()
        timeout = definition.settings.timeout if options.timeout is None else options.timeout
        attempt = Attempt(task, definition, options, arguments, started, timeout, self._introduce)
        if self._events.observed:
            self._events.emit(Event("started", task.id, task.name, task.queue, task.attempt, task.session))
        return attempt

    def _context_of(self, attempt: Attempt) -> Context:
        deadline = None if attempt.timeout is None else attempt.started + attempt.timeout
        return Context(self._engine, attempt.task, self._noted, self._lend, deadline)

    def _lend(self, context: Context) -> None:
        if not context.lent and self.lent < LENT:
            context.lent = True
            self.lent += 1
            self.freed.set()

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Ask these tasks to stop: coroutines are cancelled, threads see the flag."""
        if not reasons:
            return
        self._chains.cancel(reasons)
        for attempt in self._attempts:
            reason = reasons.get(attempt.task.id)
            if reason is not None and attempt.context.cancel_reason is None:
                attempt.context.ask_to_stop(reason)
                self._interrupt(attempt, "cancel")

    def abandon(self) -> None:
        """The session is lost: whatever runs belongs to others now, and nothing is reported."""
        self._claimed.clear()
        self._chains.clear()
        for attempt in list(self._attempts):
            attempt.finished = True
            attempt.context.ask_to_stop("this worker lost its session")
            self._interrupt(attempt, "lost")

    def release(self) -> None:
        """Stop everything: coroutines are cancelled and give their tasks back; what cannot be stopped is let go."""
        self._give_back_claimed()
        for attempt in list(self._attempts):
            attempt.context.ask_to_stop("the worker shuts down")
            self._interrupt(attempt, "release")
            if not attempt.definition.is_async:
                self._let_go(attempt)

    def let_go(self) -> None:
        """Give back even what did not react to its cancellation."""
        for attempt in list(self._attempts):
            self._let_go(attempt)

    async def emptied(self) -> None:
        """Wait until nothing is in flight."""
        while len(self):
            self.freed.clear()
            await self.freed.wait()

    def close(self) -> None:
        self._deadlines.close()
        self._executor.close()

    def _first_step(self, attempt: Attempt, variables: Variables) -> Rest | None:
        """Call the handler and report, unless it must wait: then what is left of it is answered."""
        try:
            work = as_coroutine(self._executor.call(attempt))
        except BaseException as error:
            self._end(attempt, self._raised(attempt, error))
            return None
        try:
            waits_for = work.send(None)
        except StopIteration as stop:
            self._latest = self._loop.time()
            ran = self._latest - attempt.started
            self._end(attempt, self._executor.returned(attempt, stop.value, ran))
        except BaseException as error:
            self._latest = self._loop.time()
            self._end(attempt, self._raised(attempt, error))
        else:
            return Rest(work, variables, waits_for)
        return None

    async def _last_steps(self, attempt: Attempt, rest: Rest) -> None:
        """Run the handler to its end and report."""
        try:
            value = await rest
        except BaseException as error:
            report = self._raised(attempt, error)
        else:
            report = self._returned(attempt, value)
        self._following = self._may_follow()
        self._end(attempt, report)

    def _end(self, attempt: Attempt, report: Report | None) -> None:
        """The handler has returned: report it, unless its outcome was known before, and let others have its slot."""
        members = self._chains.members
        chain = members.get(attempt.task.id) if members else None
        if chain is not None and not chain.waiting:
            chain = None
        succeeded = False
        try:
            if report is not None and not attempt.finished:
                succeeded = report.kind == "completed"
                if succeeded:
                    self._reporter.add(report, last=chain is None)
                else:
                    self._report(attempt, report)
        finally:
            attempt.finished = True
            if attempt.known is not None:
                self.lent -= attempt.known.lent
            if chain is not None:
                self._follow(chain, succeeded=succeeded)
            if attempt in self._attempts:
                self._forget(attempt)
            self.freed.set()

    def _forget(self, attempt: Attempt) -> None:
        """It had to wait, and may not be interrupted any more."""
        del self._attempts[attempt]
        if attempt.armed is not None:
            self._deadlines.disarm(attempt.armed, attempt)
        if attempt in self.stuck:
            self.stuck.discard(attempt)
            log.warning("the stuck task %s has returned at last", attempt.task.id)

    def _report(self, attempt: Attempt, report: Report) -> None:
        if attempt.known is not None and (left := attempt.known.left) is not None:
            report = msgspec.structs.replace(report, details=left)
        self._reporter.add(report)

    def _raised(self, attempt: Attempt, error: BaseException) -> Report | None:
        ran = self._loop.time() - attempt.started
        if isinstance(error, asyncio.CancelledError) and attempt.interrupted is not None:
            return self._interrupted(attempt, ran)
        if attempt.interrupted == "cancel" and isinstance(error, Exception):
            return Report(attempt.task, lifecycle.stop, "cancelled", ran)
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("the handler let a CancelledError escape that nobody had sent to it")
        return self._executor.raised(attempt, error, ran)

    def _returned(self, attempt: Attempt, value: object) -> Report:
        ran = self._loop.time() - attempt.started
        if attempt.interrupted == "timeout":
            return self._executor.timed_out(attempt, ran)
        return self._executor.returned(attempt, value, ran)

    def _interrupted(self, attempt: Attempt, ran: float) -> Report | None:
        match attempt.interrupted:
            case "timeout":
                return self._executor.timed_out(attempt, ran)
            case "cancel":
                return Report(attempt.task, lifecycle.stop, "cancelled", ran)
            case "release":
                return self._released(attempt, ran)
            case _:
                return None

    def _released(self, attempt: Attempt, ran: float = 0.0) -> Report:
        return Report(attempt.task, lambda task: lifecycle.release(task, started=True), "released", ran)

    def _interrupt(self, attempt: Attempt, why: str) -> None:
        if attempt.interrupted is None or why in ("lost", "release"):
            attempt.interrupted = why
        if attempt.definition.is_async and attempt.done is not None:
            attempt.done.cancel()

    def _let_go(self, attempt: Attempt) -> None:
        if not attempt.finished:
            attempt.finished = True
            self._break(attempt.task)
            self._report(attempt, self._released(attempt))

    def _expire(self, what: Attempt) -> None:
        if what.finished:
            return
        if what.definition.is_async and what.interrupted is None:
            self._interrupt(what, "timeout")
            what.armed = LAST_CHANCE
            self._deadlines.arm(LAST_CHANCE, what)
            return
        what.finished = True
        what.interrupted = "timeout"
        self._break(what.task)
        what.context.ask_to_stop("timed out")
        self.stuck.add(what)
        ran = self._loop.time() - what.started
        self._report(what, self._executor.timed_out(what, ran))
        log.warning("task %s (%s) was timed out, but its code goes on and keeps its slot", what.task.id, what.task.name)
        facts = (what.task.id, what.task.name, what.task.queue, what.task.attempt, what.task.session, ran)
        self._events.emit(Event("stuck", *facts))
        self.freed.set()

    def _spoil(self, task: Task, failure: Failure) -> None:
        """The row cannot be read: it becomes a dead letter of its own."""
        self._refuse(Report(task, lambda one: lifecycle.spoil(one, failure), "failed", error=failure.message))

    def _put_back(self, task: Task) -> None:
        """Its name is not known here: give it back uncharged, later each time, for a worker that knows it."""
        strikes = self._strikes[task.name] = self._strikes.get(task.name, 0) + 1
        if strikes == 1:
            log.warning("no task named %r is declared here; it is put back for a worker that knows it", task.name)
        wait = back_off(min(strikes, 10))
        self._refuse(Report(task, lambda one: lifecycle.put_back(one, wait), "unknown"))
