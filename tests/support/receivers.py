"""A well-behaved HTTP/1.1 server for tests: it remembers every request and answers as it is told.

As a process of its own, whose memory is a file: `python -m tests.support.receivers --ledger FILE --port-file FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import functools
import ipaddress
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, NamedTuple, Self, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from durably.core.moment import SECOND
from durably.errors import DurablyError

T = TypeVar("T")

HOST = "127.0.0.1"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NAMES = ("localhost", HOST)
"""What a certificate for a server of ours should be made out to."""
SAFETY = 120
"""Seconds after which something that should have happened is given up; no test depends on it."""
GONE = (ConnectionError, ssl.SSLError)
"""How a client that left, or that does not like our certificate, looks from here."""
PIECE = 1 << 16
ROOT = Path(__file__).parent.parent.parent


class NeverHappened(DurablyError, TimeoutError):
    """What a test waits for did not come."""


class Left(DurablyError, ConnectionError):
    """The client has closed its side of the connection."""


class Malformed(DurablyError):
    """The request is not HTTP/1.1 as a sender should write it."""


class Service(ABC):
    """A port of 127.0.0.1 that a thread with an event loop of its own attends to, from `with` to its end.

    Whatever goes wrong while it attends, except that the client left, is raised when the block ends.
    """

    port: int

    def __init__(self, port: int = 0) -> None:
        self.connections = 0
        """How many were accepted so far."""
        self._wanted = port
        self._changed = threading.Condition()
        self._attending: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    @abstractmethod
    async def attend(self, connection: socket.socket, number: int, peer: int) -> None:
        """All that one connection asks for. It is cancelled when the block ends; the socket is closed for it."""

    def listen(self) -> socket.socket:
        """The socket that clients connect to."""
        return socket.create_server((HOST, self._wanted))

    def __enter__(self) -> Self:
        self._listening = self.listen()
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._loop, self._stopped = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"{type(self).__name__} on {self.port}")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        if self._errors and error is None:
            raise self._errors[0]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Return once it is true; `what` says to a person what did not happen."""
        with self._changed:
            if not self._changed.wait_for(until, SAFETY):
                raise NeverHappened(f"{self._thread.name}: {what} did not come in {SAFETY} s; see what the client does")

    def wait_until_left(self, count: int = 1) -> None:
        """Return once at least that many connections were accepted and all have ended."""
        self.wait(lambda: self.connections >= count and not self._attending, f"the end of {count} connections")

    def notify(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        with self._listening:
            self.open()
            await self._stopped.wait()
            self._loop.remove_reader(self._listening)
        while self._attending:
            for task in self._attending:
                task.cancel()
            await asyncio.wait(self._attending)

    def open(self) -> None:
        """Begin to accept."""
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            connection, (_, peer) = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        connection.setblocking(False)
        self.connections += 1
        task = self._loop.create_task(self.attend(connection, self.connections, peer))
        self._attending.add(task)
        task.add_done_callback(functools.partial(self._ended, connection))
        self.notify()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._attending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GONE):
            self._errors.append(error)
        self.notify()


class Stream:
    """A connection as its server sees it: bytes in and out, plain or encrypted."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._unread = b""
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Shake hands; from now on everything is encrypted."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        await self._step(self._tls.do_handshake)

    async def receive(self, size: int = PIECE) -> bytes:
        """What there is to read, at least a byte and at most so many."""
        data, self._unread = self._unread[:size], self._unread[size:]
        if not data:
            tls = self._tls
            data = await (self.take(size) if tls is None else self._step(lambda: tls.read(size)))
        if not data:
            raise Left("the client has closed its side of the connection")
        return data

    async def until(self, mark: bytes, what: str) -> bytes:
        """What there is to read, up to and with the mark; `what` says what that is."""
        data = b""
        while mark not in data:
            if len(data) > PIECE:
                raise Malformed(f"{what} does not end within 64 kB; send less")
            data += await self.receive()
        end = data.index(mark) + len(mark)
        self._unread = data[end:] + self._unread
        return data[:end]

    async def send(self, data: bytes) -> None:
        """Return when all of it is on its way."""
        if self._tls is None:
            await self.put(data)
        else:
            await self._step(functools.partial(self._tls.write, data))

    async def close(self) -> None:
        """Say goodbye after all that was sent; the client's own goodbye is not waited for."""
        if self._tls is not None:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            await self.put(self._outgoing.read())
        self.hush()

    def hush(self) -> None:
        """Say no more: the client reads the end of the stream, unless it has left already."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Break the connection off, now."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()

    async def take(self, size: int) -> bytes:
        """Bytes as they come over the wire; none if the client has left."""
        return await self._loop.sock_recv(self._connection, size)

    async def put(self, data: bytes) -> None:
        """Bytes as they go over the wire."""
        await self._loop.sock_sendall(self._connection, data)

    async def _step(self, step: Callable[[], T]) -> T:
        """One step of TLS, with all the bytes that have to go to and fro for it."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                await self.put(self._outgoing.read())
            data = await self.take(PIECE)
            if not data:
                raise Left("the client has closed its side of the connection without the goodbye of TLS")
            self._incoming.write(data)


