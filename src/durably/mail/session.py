"""One connection to an SMTP server: used for several mails, and honest about how far each came."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress

from aiosmtplib import SMTP

from durably.core.delivery import Kind, Outcome
from durably.mail.letter import Letter
from durably.mail.opening import Unusable, connect
from durably.mail.replies import CLOSING, GO_ON, Reply, Stage, meaning
from durably.mail.results import Recipient, Results
from durably.mail.transports import Transport
from durably.mail.wire import Broken, Wire

MOST_MAILS = 100
LONGEST_LIFE = 300.0
"""After so many mails, or seconds, a connection is replaced."""
FAREWELL = 2.0
"""Seconds that a server gets to answer a farewell."""
DATA = b"DATA\r\n"
NO_ANSWER = "no answer after the last line; it may have been taken"
NO_UTF8 = "this transport cannot write to addresses outside of ASCII"
DOT = re.compile(rb"(?m)^\.")


class Lost(Exception):
    """The connection ended, or the server said nothing; `stage` is how far it had come."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


class Session:
    """A connection, and what has gone over it."""

    def __init__(self, smtp: SMTP, loop: asyncio.AbstractEventLoop) -> None:
        assert isinstance(smtp.transport, asyncio.Transport)
        self._smtp = smtp
        self._wire = Wire(smtp.transport, loop)
        self._pipelines = smtp.supports_extension("pipelining")
        self._opened = loop.time()
        self._mails = 0

    @classmethod
    async def open(cls, where: Transport, password: str | None, trust: ssl.SSLContext, hostname: str | None) -> Session:
        """A new one, or Unusable."""
        return cls(await connect(where, password, trust, hostname), asyncio.get_running_loop())

    @property
    def used(self) -> bool:
        """Whether a mail has gone over it."""
        return self._mails > 0

    def worn(self, now: float) -> bool:
        """Whether it should not be used again."""
        return self._wire.ended or self._mails >= MOST_MAILS or now - self._opened > LONGEST_LIFE

    def close(self) -> None:
        """Let it go, whatever was under way."""
        self._wire.close()

    async def quit(self) -> None:
        """Take leave."""
        with suppress(Broken, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                self._wire.write(b"QUIT\r\n", 1)
                await self._wire.reply()
        self.close()

    async def send(self, letter: Letter, recipients: Sequence[str], results: Results) -> list[str]:
        """One transaction; `results` tells at every moment what has become of whom. Those who had no room in it."""
        able = self._able(letter, recipients, results)
        if not able:
            return []
        plain = _plain(letter) and all(one.isascii() for one in able)
        utf8 = [] if plain else ["SMTPUTF8", "BODY=8BITMIME"]
        commands = [(Stage.RESET, b"RSET\r\n")] if self.used else []
        commands.append((Stage.MAIL, _command(b"MAIL FROM:", letter.sender, *utf8)))
        commands += [(Stage.RCPT, _command(b"RCPT TO:", recipient)) for recipient in able]
        self._mails += 1
        envelope = _Envelope(able, results)
        if self._pipelines:
            started = await self._ask_at_once([*commands, (Stage.DATA, DATA)], envelope)
        else:
            started = await self._ask(commands, envelope)
        if started is not None and started.code != GO_ON:
            results.update(dict.fromkeys(envelope.accepted, judged(started)))
        elif started is not None:
            await self._hand_over(letter, envelope.accepted, results)
        return envelope.left

    def _able(self, letter: Letter, recipients: Sequence[str], results: Results) -> list[str]:
        """Those for whom this server can be asked to take it. The others may get it through another one."""
        if self._smtp.supports_extension("smtputf8"):
            return list(recipients)
        plain = _plain(letter)
        unable = [one for one in recipients if not (plain and one.isascii())]
        results.update(dict.fromkeys(unable, Recipient("refused", NO_UTF8, elsewhere=True)))
        return [one for one in recipients if plain and one.isascii()]

    async def _ask_at_once(self, commands: list[tuple[Stage, bytes]], envelope: _Envelope) -> Reply | None:
        """Say everything before the source, then listen; what the server says to the source, if somebody gets it."""
        self._write(commands[0][0], b"".join(line for _, line in commands), len(commands))
        for stage, _ in commands:
            started = await self._heard(stage, envelope)
        if envelope.accepted:
            return started
        if started.code == GO_ON:
            self._write(Stage.RESET, b".\r\n", 1)
            await self._reply(Stage.RESET)
        return None

    async def _ask(self, commands: list[tuple[Stage, bytes]], envelope: _Envelope) -> Reply | None:
        """The same, one by one."""
        for stage, line in commands:
            if not envelope.closed:
                self._write(stage, line, 1)
                await self._heard(stage, envelope)
        if not envelope.accepted:
            return None
        self._write(Stage.DATA, DATA, 1)
        return await self._heard(Stage.DATA, envelope)

    async def _heard(self, stage: Stage, envelope: _Envelope) -> Reply:
        reply = await self._reply(stage)
        if stage is Stage.DATA and reply.code < 400 and reply.code != GO_ON:
            # Its replies are out of step: who knows which of them was meant for whom.
            envelope.forget()
            raise Lost(stage, f"the server did not ask for the source, but said: {reply}")
        envelope.hear(reply)
        if reply.code == CLOSING:
            if stage is Stage.DATA:
                envelope.put_off(reply)
            raise Lost(stage, str(reply))
        return reply

    async def _hand_over(self, letter: Letter, accepted: list[str], results: Results) -> None:
        """The source itself, for those whom the server has accepted."""
        source = DOT.sub(b"..", letter.source)
        self._write(Stage.DOT, (source if source.endswith(b"\r\n") else source + b"\r\n") + b".\r\n", 1)
        # Whatever happens from here on, they may have it.
        results.update(dict.fromkeys(accepted, Recipient("waiting", NO_ANSWER, unknown=True)))
        reply = await self._reply(Stage.DOT)
        early = self._wire.unsent
        if early and reply.code < 400:
            raise Lost(Stage.DOT, f"the server did not wait for the last line, but said: {reply}")
        results.update(dict.fromkeys(accepted, judged(reply)))
        if reply.code == CLOSING or 300 <= reply.code < 400:
            raise Lost(Stage.DOT, str(reply))
        if early:
            self.close()

    def _write(self, stage: Stage, data: bytes, replies: int) -> None:
        try:
            self._wire.write(data, replies)
        except Broken as error:
            raise Lost(stage, str(error)) from error

    async def _reply(self, stage: Stage) -> Reply:
        try:
            return Reply(stage, *await self._wire.reply())
        except Broken as error:
            raise Lost(stage, str(error)) from error


class _Envelope:
    """What a server says to the sender and to each recipient, in turn."""

    def __init__(self, recipients: Sequence[str], results: Results) -> None:
        self._recipients = list(recipients)
        self._results = results
        self._before = {one: results[one] for one in recipients}
        self._asked = 0
        self._full: list[str] = []
        self.accepted: list[str] = []
        self.closed = False
        """Whether it makes no sense to name another one."""

    @property
    def left(self) -> list[str]:
        """Those who had no room in this transaction."""
        return [*self._full, *self._recipients[self._asked :]] if self._full else []

    def hear(self, reply: Reply) -> None:
        if reply.stage is Stage.MAIL and meaning(reply).kind is not Kind.OK:
            self._results.update(dict.fromkeys(self._recipients, judged(reply)))
            self.closed = True
        if reply.stage is not Stage.RCPT:
            return
        recipient = self._recipients[self._asked]
        self._asked += 1
        found = meaning(reply)
        if self.closed and not self._full:
            return
        if found.kind is Kind.OK:
            self.accepted.append(recipient)
        elif found.full and self.accepted:
            self._full.append(recipient)
            self.closed = True
        else:
            self._results[recipient] = judged(reply)

    def forget(self) -> None:
        """Nothing of what was heard counts."""
        self._results.update(self._before)

    def put_off(self, reply: Reply) -> None:
        """The server leaves before it has got anything."""
        self._results.update(dict.fromkeys(self.accepted, judged(reply)))


def _command(verb: bytes, address: str, *options: str) -> bytes:
    return b" ".join([verb + b"<" + address.encode() + b">", *(one.encode() for one in options)]) + b"\r\n"


def _plain(letter: Letter) -> bool:
    """Whether every server can take it: its sender and its headers are ASCII, whoever is still to get it."""
    headers = letter.source[: letter.source.find(b"\r\n\r\n")]
    return letter.sender.isascii() and headers.isascii()


def judged(reply: Reply) -> Recipient:
    """What a reply means for those whom it concerns; not if it concerns the transport."""
    found = meaning(reply)
    match found.kind:
        case Kind.MISCONFIGURED:
            raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=str(reply)))
        case Kind.OK:
            return Recipient("sent", str(reply))
        case Kind.PERMANENT:
            return Recipient("refused", str(reply), suppress=found.suppresses)
        case Kind.UNKNOWN:
            return Recipient("waiting", f"it may have been taken: {reply}", unknown=True)
        case _:
            return Recipient("waiting", str(reply), wait=found.wait)
