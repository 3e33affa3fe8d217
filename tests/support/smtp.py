"""An SMTP server that does as it is told: each command is answered from a script, or not at all.

Besides commands a script has `greeting`, `dot`, and `source`: what is said when only the first line of a mail was read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

CLOSE = "close"
"""Instead of an answer: end the connection."""
HANG = "hang"
"""Instead of an answer: say nothing more."""


class Script:
    """What a server says to each command, one after the other; then what servers usually say."""

    extensions: Sequence[str] = ()
    """What every server offers."""

    def __init__(
        self,
        answers: Mapping[str, Sequence[str]] | None = None,
        *,
        offers: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answers = {verb: list(said) for verb, said in (answers or {}).items()}
        self._offers = [*self.extensions, *offers, *(["STARTTLS"] if tls is not None else [])]
        self._tls = tls
        self.heard: list[str] = []
        self.taken: list[tuple[list[str], bytes]] = []
        """The mails that were taken: to whom, and what."""
        self.connections = 0
        self.hangs = asyncio.Event()
        """Somebody waits for an answer that will not come."""
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """The port, while it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            self.port = server.sockets[0].getsockname()[1]
            yield self.port
        finally:
            server.close()
            for one in self._serving:
                one.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _says(self, verb: str) -> str:
        script = self._answers.get(verb)
        if script:
            return script.pop(0)
        return {
            "greeting": "220 here",
            "EHLO": "\r\n".join(["250-here", *(f"250-{one}" for one in self._offers), "250 HELP"]),
            "DATA": "354 go on",
            "QUIT": "221 bye",
            "AUTH": "235 welcome",
            "STARTTLS": "220 go on",
        }.get(verb, "250 fine")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        try:
            if await self._answered(writer, "greeting"):
                await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            # Nobody listens any more; asyncio 3.11 takes it for an error if a connection ends so.
            pass
        finally:
            writer.close()

    async def _answered(self, writer: asyncio.StreamWriter, verb: str) -> str | None:
        said = self._says(verb)
        if said == HANG:
            self.hangs.set()
            await asyncio.Event().wait()
        if said == CLOSE:
            return None
        writer.write(said.encode() + b"\r\n")
        await writer.drain()
        return said

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recipients: list[str] = []
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.heard.append(line)
            verb = line.partition(" ")[0].upper()
            said = await self._answered(writer, verb)
            if said is None or verb == "QUIT":
                return
            if verb == "MAIL":
                recipients = []
            elif verb == "RCPT" and said.startswith("25"):
                recipients.append(line.partition("<")[2].partition(">")[0])
            elif verb == "STARTTLS" and self._tls is not None:
                await writer.start_tls(self._tls)
            elif verb == "DATA" and said.startswith("354") and self._answers.get("source"):
                await reader.readline()
                if await self._answered(writer, "source") is None:
                    writer.transport.abort()
                else:
                    await reader.read()
                return
            elif verb == "DATA" and said.startswith("354"):
                source = await _source(reader)
                answer = await self._answered(writer, "dot")
                if recipients and (answer is None or answer.startswith("2")):
                    self.taken.append((recipients, source))
                if answer is None:
                    return


async def _source(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the line with nothing but a dot, and that line."""
    source = b""
    while not source.endswith(b"\r\n.\r\n") and source != b".\r\n":
        source += await reader.readuntil(b"\n")
    return source