class Hold:
    """Whoever meets it waits until it is released, from whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._released = False
        self._wakes: list[Callable[[], object]] = []

    def wait_until_reached(self) -> None:
        """Return once somebody waits, or has waited, here."""
        if not self._reached.wait(SAFETY):
            raise NeverHappened(f"nobody reached the hold within {SAFETY} s; see whether the request was sent")

    def release(self) -> None:
        """Let everybody pass, now and later."""
        with self._lock:
            self._released = True
            for wake in self._wakes:
                wake()

    async def passed(self) -> None:
        """Return when it is released."""
        released = asyncio.Event()
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, released.set)
        with self._lock:
            if self._released:
                released.set()
            self._wakes.append(wake)
        self._reached.set()
        try:
            await released.wait()
        finally:
            with self._lock:
                self._wakes.remove(wake)


Pause = float | Hold
"""Seconds, or until it is released."""


async def passed(pause: Pause) -> None:
    """Return when the pause is over."""
    if isinstance(pause, Hold):
        await pause.passed()
    elif pause:
        await asyncio.sleep(pause)


class Request(msgspec.Struct, frozen=True):
    """What a client asked for."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool
    """False if the client left before all of the body had come."""
    moment: int
    """When it had come, in microseconds since 1970."""
    connection: int
    """The number of its connection, from 1."""
    peer: int
    """The client's port."""

    def header(self, name: str) -> str | None:
        """The value of that header, of its first line if it has several."""
        return next(iter(self.values(name)), None)

    def values(self, name: str) -> list[str]:
        """The values of all lines of that header."""
        return [value for one, value in self.headers if one.lower() == name.lower()]


Headers = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back, and how."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    pause: Pause = 0.0
    """Between the end of the request and the answer."""
    hang_up: Literal["before", "after", "reset"] | None = None
    """Close the connection instead of the answer, or politely after it; or reset it instead of the answer."""

    @property
    def _fields(self) -> list[tuple[str, str]]:
        return list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)

    def wire(self, request: Request, *, last: bool) -> bytes:
        """The bytes of it. A length that the headers give is left as it is."""
        fields, names = self._fields, {name.lower() for name, _ in self._fields}
        bodiless = self.status < 200 or self.status in (204, 304)
        if not bodiless and names.isdisjoint({"content-length", "transfer-encoding"}):
            fields.append(("Content-Length", str(len(self.body))))
        if last and "connection" not in names:
            fields.append(("Connection", "close"))
        lines = [f"HTTP/1.1 {self.status} {_reason(self.status)}", *(f"{name}: {value}" for name, value in fields)]
        head = "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n"
        return head if bodiless or request.method == "HEAD" else head + self.body


Script = Callable[[Request], Answer]


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Head(NamedTuple):
    """A request without its body."""

    method: str
    path: str
    version: str
    headers: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        """The values of that header, name and values in lower case."""
        return [value.lower() for one, value in self.headers if one.lower() == name]

    @property
    def keeps_alive(self) -> bool:
        return self.version == "HTTP/1.1" and "close" not in self.values("connection")

    @property
    def chunked(self) -> bool:
        return self.values("transfer-encoding") == ["chunked"]

    @property
    def length(self) -> int:
        return int(next(iter(self.values("content-length")), "0"))


_TARGET = re.compile(r"([!#$%&'*+.^_`|~\w-]+) (\S+) (HTTP/1\.[01])", re.ASCII)
_FIELD = re.compile(r"([!#$%&'*+.^_`|~\w-]+):[ \t]*([^\r\n\0]*?)[ \t]*", re.ASCII)
_LENGTH = re.compile(r"\d{1,15}", re.ASCII)
_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")


