"""The demo's servers: processes of their own, which write into the ledger and do as the story tells them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from durably.demo.workers import Silent

HOST = "127.0.0.1"
DONE = "done"
Attend = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server, as the story sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ports = [int(port) for port in self._hear().split()]

    def tell(self, words: str) -> None:
        """Let it behave otherwise; it does so once this returns."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()
        self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise Silent(f"a server left with exit code {self._process.wait()} instead of listening")
        return said


@contextmanager
def serving(module: str, ledger: Path, log: IO[bytes]) -> Iterator[Server]:
    """A server in a process of its own; it leaves when this end of its stdin is closed, whoever closes it."""
    command = [sys.executable, "-m", module, str(ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        yield Server(process)


async def serve(attends: Sequence[Attend], obey: Callable[[str], None]) -> None:
    """Be such a server: one port for each of those who attend, and orders from stdin until it is closed."""
    servers = [await asyncio.start_server(attend, HOST, 0) for attend in attends]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    while words := await asyncio.to_thread(sys.stdin.readline):
        obey(words.strip())
        print(DONE, flush=True)
