"""Deliveries in a simulation: peers that answer by script, and who writes to them."""

from __future__ import annotations

import asyncio
import contextlib

from durably.client.dead import Dead
from durably.core.delivery import Destination, Kind, Outcome, Rules
from durably.deliveries.channel import Delivery
from durably.deliveries.deliveries import Deliveries
from durably.deliveries.register import QUEUE
from durably.errors import DurablyError, StoreUnavailable
from durably.stores.operations.deliver import add_destinations
from durably.testing.simulation.ledger import Arrival, Publication
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import Errand, Letter, Manner, Peer
from durably.testing.simulation.world import World

AGES = 1_000_000.0
OUTCOMES = {
    "takes": Outcome(kind=Kind.OK, reason="taken", status=204),
    "fails": Outcome(kind=Kind.TRANSIENT, reason="500", status=500, breaks=True),
    "refuses": Outcome(kind=Kind.PERMANENT, reason="422", status=422),
    "throttles": Outcome(kind=Kind.THROTTLED, reason="429", status=429, retry_after=2.0),
    "is away": Outcome(kind=Kind.TRANSIENT, reason="refused", unreachable=True, breaks=True),
    "leaves": Outcome(kind=Kind.GONE, reason="410", status=410),
    "takes silently": Outcome(kind=Kind.UNKNOWN, reason="no answer", breaks=True),
    "is set up wrongly": Outcome(kind=Kind.MISCONFIGURED, reason="the key is not ours"),
    "finds it unwanted": Outcome(kind=Kind.UNWANTED, reason="nobody wants that"),
}


class Mailing:
    """The peers of a scenario."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._peers = {peer.name: peer for peer in world.scenario.peers}
        self._asked: dict[str, int] = {}

    def found(self) -> None:
        """Let the store know them."""
        self._world.store.run(add_destinations([_destination(peer) for peer in self._peers.values()]))

    async def ask(self, process: Process, delivery: Delivery) -> Outcome:
        """What the peer does with it."""
        world, name = self._world, delivery.destination.name
        index = self._asked.get(name, 0)
        self._asked[name] = index + 1
        manner = self._peers[name].manner(index)
        world.ledger.struck[f"peer {manner.reply}"] += 1
        called = world.trace.called(delivery.task)
        world.trace.say(process.name, f"brings {called} to {name}, who {manner.reply} after {manner.runs:g} s")
        await asyncio.sleep(manner.runs / 2)
        if manner.reply.startswith("takes"):
            world.ledger.arrivals.append(
                Arrival(delivery.message.id, name, delivery.task, world.loop.time(), delivery.possible_duplicate)
            )
            world.trace.say(name, f"has {called}")
        await asyncio.sleep(manner.runs / 2)
        return await answer(manner)


async def answer(manner: Manner) -> Outcome:
    """What a peer says in the end, if anything."""
    if manner.reply == "is silent":
        await asyncio.sleep(AGES)
    if manner.reply == "raises":
        raise ValueError("the channel was told to fail")
    return OUTCOMES[manner.reply]


class Line:
    """The channel of one process."""

    def __init__(self, mailing: Mailing, process: Process) -> None:
        self._mailing = mailing
        self._process = process

    async def deliver(self, delivery: Delivery) -> Outcome:
        return await self._mailing.ask(self._process, delivery)


def _destination(peer: Peer) -> Destination:
    rules = Rules(
        order=peer.order,
        policy=peer.policy,
        schedule=(0.2, 1.0, 2.0),
        timeout=1.0,
        concurrency=3,
        expires=60.0,
        breaker=peer.breaker,
        cooldown=0.5,
    )
    return Destination("default", peer.name, "post", f"post:{peer.name}", rules)


class Correspondent:
    """Who publishes, and who looks after the peers."""

    def __init__(self, world: World, deliveries: Deliveries, dead: Dead) -> None:
        self._world = world
        self._trace = world.trace
        self._deliveries = deliveries
        self._peers = deliveries.destinations
        self._dead = dead

    async def publish(self, letter: Letter) -> None:
        """Write to everybody whom the letter is for."""
        self._trace.say("client", f"publishes letter {letter.number} to {', '.join(letter.to)}")
        try:
            sent = await self._deliveries.apublish(
                "letter", {"letter": letter.number}, list(letter.to), at_once=letter.at_once
            )
        except StoreUnavailable as error:
            self._trace.say("client", f"cannot know whether letter {letter.number} was accepted: {error}")
        else:
            self._trace.say("client", f"letter {letter.number} is accepted")
            self._world.ledger.publications.append(Publication(letter.number, sent.id, sent.deliveries))

    async def run(self, errand: Errand) -> None:
        """Do something with a peer."""
        self._trace.say("operator", f"wants to {errand.kind} {errand.peer}")
        with contextlib.suppress(DurablyError):
            match errand.kind:
                case "pause":
                    await self._peers.apause(errand.peer)
                case "resume":
                    await self._peers.aresume(errand.peer)
                case "flush" | "force":
                    await self._peers.aflush(errand.peer, force=errand.kind == "force")
                case "probe":
                    await self._peers.aprobe(errand.peer)
                case "replay":
                    await self._dead.areplay(queue=QUEUE)

    async def mend(self) -> None:
        """Let everything that waits for a peer be tried again now."""
        for peer in await self._peers.alist():
            if await self._peers.apending(peer.name, limit=1):
                self._trace.say("operator", f"resumes {peer.name}")
                with contextlib.suppress(DurablyError):
                    await self._peers.aresume(peer.name)