def parse(data: bytes) -> Head:
    """The head of a request, up to and with its empty line; strict, since our own senders write it."""
    first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    target = _TARGET.fullmatch(first)
    if target is None:
        raise Malformed(f"the request line is {first!r}; it should be a method, a path and HTTP/1.1")
    headers = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Malformed(f"{line!r} is no header; it should be a name, a colon and a value")
        headers.append((field[1], field[2]))
    head = Head(target[1], target[2], target[3], headers)
    lengths, codings = head.values("content-length"), head.values("transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise Malformed(f"the body has more than one length ({lengths + codings}); send one header that tells it")
    if not all(_LENGTH.fullmatch(length) for length in lengths) or codings not in ([], ["chunked"]):
        raise Malformed(f"the length of the body cannot be understood ({lengths + codings}); send a number, or chunked")
    return head


async def read_body(stream: Stream, head: Head) -> tuple[bytes, bool]:
    """The body as far as it came, and whether that is all of it."""
    body = bytearray()
    try:
        if head.chunked:
            await _read_chunks(stream, body)
        else:
            await _read(stream, body, head.length)
    except GONE:
        return bytes(body), False
    return bytes(body), True


async def _read(stream: Stream, body: bytearray, size: int) -> None:
    end = len(body) + size
    while len(body) < end:
        body += await stream.receive(min(end - len(body), PIECE))


async def _read_chunks(stream: Stream, body: bytearray) -> None:
    while size := await _chunk_size(stream):
        await _read(stream, body, size)
        end = bytearray()
        await _read(stream, end, 2)
        if end != b"\r\n":
            raise Malformed("a chunk is longer than it said; its data should be followed by CR LF")
    while await stream.until(b"\r\n", "a trailer") != b"\r\n":
        pass


async def _chunk_size(stream: Stream) -> int:
    line = await stream.until(b"\r\n", "the size of a chunk")
    size = _SIZE.fullmatch(line)
    if size is None:
        raise Malformed(f"{line!r} is no size of a chunk; it should be a hexadecimal number")
    return int(size[1], 16)


class Receiver(Service):
    """Answers 200 to everything, unless it is told otherwise; it may be told from any thread.

    Answers come from the queue of `answers` first, then from the last call of `answer` or `answer_with`.
    """

    def __init__(self, *, tls: Certificate | None = None, ledger: Path | None = None, port: int = 0) -> None:
        super().__init__(port)
        self.before_body: Pause = 0.0
        """Between the head of a request and the reading of its body (and the 100 that the client may wait for)."""
        self.complaints: list[str] = []
        """What was wrong with requests that were not understood. They were answered with 400."""
        self._tls = tls
        self._context = None if tls is None else tls.server_context()
        self._path = ledger
        self._ledger: IO[bytes] | None = None
        self._requests: list[Request] = []
        self._queue: deque[Answer] = deque()
        self._script: Script = lambda request: Answer()

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order in which they had come."""
        return list(self._requests)

    def url(self, path: str = "/") -> str:
        """The address of a path."""
        return f"{'http' if self._tls is None else 'https'}://{HOST}:{self.port}{path}"

    def answer(
        self,
        status: int = 200,
        headers: Headers = (),
        body: bytes = b"",
        *,
        pause: Pause = 0.0,
        hang_up: Literal["before", "after", "reset"] | None = None,
    ) -> None:
        """Answer every request like this, and forget the queue."""
        answer = Answer(status, headers, body, pause, hang_up)
        self.answer_with(lambda request: answer)

    def answers(self, answers: Iterable[Answer | int]) -> None:
        """Answer the next requests with these, one each; a number is a status."""
        self._queue.extend(Answer(one) if isinstance(one, int) else one for one in answers)

    def answer_with(self, script: Script) -> None:
        """Answer every request with what the function says, and forget the queue. It runs in the receiver's thread."""
        self._script = script
        self._queue.clear()

    def wait_for(self, count: int) -> list[Request]:
        """Every request, once there are that many. In a coroutine: `await asyncio.to_thread(receiver.wait_for, 3)`."""
        self.wait(lambda: len(self._requests) >= count, f"request number {count}")
        return self.requests

    def __enter__(self) -> Self:
        if self._path is not None:
            self._ledger = _opened(self._path)
        try:
            return super().__enter__()
        except BaseException:
            self._close_ledger()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, at)
        finally:
            self._close_ledger()

    async def attend(self, connection: socket.socket, number: int, peer: int) -> None:
        stream = Stream(connection)
        if self._context is not None:
            await stream.encrypt(self._context)
        try:
            while await self._exchange(stream, number, peer):
                pass
            await stream.close()
        except Malformed as error:
            self.complaints.append(str(error))
            await stream.send(REFUSAL)
            await stream.close()
            while True:
                await stream.receive()

    async def _exchange(self, stream: Stream, number: int, peer: int) -> bool:
        """One request and its answer; whether another may follow."""
        head = parse(await stream.until(b"\r\n\r\n", "the head"))
        await passed(self.before_body)
        if "100-continue" in head.values("expect"):
            await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, whole = await read_body(stream, head)
        moment = time.time_ns() * SECOND // 10**9
        request = Request(head.method, head.path, head.headers, body, whole, moment, number, peer)
        self._keep(request)
        return whole and await self._reply(stream, request, keeps_alive=head.keeps_alive)

    def _keep(self, request: Request) -> None:
        if self._ledger is not None:
            self._ledger.write(msgspec.json.encode(request) + b"\n")
            self._ledger.flush()
            os.fsync(self._ledger.fileno())
        self._requests.append(request)
        self.notify()

    async def _reply(self, stream: Stream, request: Request, *, keeps_alive: bool) -> bool:
        answer = self._queue.popleft() if self._queue else self._script(request)
        await passed(answer.pause)
        if answer.hang_up == "reset":
            stream.reset()
            raise Left("the connection was reset on demand")
        if answer.hang_up == "before":
            return False
        last = not keeps_alive or answer.hang_up == "after"
        await stream.send(answer.wire(request, last=last))
        return not last

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def read_ledger(path: Path) -> list[Request]:
    """The requests that a ledger holds. A last line that a crash cut off was never answered and does not count."""
    return [msgspec.json.decode(line, type=Request) for line in _whole_lines(path).splitlines()]


