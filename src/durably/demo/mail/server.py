"""Two SMTP servers in one process. They write down what they take before they say so, and have their whims."""

from __future__ import annotations

import asyncio
import re
import sys
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from durably.demo.ledger import Ledger
from durably.demo.mail.lines import Line
from durably.demo.servers import Attend, serve

NAMES = ("main", "backup")
GREY, NOBODY, STRICT = "grete@grey.example", "nobody@home.example", "office@strict.example"
"""Who is greylisted once, whom nobody knows, and who refuses mail until it trusts the shop."""
FLAKY, SILENT = "fritz@flaky.example", "stella@silent.example"
"""At whose mail the connection ends after the last line, and who gets no answer then; each of them once."""
ROOM = 3
"""So many recipients fit into one transaction."""
PID = re.compile(r"\d+")

LATER = "450 4.7.1 I do not know you yet, come back later"
FULL = "452 4.5.3 that is enough for one transaction"
LOCKED = "530 5.7.0 this account is locked"
DOT = b".\r\n"
BYE = "221 2.0.0 bye"


class Whims:
    """What both servers do with certain addresses."""

    def __init__(self) -> None:
        self.locked = False
        """Whether the first server lets nobody send."""
        self.refused = {NOBODY: "550 5.1.1 there is nobody of that name", STRICT: "550 5.7.1 we do not trust the shop"}
        self._once = {GREY, FLAKY, SILENT}

    def obey(self, words: str) -> None:
        """Change, as the story wants it: lock, unlock or trust."""
        if words == "trust":
            del self.refused[STRICT]
        else:
            self.locked = words == "lock"

    def strikes(self, address: str, recipients: list[str]) -> bool:
        """Whether an address is among these for the first time."""
        if address not in recipients or address not in self._once:
            return False
        self._once.remove(address)
        return True


class Conversation:
    """One connection to one of the servers."""

    def __init__(
        self, name: str, ledger: Ledger, whims: Whims, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._whims = whims
        self._reader = reader
        self._writer = writer
        self._pid = 0
        self._recipients: list[str] | None = None
        """Those of the mail that has begun."""

    async def hold(self) -> None:
        """Answer until one of both has had enough."""
        try:
            answer: str | None = f"220 {self._name}.example"
            while answer is not None:
                self._writer.write(f"{answer}\r\n".encode())
                await self._writer.drain()
                line = (await self._reader.readline()).decode()
                answer = await self._answer(line.strip()) if line and answer != BYE else None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # Whoever sent it is gone.
        finally:
            self._writer.close()

    async def _answer(self, line: str) -> str | None:
        """What to say to a command; None ends the connection."""
        match line.partition(" ")[0].upper():
            case "EHLO":
                self._pid = int(PID.findall(line)[0])
                return f"250-{self._name}.example\r\n250-PIPELINING\r\n250 ENHANCEDSTATUSCODES"
            case "MAIL" if self._whims.locked and self._name == NAMES[0]:
                return LOCKED
            case "MAIL":
                self._recipients = []
            case "RCPT" if self._recipients is not None:
                return self._recipient(line.partition("<")[2].partition(">")[0], self._recipients)
            case "DATA" if self._recipients:
                return await self._data(self._recipients)
            case "RSET":
                self._recipients = None
            case "QUIT":
                return BYE
            case _:
                return "503 5.5.1 not now"
        return "250 2.0.0 fine"

    def _recipient(self, address: str, known: list[str]) -> str:
        if address in self._whims.refused:
            return self._turned_away("refused", address, self._whims.refused[address])
        if len(known) == ROOM:
            return self._turned_away("full", address, FULL)
        if self._whims.strikes(GREY, [address]):
            return self._turned_away("later", address, LATER)
        known.append(address)
        return "250 2.1.5 fine"

    def _turned_away(self, what: str, address: str, said: str) -> str:
        self._ledger.write(Line(what, address, server=self._name, pid=self._pid, said=said))
        return said

    async def _data(self, recipients: list[str]) -> str | None:
        self._writer.write(b"354 go on\r\n")
        source = await self._reader.readuntil(b"\r\n" + DOT)
        silent, flaky = (self._whims.strikes(address, recipients) for address in (SILENT, FLAKY))
        for recipient in recipients:
            self._ledger.write(replace(self._read(source), to=recipient))
        self._recipients = None
        if silent:
            await self._reader.read()  # until the sender is gone
        return None if silent or flaky else "250 2.0.0 taken"

    def _read(self, source: bytes) -> Line:
        message = BytesParser(EmailMessage, policy=default).parsebytes(source.removesuffix(DOT))
        body = message.get_body(("plain",))
        return Line(
            "took",
            mail=str(message["Message-ID"]).strip("<>").partition("@")[0],
            server=self._name,
            pid=self._pid,
            subject=str(message["Subject"]),
            text="" if body is None else str(body.get_content()).replace("\r\n", "\n"),
            bytes=blake2b(source, digest_size=8).hexdigest(),
        )


async def main(path: Path) -> None:
    """Serve at two ports, the first one for main and the second one for backup."""
    ledger, whims = Ledger(path), Whims()

    def server(name: str) -> Attend:
        return lambda reader, writer: Conversation(name, ledger, whims, reader, writer).hold()

    await serve([server(name) for name in NAMES], whims.obey)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
