"""The mail server of a simulation: it speaks SMTP, and does with each transaction what the script says."""

from __future__ import annotations

import asyncio
import re

from durably.testing.simulation.cable import Cable
from durably.testing.simulation.ledger import Copy
from durably.testing.simulation.loop import OUTSIDE
from durably.testing.simulation.scenario import Host, Treatment
from durably.testing.simulation.world import World

NAME = "mail.example"
SENDER = re.compile(rb"MAIL FROM:<m(\d+)@")
RECIPIENT = re.compile(rb"RCPT TO:<([^>]+)>")
MESSAGE_ID = re.compile(rb"(?mi)^Message-ID: <([^>]+)>")
ABSENT = ("had hung up before", "is not there")


class HungUp(Exception):
    """The conversation is over."""


class MailServer:
    """Everyone's mail goes here. It counts transactions, whoever opens them."""

    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self._missives = {missive.number: missive for missive in world.scenario.missives}
        self._transactions = 0

    def treatment(self) -> Treatment:
        """What becomes of the next transaction."""
        treatment = self.host.treatment(self._transactions)
        self._transactions += 1
        self.world.ledger.struck[f"host {treatment.handling}"] += 1
        return treatment

    def victim(self, number: int, place: int) -> str:
        """Of those whom a mail is for, the one with whom something is wrong."""
        to = self._missives[number].to
        return to[place % len(to)]

    async def connect(self, protocol: asyncio.Protocol) -> Cable:
        """Take a connection; its first transaction is treated from here on."""
        treatment = self.treatment()
        if treatment.handling in ABSENT:
            await asyncio.sleep(treatment.runs)
            raise ConnectionRefusedError("the mail server is not there")
        cable = Cable(self.world.loop, protocol)
        talk = Conversation(self, cable, treatment)
        self.world.loop.create_task(talk.run(), context=OUTSIDE.copy())
        return cable


class Conversation:
    """One connection, from the server's side."""

    def __init__(self, server: MailServer, cable: Cable, treatment: Treatment) -> None:
        self._server = server
        self._ledger = server.world.ledger
        self._cable = cable
        self._treatment = treatment
        self._number = 0
        self._accepted: list[str] = []

    async def run(self) -> None:
        """Greet, then answer every line until one of both hangs up."""
        self._say("220 mail.example")
        try:
            while line := await self._cable.far.readline():
                await self._answer(line)
        except HungUp:
            self._cable.hang_up()

    async def _answer(self, line: bytes) -> None:
        match line[:4].upper():
            case b"EHLO":
                ways = ["mail.example", "AUTH PLAIN", *(["PIPELINING"] if self._server.host.pipelines else [])]
                self._say(*(f"250-{way}" for way in ways[:-1]), f"250 {ways[-1]}")
            case b"AUTH":
                wrong = self._is("wants another password")
                self._say("535 5.7.8 that is not the password" if wrong else "235 2.7.0 welcome")
            case b"RSET":
                self._treatment = self._server.treatment()
                if self._treatment.handling in ABSENT:
                    raise HungUp
                self._say("250 2.0.0 as you like")
            case b"MAIL":
                await self._envelope(line)
            case b"RCPT":
                await self._recipient(line)
            case b"DATA":
                await self._source()
            case _:
                self._say("221 2.0.0 farewell")
                raise HungUp

    async def _envelope(self, line: bytes) -> None:
        found = SENDER.match(line)
        assert found is not None
        self._number, self._accepted = int(found[1]), []
        await self._leave_at(0)
        self._say("530 5.7.0 log in first" if self._is("wants another password") else "250 2.1.0 go on")

    async def _recipient(self, line: bytes) -> None:
        found = RECIPIENT.match(line)
        assert found is not None
        address, treatment = found[1].decode(), self._treatment
        await self._leave_at(1)
        chosen = address == self._server.victim(self._number, treatment.place)
        match treatment.handling:
            case "wants another password":
                self._say("503 5.5.1 nobody has said whose mail it is")
            case "does not know one" if chosen:
                self._refuse(address)
                self._ledger.bounced.add(address)
                self._say("550 5.1.1 nobody is called that")
            case "refuses one" if chosen:
                self._refuse(address)
                self._say("550 5.7.1 not from you")
            case "greylists one" if chosen:
                self._say("451 4.7.1 come back later")
            case "has no room for all" if self._accepted:
                self._say("452 4.5.3 that is enough")
            case _:
                self._accepted.append(address)
                self._say("250 2.1.5 go on")

    async def _source(self) -> None:
        treatment, early = self._treatment, self._treatment.place == 0
        if not self._accepted and treatment.place != 1:
            self._say("554 5.5.1 for whom?")
            return
        if not self._is("says goodbye"):
            await self._leave_at(2)
        if early and self._is("rejects the source", "wants the source later"):
            self._reject()
            return
        self._say("354 let me have it")
        source = await self._read()
        await asyncio.sleep(treatment.runs / 2)
        if not self._accepted:
            self._say("554 5.5.1 for whom?")
        elif self._is("rejects the source", "wants the source later"):
            self._reject()
        elif self._is("hangs up instead of taking it"):
            raise HungUp
        else:
            await self._leave_at(2)
            self._take(source)
            await asyncio.sleep(treatment.runs / 2)
            if self._is("hangs up after taking it"):
                raise HungUp
            self._say("250 2.0.0 taken")

    async def _read(self) -> bytes:
        lines = []
        while (line := await self._cable.far.readline()) != b".\r\n":
            if not line:
                raise HungUp
            lines.append(line)
        return b"".join(lines)

    async def _leave_at(self, stage: int) -> None:
        """Go, with a word or without, if this is the moment for it."""
        if self._treatment.place == stage and self._is("says goodbye", "hangs up early"):
            await asyncio.sleep(self._treatment.runs)
            if self._is("says goodbye"):
                self._say("421 4.3.2 we close")
            raise HungUp

    def _take(self, source: bytes) -> None:
        world = self._server.world
        found = MESSAGE_ID.search(source)
        named = found[1].decode() if found is not None else ""
        world.trace.say("host", f"has missive {self._number} for {', '.join(self._accepted)}")
        for address in self._accepted:
            self._ledger.copies.append(Copy(self._number, address, named, source, world.loop.time()))

    def _reject(self) -> None:
        if self._is("wants the source later"):
            self._say("451 4.3.0 not now")
            return
        for address in self._accepted:
            self._refuse(address)
        self._say("554 5.6.0 we do not want that")

    def _refuse(self, address: str) -> None:
        self._ledger.refusals.add((self._number, address))

    def _is(self, *handlings: str) -> bool:
        return self._treatment.handling in handlings

    def _say(self, *lines: str) -> None:
        if lines[0][0] in "45":
            self._server.world.trace.say("host", f"says {lines[0]}")
        self._cable.say("".join(f"{line}\r\n" for line in lines).encode())
