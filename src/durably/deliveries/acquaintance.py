"""Peers that have answered lately, and those of whom nobody knows yet whether they will.

Whoever has not answered gets only a few messages at once: however many are silent, they cannot take every slot.
"""

from __future__ import annotations

import asyncio

TRIAL = 2
"""Messages under way at once to a peer that has not answered lately."""
LATELY = 60.0
"""Seconds for which an answer counts."""
MANY = 10_000


class _Peer:
    __slots__ = ("answered", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.answered = float("-inf")
        self.waiting: list[asyncio.Future[None]] = []


class Acquaintances:
    """What this process knows about its peers."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def may_begin(self, name: str, now: float) -> bool:
        """Whether one more message may be on its way to this peer."""
        peer = self._peers.get(name)
        return peer is None or peer.under_way < TRIAL or now - peer.answered < LATELY

    def begin(self, name: str) -> None:
        """A message is on its way."""
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= MANY:
                self._peers = {known: peer for known, peer in self._peers.items() if peer.under_way}
            peer = self._peers[name] = _Peer()
        peer.under_way += 1

    def end(self, name: str, now: float, *, answered: bool) -> None:
        """It is not any more; the peer may have answered."""
        peer = self._peers[name]
        peer.under_way -= 1
        if answered:
            peer.answered = now
        waiting, peer.waiting = peer.waiting, []
        for news in waiting:
            news.get_loop().call_soon_threadsafe(_tell, news)

    async def news(self, name: str, loop: asyncio.AbstractEventLoop, patience: float) -> bool:
        """Wait until a message to this peer is not on its way any more; whether that was so within so many seconds."""
        news: asyncio.Future[None] = loop.create_future()
        self._peers[name].waiting.append(news)
        done, _ = await asyncio.wait([news], timeout=patience)
        return bool(done)


def _tell(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
