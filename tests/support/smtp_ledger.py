"""An SMTP server with moods, in a process of its own: `LEDGER=file python -m tests.support.smtp_ledger SEED`.

It writes down for whom it has taken a mail, and waits for the disk, before it says so. The ledger has these lines:

    listening PORT
    taken MAIL RECIPIENT      the server has it, whatever the sender hears
    refused RECIPIENT         550
    greylisted RECIPIENT      450, the first time
    full RECIPIENT            452, since this transaction has three recipients already
    broken HOW                421, or the end of the connection
    held STAGE SENDER         a mail of this sender stops here until the server goes on
    on, off, calm             a signal was heard

SIGUSR1 lets it hold mails, each time at the next stage, and the next SIGUSR1 lets them go on. SIGUSR2 ends its moods.
What it does to a recipient depends on the seed and on how often it was asked, not on who comes first.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from itertools import cycle

ROOM = 3
"""Recipients of one transaction."""
STAGES = ("taken", "left", "begun", "named")
"""Where mails are held: the mail is taken, and nobody has heard so; a recipient is named for whom there was no room in
another transaction; the first line of the source has come; a recipient is named."""
HOW = {"421 while recipients are named": 0.03, "421 at DATA": 0.03, "in the middle of the source": 0.05, "taken": 0.12}
"""The ways in which a transaction breaks, and how often."""
REFUSED, GREYLISTED = 0.06, 0.12
ID = re.compile(rb"(?mi)^Message-ID: <([^@]+)@")
ADDRESS = re.compile(r"<([^>]*)>")


class Moods:
    """What the server does to whom, by chance."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._asked: Counter[tuple[str, str]] = Counter()
        self.calm = False

    def _chance(self, about: str, whom: str) -> tuple[float, int]:
        """A number from 0 to 1, and how often it was asked for before."""
        before = self._asked[about, whom]
        self._asked[about, whom] += 1
        return random.Random(f"{self._seed} {about} {whom} {before}").random(), before

    def recipient(self, address: str) -> str | None:
        """Why the server does not want this recipient now."""
        chance, before = self._chance("recipient", address)
        if self.calm:
            return None
        if chance < REFUSED:
            return "refused"
        return "greylisted" if before == 0 and chance < REFUSED + GREYLISTED else None

    def breaks(self, first: str) -> str | None:
        """How the transaction breaks whose first recipient this is."""
        chance, _ = self._chance("transaction", first)
        for how, share in HOW.items():
            chance -= share
            if chance < 0 and not self.calm:
                return how
        return None


class Server:
    """Takes mail, writes down for whom, and can be told to stop in the middle of it."""

    def __init__(self, ledger: str, moods: Moods) -> None:
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.moods = moods
        self._stages = cycle(STAGES)
        self._held_at: str | None = None
        self._on = asyncio.Event()
        self._left: set[str] = set()
        self._connections = 0

    def note(self, *lines: tuple[object, ...]) -> None:
        """Append lines in one write; they are on disk when this returns."""
        os.write(self._file, "".join(" ".join(map(str, line)) + "\n" for line in lines).encode())
        os.fsync(self._file)

    def hold_or_go_on(self) -> None:
        if self._held_at is None:
            self._on.clear()
            self._held_at = next(self._stages)
            self.note(("off",))
        else:
            self._held_at = None
            self._on.set()
            self.note(("on",))

    def calm_down(self) -> None:
        self.moods.calm = True
        self.note(("calm",))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            await Conversation(self, reader, writer, pipelines=self._connections % 2 == 0).run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def leave(self, address: str) -> None:
        """There was no room for this one."""
        self._left.add(address)
        self.note(("full", address))

    async def pass_by(self, stage: str, sender: str, recipient: str = "") -> None:
        """Whoever is held at this stage waits."""
        if stage == "named" and recipient in self._left:
            self._left.discard(recipient)
            stage = "left"
        if stage == self._held_at:
            self.note(("held", stage, sender))
            await self._on.wait()


class Conversation:
    """One connection."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pipelines: bool
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._pipelines = pipelines
        self._sender = "-"
        self._breaks: str | None = None
        self._named = 0
        self._recipients: list[str] = []

    async def run(self) -> None:
        going = await self._say("220 here")
        while going and (line := (await self._reader.readline()).decode()):
            going = await self._answer(line.partition(" ")[0].strip().upper(), line.strip())

    async def _say(self, text: str) -> bool:
        """Answer; whether the connection goes on."""
        self._writer.write(text.encode() + b"\r\n")
        await self._writer.drain()
        return not text.startswith(("421", "221"))

    def _break(self, how: str) -> bool:
        """Whether the transaction breaks here, in this way."""
        if self._breaks == how:
            self._server.note(("broken", how))
        return self._breaks == how

    async def _answer(self, verb: str, line: str) -> bool:
        match verb:
            case "EHLO":
                self._sender = line.split()[1]
                return await self._say("250-here\r\n250-PIPELINING\r\n250 HELP" if self._pipelines else "250 here")
            case "MAIL":
                self._named, self._recipients = 0, []
            case "RCPT":
                found = ADDRESS.search(line)
                assert found is not None
                return await self._name(found[1])
            case "DATA":
                return await self._take()
            case "QUIT":
                return await self._say("221 bye")
        return await self._say("250 fine")

    async def _name(self, address: str) -> bool:
        if not self._named:
            self._breaks = self._server.moods.breaks(address)
        self._named += 1
        await self._server.pass_by("named", self._sender, address)
        if self._named == 2 and self._break("421 while recipients are named"):
            return await self._say("421 4.3.2 closing")
        if len(self._recipients) == ROOM:
            self._server.leave(address)
            return await self._say("452 4.5.3 too many recipients")
        mood = self._server.moods.recipient(address)
        if mood is not None:
            self._server.note((mood, address))
            return await self._say("550 5.7.1 not wanted" if mood == "refused" else "450 4.7.1 come back")
        self._recipients.append(address)
        return await self._say("250 fine")

    async def _take(self) -> bool:
        if not self._recipients:
            return await self._say("503 5.5.1 to whom?")
        if self._break("421 at DATA"):
            return await self._say("421 4.3.2 closing")
        await self._say("354 go on")
        source = await self._reader.readline()
        await self._server.pass_by("begun", self._sender)
        if self._break("in the middle of the source"):
            return False
        source += await self._reader.readuntil(b"\r\n.\r\n")
        found = ID.search(source)
        assert found is not None
        mail = found[1].decode()
        self._server.note(*(("taken", mail, recipient) for recipient in self._recipients))
        await self._server.pass_by("taken", self._sender)
        return not self._break("taken") and await self._say("250 2.0.0 taken")


async def main(ledger: str, seed: str) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    mail = Server(ledger, Moods(seed))
    server = await asyncio.start_server(mail.serve, "127.0.0.1", 0)
    loop.add_signal_handler(signal.SIGUSR1, mail.hold_or_go_on)
    loop.add_signal_handler(signal.SIGUSR2, mail.calm_down)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    mail.note(("listening", server.sockets[0].getsockname()[1]))
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main(os.environ["LEDGER"], sys.argv[1]))
