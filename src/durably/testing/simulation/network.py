"""Between the processes and the store: every operation takes its time, and may be lost, broken off, or the last."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from durably.core.task import Draft
from durably.errors import DurablyError, StoreRejected, StoreUnavailable
from durably.stores.protocol import Caller, Finding
from durably.stores.start import InThread, Started
from durably.stores.statement import Operation, Queries, Steps
from durably.testing.simulation.database import TimedStore
from durably.testing.simulation.loop import OUTSIDE, Bell, VirtualLoop
from durably.testing.simulation.process import Process
from durably.testing.simulation.trace import Trace

T = TypeVar("T")

CALM_LATENCY = 0.002
GRID = 0.001
"""Latencies are multiples of this, so that things happen at the same moment now and then."""
PATIENCE = 1.0
"""Seconds for which a write waits for the store's lock."""
TENDER = frozenset(
    {
        "accept",
        "accept_mail",
        "add_route",
        "cancel_now",
        "claim",
        "claim_plain",
        "close_digest",
        "collect",
        "commit",
        "commit_and_go_on",
        "mark_inbox",
        "notify",
        "open_session",
        "promote",
        "publish",
        "resume_key",
        "throttle",
    }
)
"""Operations that change tasks: faults strike them more often, since most others are polls that find nothing."""
WAKING = frozenset(
    {
        "accept",
        "accept_mail",
        "add_route",
        "cancel_now",
        "collect",
        "commit",
        "commit_and_go_on",
        "hurry",
        "notify",
        "promote",
        "publish",
        "release_line",
        "replay",
        "revive",
        "resume_key",
        "set_limit",
        "set_queue",
        "skip_key",
    }
)
SILENT = frozenset(
    {
        "admit",
        "advance_keys",
        "clear_cancel_requests",
        "copy_tasks",
        "drop_gate",
        "drop_keys",
        "drop_lines",
        "insert_all_new",
        "insert_many",
        "insert_new",
        "insert_unheard",
        "insert_plain",
        "insert_tasks",
        "lease_keys",
        "lease_keys_of",
        "make_keys",
        "put",
        "bury_session",
        "forget_claims",
        "request_cancel",
        "resume_key",
        "return_keys",
        "set_gate",
        "set_queue",
        "forget_queue",
        "take_permits",
        "wait_lines",
    }
)
"""Statements that change something without answering."""
ANSWERING = frozenset(
    {
        "bury",
        "claim_lines",
        "claim_plain",
        "claim_ready",
        "clear_permits",
        "end_alike_tasks",
        "end_tasks",
        "finish_alike_tasks",
        "finish_keyed_tasks",
        "finish_limited_tasks",
        "finish_placed_tasks",
        "finish_tasks",
        "flag_tasks",
        "forget_messages",
        "forget_notifications",
        "go_on",
        "mark_dead",
        "open_session",
        "pause_key",
        "promote",
        "prune",
        "purge",
        "release_tasks",
        "replay",
        "revive",
        "take_unique",
        "wake_gates",
    }
)
"""Statements that changed something if they answered with a row."""
BESIDE = frozenset(
    {
        "add_deliveries",
        "add_destinations",
        "add_gates",
        "add_mail",
        "add_message",
        "add_notification",
        "add_routes",
        "add_template",
        "archive_inbox",
        "beat",
        "change_destinations",
        "close_digest",
        "confirm",
        "describe_session",
        "drop_preference",
        "drop_revived",
        "ensure_keys",
        "forget_destination",
        "forget_revived",
        "forget_template",
        "free_unique",
        "heads",
        "hold_line",
        "insert_attempts",
        "join_digest",
        "keep_unique",
        "open_digest",
        "prune_inbox",
        "prune_throttles",
        "put_in_inbox",
        "read_inbox",
        "release_line",
        "seed_permits",
        "set_preference",
        "set_progress",
        "sleep",
        "spend_gates",
        "suppress",
        "throttle",
        "unsuppress",
        "wake",
    }
)
"""Statements that change only what no rule looks at, or follow others that are noticed anyway."""


class Fate(StrEnum):
    """What becomes of an operation."""

    FINE = "fine"
    LOST_REQUEST = "lost request"
    BROKEN = "broken off"
    LOST_REPLY = "lost reply"
    LATE = "late"
    CRASH_BEFORE = "crash before"
    CRASH_WITHIN = "crash within"
    CRASH_AFTER = "crash after"
    PAUSE = "pause after"


class Weather(msgspec.Struct, frozen=True):
    """How bad the network is: seconds of latency, and the chances of everything else."""

    latency: float = 0.005
    slow: float = 0.0
    """The chance that one way takes up to a second."""
    lost_request: float = 0.0
    broken: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    """The chance that a request arrives only after its sender was told that it failed."""
    crash: float = 0.0
    pause: float = 0.0
    """The chance that its sender is stopped once a request has been carried out, and goes on some seconds later."""
    lost_wakeup: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """What came back: an answer, or what went wrong."""

    value: Any = None
    error: DurablyError | None = None


