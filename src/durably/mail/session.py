"""One connection to an SMTP server: opened with care, used for several mails, and honest about how far each came."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence

from aiosmtplib import SMTP, SMTPException, SMTPHeloError, SMTPResponseException
from aiosmtplib.errors import SMTPConnectResponseError

from durably.core.delivery import Kind, Outcome
from durably.mail.letter import Letter
from durably.mail.replies import Reply, Stage, meaning
from durably.mail.results import Recipient, Results
from durably.mail.transports import Transport

MOST_MAILS = 100
LONGEST_LIFE = 300.0
"""After so many mails, or seconds, a connection is replaced."""
CLOSING = 421
"""The server closes the connection."""
NO_ANSWER = "no answer after the last line; it may have been taken"
DOT = re.compile(rb"(?m)^\.")


class Lost(Exception):
    """The connection ended, or the server said nothing; `stage` is how far it had come."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


class Unusable(Exception):
    """No connection can be used to send anything; `outcome` says what that means for the mail."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Session:
    """A connection, and what has gone over it."""

    def __init__(self, smtp: SMTP, now: float) -> None:
        self._smtp = smtp
        self._opened = now
        self._mails = 0

    @classmethod
    async def open(
        cls, where: Transport, password: str | None, trust: ssl.SSLContext, now: float, hostname: str | None
    ) -> Session:
        """Connect, greet, secure and log in; or say why nothing can be sent."""
        smtp = SMTP(
            hostname=where.host,
            port=where.port,
            use_tls=where.implicit,
            start_tls=False,
            tls_context=trust,
            timeout=None,
            local_hostname=hostname,
        )
        try:
            await smtp.connect()
        except SMTPConnectResponseError as error:
            raise Unusable(_broken(Reply(Stage.GREETING, error.code, error.message))) from error
        except (SMTPException, OSError) as error:
            raise Unusable(_unreachable(where, error)) from error
        session = cls(smtp, now)
        try:
            await session._introduce()
            await session._secure(where, trust)
            await session._log_in(where, password)
        except (SMTPException, OSError) as error:
            session.close()
            raise Unusable(_unreachable(where, error)) from error
        except BaseException:
            session.close()
            raise
        return session

    @property
    def used(self) -> bool:
        """Whether a mail has gone over it."""
        return self._mails > 0

    def worn(self, now: float) -> bool:
        """Whether it should not be used again."""
        return not self._smtp.is_connected or self._mails >= MOST_MAILS or now - self._opened > LONGEST_LIFE

    def close(self) -> None:
        """Let it go, whatever was under way."""
        self._smtp.close()

    async def quit(self) -> None:
        """Take leave."""
        try:
            await self._smtp.quit(timeout=2)
        except (SMTPException, OSError):
            self.close()

    async def send(self, letter: Letter, recipients: Sequence[str], results: Results) -> list[str]:
        """One transaction; `results` tells at every moment what has become of whom. Those who had no room in it."""
        if self.used:
            await self._say(Stage.RESET, b"RSET")
        self._mails += 1
        utf8 = ["SMTPUTF8", "BODY=8BITMIME"] if not all(one.isascii() for one in (letter.sender, *recipients)) else []
        if utf8 and not self._smtp.supports_extension("smtputf8"):
            refused = Recipient("refused", "this transport cannot write to addresses outside of ASCII")
            results.update(dict.fromkeys(recipients, refused))
            return []
        started = await self._say(Stage.MAIL, _command(b"MAIL FROM:", letter.sender, *utf8))
        if meaning(started).kind is not Kind.OK:
            results.update(dict.fromkeys(recipients, _judged(started)))
            return []
        accepted: list[str] = []
        for place, recipient in enumerate(recipients):
            reply = await self._say(Stage.RCPT, _command(b"RCPT TO:", recipient))
            found = meaning(reply)
            if found.kind is Kind.OK:
                accepted.append(recipient)
            elif found.full and accepted:
                await self._hand_over(letter, accepted, results)
                return list(recipients[place:])
            else:
                results[recipient] = _judged(reply)
            if reply.code == CLOSING:
                raise Lost(Stage.RCPT, str(reply))
        if accepted:
            await self._hand_over(letter, accepted, results)
        return []

    async def _hand_over(self, letter: Letter, accepted: list[str], results: Results) -> None:
        """The source itself, for those whom the server has accepted."""
        started = await self._say(Stage.DATA, b"DATA")
        if started.code != 354:
            results.update(dict.fromkeys(accepted, _judged(started)))
            return
        protocol = self._smtp.protocol
        assert protocol is not None
        source = DOT.sub(b"..", letter.source)
        # Whatever happens from here on, they may have it.
        results.update(dict.fromkeys(accepted, Recipient("waiting", NO_ANSWER, unknown=True)))
        try:
            protocol.write((source if source.endswith(b"\r\n") else source + b"\r\n") + b".\r\n")
            answer = await protocol.read_response()
        except (SMTPException, OSError) as error:
            self.close()
            raise Lost(Stage.DOT, str(error)) from error
        results.update(dict.fromkeys(accepted, _judged(Reply(Stage.DOT, answer.code, answer.message))))

    async def _say(self, stage: Stage, *command: bytes) -> Reply:
        try:
            answer = await self._smtp.execute_command(*command)
        except SMTPResponseException as error:
            return Reply(stage, error.code, error.message)
        except (SMTPException, OSError) as error:
            self.close()
            raise Lost(stage, str(error)) from error
        return Reply(stage, answer.code, answer.message)

    async def _introduce(self) -> None:
        try:
            await self._smtp.ehlo()
        except SMTPHeloError as error:
            if error.code == 421:
                raise Unusable(_broken(Reply(Stage.HELLO, error.code, error.message))) from error
            try:
                await self._smtp.helo()
            except SMTPHeloError as again:
                raise Unusable(_broken(Reply(Stage.HELLO, again.code, again.message))) from again

    async def _secure(self, where: Transport, trust: ssl.SSLContext) -> None:
        if where.implicit or where.tls == "none":
            return
        if not self._smtp.supports_extension("starttls"):
            if where.tls == "require":
                reason = "TLS: the server does not offer STARTTLS, and without it nothing is sent"
                raise Unusable(Outcome(kind=Kind.TRANSIENT, reason=reason, breaks=True, alarming=True))
            return
        try:
            await self._smtp.starttls(tls_context=trust)
        except SMTPResponseException as error:
            raise Unusable(_broken(Reply(Stage.TLS, error.code, error.message))) from error
        await self._introduce()

    async def _log_in(self, where: Transport, password: str | None) -> None:
        if where.user is None:
            return
        if password is None:
            raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=f"there is no password for {where.user}"))
        offered = self._smtp.supported_auth_methods
        ways = {"plain": self._smtp.auth_plain, "login": self._smtp.auth_login, "cram-md5": self._smtp.auth_crammd5}
        way = next((way for name, way in ways.items() if name in offered), None)
        if way is None:
            reason = f"it offers no way to log in that is known here, only {', '.join(offered) or 'none'}"
            raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=reason))
        try:
            await way(where.user, password)
        except SMTPResponseException as error:
            reply = Reply(Stage.AUTH, error.code, error.message)
            raise Unusable(Outcome(kind=meaning(reply).kind, reason=str(reply), breaks=error.code < 500)) from error


def _command(verb: bytes, address: str, *options: str) -> bytes:
    return b" ".join([verb + b"<" + address.encode() + b">", *(one.encode() for one in options)])


def _judged(reply: Reply) -> Recipient:
    """What a reply means for those whom it concerns; not if it concerns the transport."""
    found = meaning(reply)
    match found.kind:
        case Kind.MISCONFIGURED:
            raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=str(reply)))
        case Kind.OK:
            return Recipient("sent", str(reply))
        case Kind.PERMANENT:
            return Recipient("refused", str(reply), suppress=found.suppresses)
        case _:
            return Recipient("waiting", str(reply), wait=found.wait)


def _broken(reply: Reply) -> Outcome:
    return Outcome(kind=Kind.TRANSIENT, reason=str(reply), breaks=True)


def _unreachable(where: Transport, error: Exception) -> Outcome:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return Outcome(kind=Kind.TRANSIENT, reason=f"TLS: {cause}", breaks=True, alarming=True)
    reason = f"no connection to {where.host}:{where.port}: {error}"
    return Outcome(kind=Kind.TRANSIENT, reason=reason, unreachable=True, breaks=True)
