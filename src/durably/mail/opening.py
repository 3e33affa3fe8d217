"""Opening a connection to an SMTP server: connect, greet, secure and log in; or say why nothing can be sent."""

from __future__ import annotations

import ssl

from aiosmtplib import SMTP, SMTPException, SMTPHeloError, SMTPResponseException
from aiosmtplib.errors import SMTPConnectResponseError

from durably.core.delivery import Kind, Outcome
from durably.mail.replies import Reply, Stage, meaning
from durably.mail.transports import Transport


class Unusable(Exception):
    """No connection can be used to send anything; `outcome` says what that means for the mail."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


async def connect(where: Transport, password: str | None, trust: ssl.SSLContext, hostname: str | None) -> SMTP:
    """A connection over which mails can be sent."""
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
    except (SMTPException, OSError, ValueError) as error:
        raise Unusable(_unreachable(where, error)) from error
    try:
        await _introduce(smtp)
        secured = await _secure(smtp, where, trust)
        await _log_in(smtp, where, password, secured or where.tls == "none")
    except (SMTPException, OSError) as error:
        smtp.close()
        raise Unusable(_unreachable(where, error)) from error
    except BaseException:
        smtp.close()
        raise
    return smtp


async def _introduce(smtp: SMTP) -> None:
    try:
        await smtp.ehlo()
    except SMTPHeloError as error:
        if error.code == 421:
            raise Unusable(_broken(Reply(Stage.HELLO, error.code, error.message))) from error
        try:
            await smtp.helo()
        except SMTPHeloError as again:
            raise Unusable(_broken(Reply(Stage.HELLO, again.code, again.message))) from again


async def _secure(smtp: SMTP, where: Transport, trust: ssl.SSLContext) -> bool:
    """Whether nobody else can listen from now on."""
    if where.implicit or where.tls == "none":
        return where.implicit
    if not smtp.supports_extension("starttls"):
        if where.tls == "require":
            raise Unusable(_insecure("the server does not offer STARTTLS, and without it nothing is sent"))
        return False
    try:
        await smtp.starttls(tls_context=trust)
    except SMTPResponseException as error:
        raise Unusable(_broken(Reply(Stage.TLS, error.code, error.message))) from error
    await _introduce(smtp)
    return True


async def _log_in(smtp: SMTP, where: Transport, password: str | None, safe: bool) -> None:
    if where.user is None:
        return
    if not safe:
        raise Unusable(_insecure("the server does not offer STARTTLS, and without it no password is given"))
    if password is None:
        raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=f"there is no password for {where.user}"))
    offered = smtp.supported_auth_methods
    ways = {"plain": smtp.auth_plain, "login": smtp.auth_login, "cram-md5": smtp.auth_crammd5}
    way = next((way for name, way in ways.items() if name in offered), None)
    if way is None:
        reason = f"it offers no way to log in that is known here, only {', '.join(offered) or 'none'}"
        raise Unusable(Outcome(kind=Kind.MISCONFIGURED, reason=reason))
    try:
        await way(where.user, password)
    except SMTPResponseException as error:
        reply = Reply(Stage.AUTH, error.code, error.message)
        # It may be a welcome to which there was more to say: nobody is logged in.
        kind = meaning(reply).kind if error.code >= 400 else Kind.TRANSIENT
        raise Unusable(Outcome(kind=kind, reason=str(reply), breaks=error.code < 500)) from error


def _broken(reply: Reply) -> Outcome:
    return Outcome(kind=Kind.TRANSIENT, reason=str(reply), breaks=True)


def _insecure(reason: str) -> Outcome:
    """The server cannot be trusted. That is nobody's fault who should get mail: it waits as if no server was there."""
    return Outcome(kind=Kind.TRANSIENT, reason=f"TLS: {reason}", unreachable=True, breaks=True, alarming=True)


def _unreachable(where: Transport, error: Exception) -> Outcome:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return _insecure(str(cause))
    reason = f"no connection to {where.host}:{where.port}: {error}"
    return Outcome(kind=Kind.TRANSIENT, reason=reason, unreachable=True, breaks=True)
