"""What one process sends with: the production code for deliveries, mail and notifications, and its tasks, watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from durably.client.definition import Definition
from durably.client.engine import Engine
from durably.core.options import Settings, settings
from durably.core.retry import Retry
from durably.deliveries import deliveries, register
from durably.deliveries.deliveries import Deliveries
from durably.deliveries.dispatch import UNTIL_TOLD
from durably.deliveries.drive import Driver
from durably.mail.mail import HOOK, Mail
from durably.notifications import router
from durably.notifications.notifications import Notifications
from durably.testing.simulation.host import NAME, MailServer
from durably.testing.simulation.mailing import Line, Mailing
from durably.testing.simulation.mails import add_transport, mail_of
from durably.testing.simulation.process import LoopHeartbeat, Process
from durably.testing.simulation.stage import Stage
from durably.testing.simulation.ways import Ways
from durably.testing.simulation.world import World
from durably.worker.worker import Surroundings

KEY = "c2ltdWxhdGVkIHNlY3JldHMgYXJlIG5vIHNlY3JldHM="
"""Seals the password of the transport."""
PATIENCE = Retry.after(0.2, 1.0, 2.0)


class Outside:
    """Everyone whom a scenario writes to: the peers, the mail server, and the channels to people."""

    def __init__(self, world: World, stage: Stage) -> None:
        scenario = world.scenario
        self.world = world
        self.stage = stage
        self.peers = Mailing(world)
        self.ways = Ways(world) if scenario.sorts else None
        if scenario.host is not None:
            world.loop.servers[NAME] = MailServer(world, scenario.host).connect

    @classmethod
    def of(cls, world: World, stage: Stage) -> Outside | None:
        """Those of a scenario, if it has any."""
        scenario = world.scenario
        return cls(world, stage) if scenario.peers or scenario.host or scenario.sorts else None

    def found(self, office: Office) -> None:
        """Let the store know them."""
        self.peers.found()
        if self.world.scenario.host is not None:
            add_transport(office.mail, self.world.scenario.host)


class Office:
    """The deliveries, the mail and the notifications of one process."""

    def __init__(self, outside: Outside, engine: Engine, process: Process) -> None:
        world = outside.world
        self._stage = outside.stage
        self._ledger = world.ledger
        self._engine = engine
        self._process = process
        self.definitions: dict[str, Definition[..., Any]] = {}
        self.deliveries = Deliveries(
            engine, "default", secrets_key=[KEY], chance=world.source(f"post of {process.name}")
        )
        self.deliveries.channels["post"] = Line(outside.peers, process)
        self._declare(self.deliveries.dispatcher.deliver, deliveries.TASK, register.QUEUE, UNTIL_TOLD)
        self.mail = mail_of(Mail(engine, "default", self.deliveries))
        self._declare(self._mourning(self.mail.tell), HOOK, register.QUEUE, PATIENCE)
        self.notifications: Notifications | None = None
        if outside.ways is not None:
            self.notifications = self._notifying(outside.ways)

    @property
    def queues(self) -> tuple[str, ...]:
        """Where its tasks wait."""
        return (register.QUEUE,) if self.notifications is None else (register.QUEUE, router.QUEUE)

    def try_with(self, surroundings: Surroundings) -> None:
        """Let first attempts be made here too, and not only by workers."""
        self.deliveries.drive_with(Driver(self._engine, self.definitions[deliveries.TASK], surroundings))
        if self.notifications is not None:
            self.notifications.serve_with(*self.definitions.values(), surroundings=surroundings)

    def _notifying(self, ways: Ways) -> Notifications:
        made = Notifications(self._engine, "default", self.mail)
        ways.declare(made, self._process)
        self.mail.followers.append(made.mail_died)
        self._declare(made.router.route, router.ROUTE, router.QUEUE, PATIENCE)
        self._declare(made.router.digest, router.DIGEST, router.QUEUE, PATIENCE)
        self._declare(self._mourning(made.router.undelivered), router.DEAD, router.QUEUE, PATIENCE)
        made.serve_with(*self.definitions.values())
        return made

    def _declare(self, function: Callable[..., Any], name: str, queue: str, retry: Retry) -> None:
        @functools.wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            return await self._stage.watched(self._process, functools.partial(function, *args, **kwargs))

        chosen = settings(Settings(), {"queue": queue, "retry": retry})
        self.definitions[name] = Definition(self._engine, watched, name, chosen)

    def _mourning(self, function: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
        """The same hook; the ledger learns of which dead letters it is told."""

        @functools.wraps(function)
        async def mourn(letter: dict[str, Any]) -> Any:
            if "attempt" in letter:
                self._ledger.letters.append({"task": letter["id"], "attempt": letter["attempt"]})
            return await function(letter)

        return mourn


def surroundings(world: World, engine: Engine, process: Process, name: str) -> Surroundings:
    """What a worker in a simulated process gets from outside."""
    return Surroundings(
        world.source(f"chance of {name}"), functools.partial(LoopHeartbeat, process), engine.store.wakeups
    )
