"""Notifications in a simulation: channels that answer by script, an application that knows people or does not, and
those who announce, read and want things."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from durably.client.dead import Dead
from durably.core.delivery import Outcome
from durably.errors import DurablyError, StoreUnavailable
from durably.notifications.channel import Note
from durably.notifications.inbox import EntryInfo
from durably.notifications.info import NotificationInfo
from durably.notifications.notifications import Notifications
from durably.notifications.people import Person
from durably.notifications.router import QUEUE
from durably.testing.simulation.ledger import Announced, Asked, Reached, Wish
from durably.testing.simulation.mailing import answer
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import WINDOW, Doing, Notice
from durably.testing.simulation.world import World
from durably.worker.context import current

ALL = 1000


class Ways:
    """The channels and the people of a scenario."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ways = {way.name: way for way in world.scenario.ways}
        self._asked: dict[str, int] = {}
        self._lookups = 0

    def declare(self, notifications: Notifications, process: Process) -> None:
        """Let a process know the kinds, the channels, and whom to ask for people."""
        for sort in self._world.scenario.sorts:
            notifications.kind(
                sort.name,
                sort.channels,
                digest=sort.digest,
                fallback=sort.fallback,
                throttle=None if sort.throttle is None else f"{sort.throttle}/{WINDOW:g}s",
                cancel_on_read=sort.cancel_on_read,
                critical=sort.critical,
            )
        for name in self._ways:
            notifications.channels[name] = Through(self, name, process)
        notifications.resolver(self.find)

    async def find(self, recipient: str) -> Person | None:
        """Who somebody is, by script; when it is over, everybody is known."""
        lookups = self._world.scenario.lookups
        said = lookups[self._lookups] if self._lookups < len(lookups) else "knows"
        self._lookups += 1
        self._world.ledger.struck[f"application {said}"] += 1
        self._world.trace.say("someone", f"asks who {recipient} is, and the application {said}")
        match said:
            case "fails":
                raise ValueError("the application was told to fail")
            case "knows nobody":
                return None
            case "knows no address":
                return Person()
            case _:
                return Person(addresses={name: f"{recipient} by {name}" for name in self._ways})

    async def bring(self, process: Process, channel: str, note: Note) -> Outcome:
        """What the channel does with a note."""
        world = self._world
        index = self._asked.get(channel, 0)
        self._asked[channel] = index + 1
        manner = self._ways[channel].manner(index)
        task, called = current(), world.trace.called(note.id)
        [execution] = [one for one in world.ledger.of(note.id) if one.token == task.token]
        world.ledger.struck[f"channel {manner.reply}"] += 1
        world.ledger.asked.append(Asked(note.id, channel, manner.reply, world.loop.time()))
        world.trace.say(process.name, f"brings {called} by {channel}, which {manner.reply} after {manner.runs:g} s")
        await asyncio.sleep(manner.runs / 2)
        if manner.reply.startswith("takes"):
            items = tuple(item["notice"] for item in note.items)
            world.ledger.reached.append(
                Reached(
                    note.id,
                    note.recipient,
                    channel,
                    note.kind,
                    items,
                    world.loop.time(),
                    execution.started,
                    note.possible_duplicate,
                )
            )
            world.trace.say(note.recipient, f"has {called} with {', '.join(map(str, items))} by {channel}")
        await asyncio.sleep(manner.runs / 2)
        return await answer(manner)


class Through:
    """A channel of one process."""

    def __init__(self, ways: Ways, name: str, process: Process) -> None:
        self._ways = ways
        self._name = name
        self._process = process

    async def send(self, note: Note) -> Outcome:
        return await self._ways.bring(self._process, self._name, note)


class Seen(msgspec.Struct, frozen=True):
    """Notifications and inboxes, as anybody can see them in the end."""

    notifications: list[NotificationInfo]
    inboxes: dict[str, list[EntryInfo]]


class Announcer:
    """Who announces things, and those who get to know them."""

    def __init__(self, world: World, notifications: Notifications, dead: Dead) -> None:
        self._world = world
        self._trace = world.trace
        self._ledger = world.ledger
        self._notifications = notifications
        self._dead = dead

    async def announce(self, notice: Notice) -> None:
        """Let everybody know whom the notice is for. Whatever is wrong with it, only the store may raise."""
        self._trace.say("client", f"announces notice {notice.number} ({notice.sort}) to {', '.join(notice.to)}")
        try:
            told = await self._notifications.anotify(
                notice.sort, list(notice.to), {"notice": notice.number}, key=notice.key, at_once=notice.at_once
            )
        except StoreUnavailable as error:
            self._trace.say("client", f"cannot know whether notice {notice.number} was accepted: {error}")
        except Exception as error:
            self._world.complain(f"announcing notice {notice.number} raises {error!r}")
        else:
            self._trace.say("client", f"notice {notice.number} {'is accepted' if told.new else 'was there already'}")
            self._ledger.announced.append(
                Announced(notice.number, notice.sort, notice.key, told.id, told.new, told.problem)
            )

    async def run(self, doing: Doing) -> None:
        """Do something about notifications."""
        self._trace.say("people", f"{doing.who}: {doing.kind} {doing.sort} {doing.channel}")
        with contextlib.suppress(DurablyError):
            match doing.kind:
                case "want" | "do not want":
                    wish = Wish(doing.who, doing.sort, doing.channel, doing.kind == "want", self._world.loop.time())
                    self._ledger.wishes.append(wish)
                    preferences = self._notifications.preferences
                    await preferences.aset(doing.who, wish.wanted, kind=doing.sort, channel=doing.channel)
                    wish.answered = self._world.loop.time()
                case "read":
                    await self._notifications.inbox.aread_all(doing.who)
                case "archive":
                    await self._notifications.inbox.aarchive_all(doing.who)
                case "replay":
                    await self._dead.areplay(queue=QUEUE)

    async def report(self) -> Seen:
        """How everything stands."""
        listed = await self._notifications.alist(limit=ALL)
        people = sorted({who for notice in self._world.scenario.notices for who in notice.to})
        inbox = self._notifications.inbox
        return Seen(listed, {who: await inbox.alist(who, archived=True, limit=ALL) for who in people})