class _Killed(BaseException):
    """The process died in the middle of a transaction."""


class Network:
    """Carries operations to the one store, and hints back. Once calm, nothing is lost any more."""

    def __init__(
        self,
        loop: VirtualLoop,
        store: TimedStore,
        weather: Weather,
        chance: random.Random,
        trace: Trace,
        struck: Counter[str],
        watch: Callable[[Process, Operation[Any], Any], None],
        refused: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.store = store
        self.calm = False
        self.over = False
        self.down = 0
        """For how many reasons nobody reaches the store."""
        self._back = (-math.inf, 0.0)
        self._slow_to_return: dict[Process, float] = {}
        self.jammed = 0
        """How many others hold the write lock, or wait for it before us."""
        self.operations = 0
        self._weather = weather
        self._chance = chance
        self._trace = trace
        self._struck = struck
        self._watch = watch
        self._refused = refused
        self._listeners: list[VirtualWakeups] = []

    def come_back(self, stagger: float) -> None:
        """One reason less not to reach the store; everyone finds out within so many seconds."""
        self.down -= 1
        self._back = (self.loop.time(), stagger)
        self._slow_to_return.clear()

    def _reaches(self, process: Process) -> bool:
        back, stagger = self._back
        if self.down or self.calm or self.loop.time() >= back + stagger:
            return not self.down
        if process not in self._slow_to_return:
            self._slow_to_return[process] = self._chance.uniform(0.0, stagger)
        return self.loop.time() >= back + self._slow_to_return[process]

    def fate(self, process: Process, op: Operation[Any]) -> Fate:
        """Draw what becomes of an operation."""
        weather, roll = self._weather, self._chance.random() * (1.0 if op.name in TENDER else 5.0)
        if self.calm:
            return Fate.FINE
        for chance, fate in (
            (weather.lost_request, Fate.LOST_REQUEST),
            (weather.broken, Fate.BROKEN),
            (weather.lost_reply, Fate.LOST_REPLY),
            (weather.late, Fate.LATE),
            (weather.pause if process.mortal else 0.0, Fate.PAUSE),
            (weather.crash if process.mortal else 0.0, Fate.CRASH_WITHIN),
        ):
            if roll < chance:
                if fate is not Fate.CRASH_WITHIN:
                    return fate
                return self._chance.choice((Fate.CRASH_BEFORE, Fate.CRASH_WITHIN, Fate.CRASH_AFTER))
            roll -= chance
        return Fate.FINE

    def latency(self) -> float:
        """Draw how long one way takes."""
        if self.calm:
            return CALM_LATENCY
        if self._chance.random() < self._weather.slow:
            return round(self._chance.uniform(0.05, 1.0) / GRID) * GRID
        return round(self._weather.latency * self._chance.uniform(0.0, 2.0) / GRID) * GRID

    def send(self, process: Process, op: Operation[Any]) -> asyncio.Future[Answer]:
        """Send an operation; the answer comes when it comes, unless its sender dies first."""
        reply: asyncio.Future[Answer] = self.loop.create_future()
        fate = self.fate(process, op)
        if fate is not Fate.FINE:
            self._struck[fate.value] += 1
        if fate is Fate.CRASH_BEFORE:
            process.crash(f"before {op.name} was sent")
        elif fate is Fate.LATE:
            self._trace.say(process.name, f"{op.name}: it fails, but the request is still on its way")
            error = _broken("the connection broke")
            self.loop.call_later(self.latency(), _deliver, reply, Answer(error=error), context=OUTSIDE)
            late, nobody = self._chance.uniform(0.0, 2.0), self.loop.create_future()
            self.loop.call_later(late, self._arrive, process, op, fate, nobody, context=OUTSIDE)
        else:
            self.loop.call_later(self.latency(), self._arrive, process, op, fate, reply, context=OUTSIDE)
        return reply

    def _arrive(
        self, process: Process, op: Operation[Any], fate: Fate, reply: asyncio.Future[Answer], waited: float = 0.0
    ) -> None:
        if self.over:
            return
        if self.jammed and op.writes and waited < PATIENCE:
            wait = self._chance.uniform(0.001, 0.05)
            self.loop.call_later(wait, self._arrive, process, op, fate, reply, waited + wait, context=OUTSIDE)
            return
        answer = self.perform(process, op, fate)
        if fate is Fate.CRASH_AFTER:
            process.crash(f"after {op.name} was committed")
        elif fate is Fate.PAUSE:
            process.freeze(heart=True)
            self.loop.call_later(self._chance.uniform(0.5, 6.0), process.thaw, context=OUTSIDE)
        if process.alive:
            self.loop.call_later(self.latency(), _deliver, reply, answer, context=OUTSIDE)

    def perform(self, process: Process, op: Operation[Any], fate: Fate) -> Answer:
        """What happens at the store."""
        self.operations += 1
        if fate is Fate.LOST_REQUEST or not self._reaches(process):
            self._trace.say(process.name, f"{op.name}: the request is lost")
            return Answer(error=_broken("the request was lost"))
        if self.jammed and op.writes:
            self._trace.say(process.name, f"{op.name}: the store stays locked")
            return Answer(error=StoreUnavailable("the store stayed locked"))
        log: list[tuple[str, int]] = []
        self.store.clock = process.clock
        strikes = self._chance.randrange(6) if fate in (Fate.BROKEN, Fate.CRASH_WITHIN) else None
        try:
            answer = self.store.run(_observed(op, log, strikes))
        except _Killed:
            if fate is Fate.CRASH_WITHIN:
                process.crash(f"in the middle of {op.name}")
            else:
                self._trace.say(process.name, f"{op.name}: the connection breaks, all of it is rolled back")
            return Answer(error=_broken("the connection broke"))
        except DurablyError as error:
            if isinstance(error, StoreRejected):
                self._refused(f"the store refused {op.name} of {process.name}: {error}")
            return Answer(error=error)
        if _changed(log):
            self._watch(process, op, answer)
            if op.name in WAKING:
                self._hint()
        if fate is Fate.LOST_REPLY:
            self._trace.say(process.name, f"{op.name}: it is done, but the reply is lost")
            return Answer(error=_broken("the reply was lost"))
        return Answer(answer)

    def listen(self, wakeups: VirtualWakeups) -> None:
        """Give hints to these from now on."""
        self._listeners.append(wakeups)

    def ignore(self, wakeups: VirtualWakeups) -> None:
        """Give no more hints to these."""
        if wakeups in self._listeners:
            self._listeners.remove(wakeups)

    def _hint(self) -> None:
        self._listeners = [wakeups for wakeups in self._listeners if wakeups.process.alive]
        for wakeups in self._listeners:
            if self._chance.random() >= self._weather.lost_wakeup:
                self.loop.call_later(self.latency(), wakeups.nudge, context=wakeups.process.main.context)
            else:
                self._struck["lost wake-up"] += 1


def _broken(what: str) -> StoreUnavailable:
    return StoreUnavailable(what, fleeting=True)


def _deliver(reply: asyncio.Future[Answer], answer: Answer) -> None:
    if not reply.done():
        reply.set_result(answer)


def _observed(op: Operation[T], log: list[tuple[str, int]], strikes: int | None) -> Operation[T]:
    """The same operation; it notes its statements, and breaks off before one of them, or before its commit."""

    def steps(q: Queries) -> Steps[T]:
        inner = op.steps(q)
        log.clear()
        try:
            statement = next(inner)
            while True:
                if len(log) == strikes:
                    raise _Killed
                rows = yield statement
                log.append((statement.query.name, len(rows)))
                statement = inner.send(rows)
        except StopIteration as stop:
            if strikes is not None:
                raise _Killed from None
            answer: T = stop.value
            return answer
        finally:
            inner.close()

    return Operation(op.name, steps, writes=op.writes)


def _changed(log: list[tuple[str, int]]) -> bool:
    return any(name in SILENT or (rows and name in ANSWERING) for name, rows in log)


class SimulatedStore:
    """The store as one process sees it: through the network."""

    sleeps = False
    threaded = False

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self.queries = network.store.queries

    @property
    def address(self) -> str:
        return f"simulated store of {self._process.name}"

    def run(self, op: Operation[T]) -> T:
        answer = self._network.perform(self._process, op, Fate.FINE)
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value

    def put(self, draft: Draft) -> bool:
        return False

    def start(self, op: Operation[T]) -> Started[T]:
        return InThread(lambda: self.run(op))

    async def arun(self, op: Operation[T]) -> T:
        if self._network.over:
            raise StoreUnavailable("the simulation is over")
        answer = await self._network.send(self._process, op)
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value

    def private(self) -> SimulatedStore:
        return SimulatedStore(self._network, self._process)

    def caller(self, connection: Any) -> Caller:
        raise NotImplementedError("a simulation has no caller's connections")

    def wakeups(self) -> VirtualWakeups:
        wakeups = VirtualWakeups(self._network, self._process)
        self._network.listen(wakeups)
        return wakeups

    def migrate(self) -> list[str]:
        return self._network.store.migrate()

    def pending(self) -> list[str]:
        return self._network.store.pending()

    def examine(self) -> list[Finding]:
        return []

    def close(self) -> None:
        """Nothing is held here."""

    async def aclose(self) -> None:
        """Nothing is held here."""


class VirtualWakeups:
    """Hints that come late or not at all."""

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self._network = network
        self._bell = Bell(network.loop)

    async def wait(self, seconds: float) -> None:
        await self._bell.wait(seconds)
        self._bell.rung = False

    def nudge(self) -> None:
        self._bell.ring()

    async def close(self) -> None:
        self._network.ignore(self)
