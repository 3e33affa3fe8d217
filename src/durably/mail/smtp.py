"""The channel of a mail transport: connections that are used again, and a state for every recipient."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

import msgspec

from durably.client.perloop import PerLoop
from durably.core.brief import brief
from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Delivery
from durably.errors import BadOption
from durably.mail.dkim import Dkim
from durably.mail.letter import Letter, read
from durably.mail.opening import Unusable
from durably.mail.replies import Stage
from durably.mail.results import Results, due, kept, outcome, packed
from durably.mail.session import Lost, Session
from durably.mail.transports import Transport, transport

CONNECTIONS = 10
"""Connections to each transport, from one worker."""
BUSY = 0.5
"""The share of its time for which a mail waits for one of them."""
SOON = 1.0
"""Seconds until another try to get one."""
BIG = 1024 * 1024
"""Bytes from which on a mail is signed in a thread."""
MOST_ROUNDS = 50
"""Transactions of one attempt: a server that takes few recipients at a time gets the others in the next one."""

Place = tuple[Transport, str | None]


class Smtp:
    """Sends mail. `hostname` is what this machine calls itself; `trust` says which certificates are believed.

    Of the `dkim` keys the first signs that fits the author. There are so many `connections` to each transport at once.
    """

    def __init__(
        self,
        *,
        trust: ssl.SSLContext | None = None,
        hostname: str | None = None,
        dkim: Sequence[Dkim] = (),
        connections: int = CONNECTIONS,
    ) -> None:
        if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
            raise BadOption(f"connections: {brief(connections)} must be a whole number from 1")
        self._trust = trust
        self._hostname = hostname
        self._dkim = dkim
        self._connections = connections
        self._rooms: PerLoop[dict[Place, asyncio.Semaphore]] = PerLoop(lambda _: {})
        self._idle: PerLoop[dict[Place, list[Session]]] = PerLoop(lambda _: {})

    def check(self, address: str) -> None:
        """Refuse an address that could never be a transport."""
        transport(address)

    async def deliver(self, delivery: Delivery) -> Outcome:
        letter = read(delivery)
        if isinstance(letter, Outcome):
            return letter
        results = kept(letter.recipients, delivery.kept)
        try:
            letter = await self._signed(letter, delivery.now)
        except BadOption as error:
            return Outcome(kind=Kind.PERMANENT, reason=str(error), kept=msgspec.to_builtins(results), asked=False)
        return await self._sent(delivery, letter, results)

    async def _sent(self, delivery: Delivery, letter: Letter, results: Results) -> Outcome:
        password = delivery.secrets[0] if delivery.secrets else None
        place = (transport(delivery.destination.address), password)
        seconds = delivery.destination.rules.timeout
        began = self._now()
        room = self._rooms.of(asyncio.get_running_loop()).setdefault(place, asyncio.Semaphore(self._connections))
        if not await _entered(room, seconds * BUSY):
            reason = f"all {self._connections} connections to the transport are busy"
            return Outcome(kind=Kind.INFRA, reason=reason, retry_after=SOON, kept=packed(results, delivery.now))
        before, breaks = dict(results), True
        named = due(results, delivery.now)
        try:
            async with asyncio.timeout_at(began + seconds):
                await self._try(place, letter, named, results)
            breaks = False
        except TimeoutError:
            _note(results, before, named, f"the transport was not done within {seconds:g} s")
        except Lost as error:
            _note(results, before, named, f"the connection was lost: {error}")
        except Unusable as error:
            kept_now = packed(results, delivery.now + self._now() - began)
            return msgspec.structs.replace(error.outcome, kept=kept_now)
        finally:
            room.release()
        return msgspec.structs.replace(outcome(results, delivery.now + self._now() - began), breaks=breaks)

    async def _signed(self, letter: Letter, now: float) -> Letter:
        key = next((one for one in self._dkim if one.covers(letter.author or letter.sender)), None)
        if key is None:
            return letter
        if len(letter.source) > BIG:
            return msgspec.structs.replace(letter, source=await asyncio.to_thread(key.sign, letter.source, now))
        return msgspec.structs.replace(letter, source=key.sign(letter.source, now))

    async def _try(self, place: Place, letter: Letter, named: list[str], results: Results) -> None:
        """Everyone who is named, once."""
        left = named
        for _ in range(MOST_ROUNDS):
            if left:
                left = await self._transaction(place, letter, left, results)
        for address in left:
            results[address] = msgspec.structs.replace(results[address], said="the transport takes no more recipients")

    async def _transaction(self, place: Place, letter: Letter, to: list[str], results: Results) -> list[str]:
        """A connection that was kept may have ended meanwhile: that costs nothing but another one."""
        session = self._kept(place)
        if session is not None:
            try:
                return await self._over(session, place, letter, to, results)
            except Lost as error:
                if error.stage not in (Stage.RESET, Stage.MAIL):
                    raise
        if self._hostname is None:
            # It may take a question to the DNS.
            self._hostname = await asyncio.to_thread(socket.getfqdn)
        session = await Session.open(*place, self._believed(), self._hostname)
        return await self._over(session, place, letter, to, results)

    async def _over(self, session: Session, place: Place, letter: Letter, to: list[str], results: Results) -> list[str]:
        try:
            left = await session.send(letter, to, results)
        except BaseException:
            session.close()
            raise
        idle = self._idle.of(asyncio.get_running_loop()).setdefault(place, [])
        if session.worn(self._now()) or len(idle) >= self._connections:
            await session.quit()
        else:
            idle.append(session)
        return left

    def _kept(self, place: Place) -> Session | None:
        idle = self._idle.of(asyncio.get_running_loop()).get(place, [])
        while idle:
            session = idle.pop()
            if not session.worn(self._now()):
                return session
            session.close()
        return None

    def _believed(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = ssl.create_default_context()
            self._trust.minimum_version = ssl.TLSVersion.TLSv1_2
        return self._trust

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Take leave of the servers, on the running event loop."""
        for sessions in (self._idle.pop() or {}).values():
            for session in sessions:
                await session.quit()


async def _entered(room: asyncio.Semaphore, patience: float) -> bool:
    """Wait for a connection, but not so long that no time is left to use it."""
    if not room.locked():
        return await room.acquire()
    try:
        async with asyncio.timeout(patience):
            return await room.acquire()
    except TimeoutError:
        return False


def _note(results: Results, before: Results, named: list[str], reason: str) -> None:
    """Let those say why who were named, and of whom nothing was heard."""
    for address in named:
        one = results[address]
        if one is before[address] and not one.unknown:
            results[address] = msgspec.structs.replace(one, said=reason)
