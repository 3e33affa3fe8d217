"""Looking up names, in threads of its own: names that do not answer keep nobody waiting whose name is known to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

KNOWN, OTHERS = 16, 64
"""Threads for names that were found the last time, and for all others."""
MANY = 10_000

Found = list[str]


def _asked(host: str, port: int) -> Found:
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Lookups:
    """Asks the resolver of this machine."""

    def __init__(self, ask: Callable[[str, int], Found] = _asked) -> None:
        self._ask = ask
        self._found: set[str] = set()
        self._pools: dict[bool, ThreadPoolExecutor] = {}

    async def __call__(self, host: str, port: int) -> Found:
        """The addresses of a name."""
        pool = self._pool(host in self._found)
        try:
            found = await asyncio.get_running_loop().run_in_executor(pool, self._ask, host, port)
        except OSError:
            self._found.discard(host)
            raise
        if len(self._found) >= MANY:
            self._found.clear()
        self._found.add(host)
        return found

    def _pool(self, known: bool) -> ThreadPoolExecutor:
        if known not in self._pools:
            self._pools[known] = ThreadPoolExecutor(KNOWN if known else OTHERS, "durably-lookup")
        return self._pools[known]


system_lookup = Lookups()
