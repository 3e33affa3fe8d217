"""One POST: guarded, without redirects, within one deadline; and how far it came if nobody answered."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    TraceConfig,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from durably.core.delivery import Kind, Outcome
from durably.deliveries.classify import Reply
from durably.deliveries.guard import Guard, Refused, Target, Unresolved

BODY_LIMIT = 64 * 1024
IDLE = 10.0
"""Seconds for which a connection is kept for the next message."""
REMEMBERED = 10
"""Seconds for which the addresses of a name are kept, after they were checked."""
OURS = frozenset(
    {
        errno.ENETDOWN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)
"""Errors that tell of our own machine or network, not of the peer."""


class _Way:
    """How far a request came."""

    __slots__ = ("reused", "sent")

    def __init__(self) -> None:
        self.reused = False
        self.sent = False
        """Whether all of it has left."""


class Client:
    """Connections to peers. They are kept for the next message, on the event loop that they were made on."""

    def __init__(self, guard: Guard, *, trust: ssl.SSLContext | None = None, user_agent: str = "Durably") -> None:
        self.guard = guard
        self._trust = trust or _verifying()
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, ClientSession]] = WeakKeyDictionary()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply | Outcome:
        """What the peer answered, or what it means that it did not.

        A connection that was kept may have ended meanwhile: then the request is made once more, on a new one.
        """
        until = asyncio.get_running_loop().time() + seconds
        way = _Way()
        try:
            target = self.guard.target(url)
            reply = await self._ask(target, headers, body, way, until, fresh=False)
            if (reply is None and way.reused) or (reply is not None and reply.status == 421):
                way = _Way()
                reply = await self._ask(target, headers, body, way, until, fresh=True)
            return reply or _silence(way)
        except TimeoutError:
            return _overdue(way, seconds)
        except ClientError as error:
            return _trouble(error, way)
        except Unresolved as error:
            return _unreachable(str(error))
        except (Refused, ValueError) as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error))

    async def _ask(
        self, target: Target, headers: Mapping[str, str], body: bytes, way: _Way, until: float, *, fresh: bool
    ) -> Reply | None:
        """The answer; None if the connection ended without one."""
        session = self._session(fresh)
        async with asyncio.timeout_at(until):
            if _is_literal(target.host):
                await self.guard.resolve(target.host, target.port)
            try:
                response = await session.post(
                    URL(target.url, encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    trace_request_ctx=way,
                )
            except (ClientConnectorError, ClientSSLError, ClientResponseError):
                raise
            except (ClientError, ConnectionError):
                return None
        try:
            return Reply(response.status, _headers(response), await _body(response, until))
        finally:
            response.close() if not response.content.at_eof() else response.release()

    def _session(self, fresh: bool) -> ClientSession:
        loop = asyncio.get_running_loop()
        kept = self._sessions.setdefault(loop, {})
        if fresh not in kept:
            lifetime: dict[str, Any] = {"force_close": True} if fresh else {"keepalive_timeout": IDLE}
            connector = TCPConnector(
                resolver=_Guarded(self.guard), ttl_dns_cache=REMEMBERED, limit=0, ssl=self._trust, **lifetime
            )
            kept[fresh] = ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=ClientTimeout(total=None, sock_connect=None),
                trace_configs=[_tracing()],
            )
        return kept[fresh]

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for session in self._sessions.pop(asyncio.get_running_loop(), {}).values():
            await session.close()


class _Guarded(AbstractResolver):
    """Names become addresses that the guard has seen, and the connection goes to these."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._guard.resolve(host, port)
        ]

    async def close(self) -> None:
        """There is nothing to close."""


def _verifying() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _tracing() -> TraceConfig:
    """Notes in the way of a request how far it came."""
    config = TraceConfig()

    async def reused(_: ClientSession, context: Any, __: Any) -> None:
        context.trace_request_ctx.reused = True

    async def sent(_: ClientSession, context: Any, __: Any) -> None:
        context.trace_request_ctx.sent = True

    config.on_connection_reuseconn.append(reused)
    config.on_request_chunk_sent.append(sent)
    return config


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _headers(response: ClientResponse) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in response.headers.items())


async def _body(response: ClientResponse, until: float) -> bytes:
    """As much of the body as is worth reading. What is wrong with it changes nothing: the status has decided."""
    body = b""
    with suppress(ClientError, TimeoutError, OSError):
        async with asyncio.timeout_at(until):
            while len(body) < BODY_LIMIT and (part := await response.content.read(BODY_LIMIT - len(body))):
                body += part
    return body


def _silence(way: _Way) -> Outcome:
    if way.sent:
        return Outcome(
            kind=Kind.UNKNOWN, reason="the connection ended without an answer; it may have been taken", breaks=True
        )
    return Outcome(kind=Kind.TRANSIENT, reason="the connection ended before the message was sent", breaks=True)


def _overdue(way: _Way, seconds: float) -> Outcome:
    if way.sent:
        reason = f"no answer within {seconds:g} s; it may have been taken"
        return Outcome(kind=Kind.UNKNOWN, reason=reason, breaks=True)
    return _unreachable(f"no connection within {seconds:g} s")


def _unreachable(reason: str) -> Outcome:
    return Outcome(kind=Kind.TRANSIENT, reason=reason, unreachable=True, breaks=True)


def _trouble(error: ClientError, way: _Way) -> Outcome:
    """What it means that there is no answer."""
    if isinstance(error, ClientSSLError):
        return Outcome(kind=Kind.TRANSIENT, reason=f"TLS: {error}", breaks=True)
    if isinstance(error, ClientConnectorError):
        if error.os_error.errno in OURS:
            return Outcome(kind=Kind.INFRA, reason=str(error))
        cause = os.strerror(error.os_error.errno) if error.os_error.errno else str(error.os_error)
        return _unreachable(f"no connection to {error.host}: {cause}")
    if isinstance(error, ClientResponseError):
        reason = f"it answered with something that is not HTTP: {error.message}"
        return Outcome(kind=Kind.UNKNOWN, reason=reason, breaks=True)
    return _silence(way)
