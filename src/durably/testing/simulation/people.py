"""People: those who enqueue and cancel, and the operator. They learn only what the network lets through."""

from __future__ import annotations

import asyncio
import contextlib
import math

from durably.client.dead import Dead
from durably.client.handle import Cancellation, Handle
from durably.client.operators import Keys, Queues
from durably.errors import Conflict, DurablyError, StoreUnavailable
from durably.stores.operations.accept import request_cancel
from durably.stores.operations.control import set_limit
from durably.testing.simulation.ledger import Promise
from durably.testing.simulation.mailing import Correspondent
from durably.testing.simulation.mails import Writer
from durably.testing.simulation.office import Office, Outside, surroundings
from durably.testing.simulation.scenario import QUEUES, Cancel, Order, Play
from durably.testing.simulation.stage import Stage
from durably.testing.simulation.ways import Announcer
from durably.testing.simulation.world import World


class People:
    """Everyone who is not a worker, in one process that never dies."""

    def __init__(self, world: World, stage: Stage, outside: Outside | None = None) -> None:
        self._world = world
        self._ledger = world.ledger
        self._trace = world.trace
        self._chance = world.source("people")
        process = world.process("client")
        self._engine = world.engine(process)
        self._new = stage.declare(self._engine, process)
        self._old = stage.declare(self._engine, process, old=True)
        stage.regret = lambda task: process.spawn(self._cancel(task))
        self._keys = Keys(self._engine)
        self._queues = Queues(self._engine)
        self.office: Office | None = None
        self.post: Correspondent | None = None
        self.writer: Writer | None = None
        self.announcer: Announcer | None = None
        if outside is not None:
            dead = Dead(self._engine)
            office = self.office = Office(outside, self._engine, process)
            office.try_with(surroundings(world, self._engine, process, "the client"))
            self.post = Correspondent(world, office.deliveries, dead)
            self.writer = Writer(world, office.mail)
            if office.notifications is not None:
                self.announcer = Announcer(world, office.notifications, dead)

    async def enqueue(self, play: Play) -> None:
        """Make the call."""
        definition = (self._old if play.name == "perform" else self._new)[play.name]
        note = {"note": "new"} if play.note else {}
        self._trace.say("client", f"enqueues #{play.number}")
        try:
            handle = await definition.using(**play.options).aenqueue(play.number, **note)
        except Conflict:
            self._trace.say("client", f"#{play.number} is refused: its unique key belongs to another")
        except StoreUnavailable as error:
            self._ledger.unsure.append(play.number)
            self._trace.say("client", f"cannot know whether #{play.number} was accepted: {error}")
        else:
            self._ledger.promises.append(Promise(play.number, handle.id))
            known = " (it was there already)" if handle.existing else ""
            self._trace.say("client", f"#{play.number} is accepted as {self._trace.called(handle.id)}{known}")

    async def cancel(self, cancel: Cancel) -> None:
        """Cancel what has been accepted of this number by now."""
        for task in {promise.task: None for promise in self._ledger.promises if promise.number == cancel.number}:
            if cancel.request:
                self._trace.say("client", f"asks for the cancellation of {self._trace.called(task)}")
                with contextlib.suppress(StoreUnavailable):
                    await self._engine.store.arun(request_cancel([task], "cancelled by request"))
            else:
                await self._cancel(task)

    async def _cancel(self, task: str) -> None:
        called = self._trace.called(task)
        self._trace.say("client", f"cancels {called}")
        with contextlib.suppress(StoreUnavailable):
            answer = await Handle(self._engine, task).acancel("cancelled directly")
            self._trace.say("client", f"the cancellation of {called} answers: {answer}")
            if answer == Cancellation.CANCELLED:
                self._ledger.cancelled[task] = self._world.loop.time()

    async def order(self, order: Order) -> None:
        """Do what an operator does, and take it back after a while."""
        what = f"{order.kind} {order.limit.gate if order.limit else order.queue} {order.key}".rstrip()
        with contextlib.suppress(StoreUnavailable):
            self._trace.say("operator", f"orders: {what}")
            match order.kind:
                case "limit":
                    assert order.limit is not None
                    limit = order.limit
                    await self._engine.store.arun(set_limit(limit.gate, limit.concurrency, limit.rate, limit.burst))
                    return
                case "replay":
                    await Dead(self._engine).areplay(queue=order.queue)
                    return
                case "pause queue":
                    await self._queues.apause(order.queue)
                case "drain queue":
                    await self._queues.adrain(order.queue)
                case "pause key":
                    await self._keys.apause(order.queue, order.key)
            if math.isinf(order.lasting):
                return
            await asyncio.sleep(order.lasting)
            self._trace.say("operator", f"takes back: {what}")
            if order.kind == "pause key":
                await self._unpause(order.queue, order.key)
            else:
                await self._queues.aresume(order.queue)

    async def give_up(self, task: str) -> None:
        """Cancel what has been put off for too long."""
        self._trace.say("client", f"does not want to wait for {self._trace.called(task)} any longer")
        with contextlib.suppress(StoreUnavailable):
            await Handle(self._engine, task).acancel("cancelled in the end")

    async def reread(self) -> None:
        """Replay what died because old code could not read it."""
        self._trace.say("operator", "replays what old code could not read")
        await Dead(self._engine).areplay(task="grown")

    async def open_queues(self) -> None:
        """Let every queue be claimed from again."""
        for queue in QUEUES:
            await self._queues.aresume(queue)

    async def unpause_keys(self) -> None:
        """Decide about every key that waits for a person."""
        for key in await self._keys.alist(state="paused"):
            await self._unpause(key.queue, key.key)

    async def _unpause(self, queue: str, key: str) -> None:
        skip = self._chance.random() < 0.3
        self._trace.say("operator", f"{'skips the head of' if skip else 'resumes'} the key {queue}/{key}")
        self._ledger.resumed.add((queue, key))
        with contextlib.suppress(DurablyError):
            await (self._keys.askip(queue, key) if skip else self._keys.aresume(queue, key))
