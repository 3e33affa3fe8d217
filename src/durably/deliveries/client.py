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
from weakref import WeakSet

import msgspec
from aiohttp import (
    BytesPayload,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, AbstractStreamWriter, ResolveResult
from yarl import URL

from durably.client.perloop import PerLoop
from durably.core.delivery import Kind, Outcome
from durably.deliveries.classify import Reply
from durably.deliveries.guard import Guard, Target
from durably.deliveries.limits import Limits
from durably.errors import Refused, Unresolved

BODY_LIMIT = 64 * 1024
IDLE = 10.0
"""Seconds for which a connection is kept for the next message."""
REMEMBERED = 10
"""Seconds for which the addresses of a name are kept, after they were checked."""
REMEMBERED_URLS = 10_000
TELLING = "webhook-delivery"
"""The one header that matters although a message was taken."""
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


class _Body(BytesPayload):
    """The body of a request, and how far it came."""

    def __init__(self, body: bytes, used: WeakSet[Any]) -> None:
        super().__init__(body)
        self._used = used
        self.reused = False
        self.sent = False
        """Whether it was handed to the connection."""

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._leaves(writer)
        await super().write(writer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._leaves(writer)
        await super().write_with_length(writer, content_length)

    def _leaves(self, writer: AbstractStreamWriter) -> None:
        connection = getattr(writer, "protocol", None)
        self.reused = connection in self._used
        if not self.reused:
            self._used.add(connection)
        self.sent = True


class Client:
    """Connections to peers. They are kept for the next message, on the event loop that they were made on."""

    def __init__(self, guard: Guard, *, trust: ssl.SSLContext | None = None, user_agent: str = "Durably") -> None:
        self.guard = guard
        self._trust = trust
        self._limits = Limits()
        self._used: WeakSet[Any] = WeakSet()
        self._urls: dict[Target, URL] = {}
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        self._sessions: PerLoop[dict[bool, ClientSession]] = PerLoop(lambda _: {})

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply | Outcome:
        """What the peer answered, or what it means that it did not.

        A connection that was kept may have ended meanwhile: then the request is made once more, on a new one. Most
        likely nobody has read the first one, but nobody knows.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        way = _Body(body, self._used)
        try:
            target = self.guard.target(url)
        except (Refused, ValueError) as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error), asked=False)
        found = await self._tried(loop, target, headers, way, seconds, fresh=False)
        misdirected = isinstance(found, Reply) and found.status == 421
        if not misdirected and (found is not None or not way.reused):
            return found or _silence(way)
        way = _Body(body, self._used)
        again = await self._tried(loop, target, headers, way, max(until - loop.time(), 0.0), fresh=True)
        return (again or _silence(way)) if misdirected else _doubted(again or _silence(way))

    async def _tried(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        headers: Mapping[str, str],
        way: _Body,
        seconds: float,
        *,
        fresh: bool,
    ) -> Reply | Outcome | None:
        """What came of one request; None if the connection ended without an answer."""
        try:
            return await self._ask(loop, target, headers, way, seconds, fresh=fresh)
        except TimeoutError:
            return _overdue(way, seconds)
        except ClientError as error:
            return _trouble(error, way)
        except Unresolved as error:
            return _unreachable(str(error))
        except (Refused, ValueError) as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error), asked=False)

    async def _ask(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        headers: Mapping[str, str],
        body: _Body,
        seconds: float,
        *,
        fresh: bool,
    ) -> Reply | None:
        """The answer; None if the connection ended without one."""
        session, response = self._session(loop, fresh), None
        limit = self._limits.limit(loop, seconds)
        read = bytearray()
        try:
            response = await session.post(self._url(target), data=body, headers=headers, allow_redirects=False)
            await _read(response, read)
        except asyncio.CancelledError:
            if not limit.was_it():
                raise
            if response is None:
                raise TimeoutError from None
        except (ClientConnectorError, ClientSSLError, ClientResponseError):
            raise
        except (ClientError, ConnectionError):
            return None
        finally:
            limit.stop()
            if response is not None:
                response.close() if not response.content.at_eof() else response.release()
        return Reply(response.status, _headers(response), bytes(read))

    def _url(self, target: Target) -> URL:
        known = self._urls.get(target)
        if known is None:
            if len(self._urls) >= REMEMBERED_URLS:
                self._urls.clear()
            known = self._urls[target] = URL(target.url, encoded=True)
        return known

    def _session(self, loop: asyncio.AbstractEventLoop, fresh: bool) -> ClientSession:
        kept = self._sessions.of(loop)
        if fresh not in kept:
            lifetime: dict[str, Any] = {"force_close": True} if fresh else {"keepalive_timeout": IDLE}
            connector = TCPConnector(
                resolver=_Guarded(self.guard),
                ttl_dns_cache=REMEMBERED,
                limit=0,
                ssl=self._trust or _verifying(),
                **lifetime,
            )
            kept[fresh] = ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=ClientTimeout(total=None, sock_connect=None),
            )
        return kept[fresh]

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for session in (self._sessions.pop() or {}).values():
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


def _headers(response: ClientResponse) -> tuple[tuple[str, str], ...]:
    """What else the peer said; nothing, if it has taken the message and says no more about it."""
    if 200 <= response.status < 300 and TELLING not in response.headers:
        return ()
    return tuple((name.lower(), value) for name, value in response.headers.items())


async def _read(response: ClientResponse, body: bytearray) -> None:
    """As much of the body as is worth reading. What is wrong with it changes nothing: the status has decided."""
    with suppress(ClientError, OSError):
        content = response.content
        while len(body) < BODY_LIMIT and not content.at_eof():
            body += await content.read(BODY_LIMIT - len(body))


def _doubted(found: Reply | Outcome) -> Reply | Outcome:
    """The same, after a request that may have been taken."""
    if isinstance(found, Outcome) and found.kind is Kind.TRANSIENT:
        found = msgspec.structs.replace(found, kind=Kind.UNKNOWN)
    return msgspec.structs.replace(found, possible_duplicate=True)


def _silence(way: _Body) -> Outcome:
    if way.sent:
        return Outcome(
            kind=Kind.UNKNOWN, reason="the connection ended without an answer; it may have been taken", breaks=True
        )
    return Outcome(kind=Kind.TRANSIENT, reason="the connection ended before the message was sent", breaks=True)


def _overdue(way: _Body, seconds: float) -> Outcome:
    if way.sent:
        reason = f"no answer within {seconds:g} s; it may have been taken"
        return Outcome(kind=Kind.UNKNOWN, reason=reason, breaks=True)
    return _unreachable(f"no connection within {seconds:g} s")


def _unreachable(reason: str) -> Outcome:
    return Outcome(kind=Kind.TRANSIENT, reason=reason, unreachable=True, breaks=True)


def _trouble(error: ClientError, way: _Body) -> Outcome:
    """What it means that there is no answer."""
    if isinstance(error, ClientSSLError):
        return Outcome(kind=Kind.TRANSIENT, reason=f"TLS: {error}", breaks=True, alarming=True)
    if isinstance(error, ClientConnectorError):
        if error.os_error.errno in OURS:
            return Outcome(kind=Kind.INFRA, reason=str(error))
        cause = os.strerror(error.os_error.errno) if error.os_error.errno else str(error.os_error)
        return _unreachable(f"no connection to {error.host}: {cause}")
    if isinstance(error, ClientResponseError):
        reason = f"it answered with something that is not HTTP: {error.message}"
        return Outcome(kind=Kind.UNKNOWN, reason=reason, breaks=True)
    return _silence(way)