def _opened(path: Path) -> IO[bytes]:
    """The ledger, to go on after its last whole line."""
    end = len(_whole_lines(path))
    file = path.open("ab")
    file.truncate(end)
    return file


def _whole_lines(path: Path) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


class Certificate(NamedTuple):
    """Where a certificate, its key, and the certificate of the private authority are, as PEM."""

    chain: Path
    key: Path
    authority: Path
    """What a client must trust. It does not vouch for a certificate that is self-signed."""

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts the private authority and nobody else."""
        return ssl.create_default_context(cafile=str(self.authority))


class Signer(NamedTuple):
    """Who signs certificates, and with what."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def certificate(names: Sequence[str], *, expired: bool = False, self_signed: bool = False) -> Certificate:
    """A certificate for host names and addresses, by a private authority that lives as long as this process."""
    return _certificate(tuple(names), expired, self_signed)


@functools.cache
def _certificate(names: tuple[str, ...], expired: bool, self_signed: bool) -> Certificate:
    folder, (signer, authority) = _folder(), _authority()
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(names[0])
    ends = timedelta(days=-1 if expired else 365)
    made = _signed(name, key, Signer(name, key) if self_signed else signer, ends=ends, names=names)
    chain, secret = (folder / f"{made.serial_number:x}.{kind}.pem" for kind in ("chain", "key"))
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificate(chain, secret, authority)


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="durably-certificates-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _authority() -> tuple[Signer, Path]:
    signer = Signer(_name("Authority of the tests"), ec.generate_private_key(ec.SECP256R1()))
    made = _signed(signer.name, signer.key, signer, ends=timedelta(days=3650), names=())
    path = _folder() / "authority.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return signer, path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, signer: Signer, *, ends: timedelta, names: Sequence[str]
) -> x509.Certificate:
    """A certificate for a server with these names; without any, for an authority."""
    now, public, is_authority = datetime.now(UTC), key.public_key(), not names
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer.name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(_usage(is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(one) for one in names])
        builder = builder.add_extension(alternatives, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer.key, hashes.SHA256())


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Apart(NamedTuple):
    """A receiver that is a process of its own."""

    port: int
    ledger: Path
    process: subprocess.Popen[bytes]

    @property
    def requests(self) -> list[Request]:
        """Every request that was written down."""
        return read_ledger(self.ledger)


@contextlib.contextmanager
def receiver_apart(ledger: Path, *options: str) -> Iterator[Apart]:
    """A receiver as a process of its own, which ends with the block, and with this process whatever becomes of it."""
    port_file = ledger.with_name(f"{ledger.name}.port")
    command = [sys.executable, "-m", "tests.support.receivers", "--ledger", str(ledger), "--port-file", str(port_file)]
    with subprocess.Popen(
        [*command, "--attached", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise NeverHappened(f"the receiver for {ledger} did not start; its complaint is on standard error")
            yield Apart(int(port_file.read_text()), ledger, process)
        finally:
            process.stdin.close()
            process.wait(SAFETY)


def main(arguments: Sequence[str] | None = None) -> int:
    """Receive until SIGTERM or SIGINT comes, or, with --attached, until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.receivers", description=main.__doc__)
    parser.add_argument("--ledger", type=Path, required=True, help="the file that every request is appended to")
    parser.add_argument("--port-file", type=Path, required=True, help="the file that the port is written to")
    parser.add_argument("--port", type=int, default=0, help="the port to use; a free one if it is not given")
    parser.add_argument("--status", type=int, default=200, help="the status of every answer")
    parser.add_argument("--attached", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with Receiver(ledger=options.ledger, port=options.port) as receiver:
        receiver.answer(options.status)
        _write_whole(options.port_file, f"{receiver.port}\n")
        print(receiver.url(), flush=True)
        if options.attached:
            while os.read(0, PIECE):
                pass
        else:
            while True:
                signal.pause()
    return 0


def _write_whole(path: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    half = path.with_name(f"{path.name}.half")
    half.write_text(text)
    half.rename(path)


if __name__ == "__main__":
    sys.exit(main())
