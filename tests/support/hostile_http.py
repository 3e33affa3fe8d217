"""HTTP servers that do what no server should: each has a name and one sentence, `serve` runs it.

All of them end with their block, whatever the client does, and none sends more than its limit.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import warnings
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from tests.support.receivers import HOST, NAMES, PIECE, Left, Service, Stream, certificate, parse, read_body

LIMIT = 16 << 20
"""How many bytes a server sends in its life, unless told otherwise."""
TICK = 0.01
"""Seconds between two bytes of a slow server, unless told otherwise."""
BLOCK, BLOCKS = 1 << 20, 2048
"""A bomb is so many blocks of so many zeros."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A server that does what its sentence says."""

    name: str
    sentence: str
    attack: Attack
    tls: bool = False
    """Whether a client should come with https."""
    context: Callable[[], ssl.SSLContext] | None = None
    """With what the connection is encrypted before the attack begins."""
    door: Literal["open", "full", "shut"] = "open"
    """Whether it accepts, lets connections wait for ever, or does not listen."""


HOSTILE: dict[str, Hostile] = {}


class Spent(Exception):
    """The server has sent all that it may."""


class Server(Service):
    """A hostile server at work. Its numbers may be read from any thread."""

    def __init__(self, hostile: Hostile, *, limit: int = LIMIT, tick: float = TICK) -> None:
        super().__init__()
        self.hostile = hostile
        self.limit = limit
        self.tick = tick
        self.sent = 0
        """Bytes that it has sent, to all clients."""
        self.received = 0
        """Bytes that it has read, from all clients."""
        self.ticks = 0
        """How often it waited for a tick."""
        self.paths: list[str] = []
        """What was asked for, by requests that were read to their end."""
        self.settled = 0
        """How many clients have met the worst: from now on it only waits for them, or has closed their connections."""
        self._context = None if hostile.context is None else hostile.context()
        self._waiting: list[socket.socket] = []

    def url(self, path: str = "/") -> str:
        """The address of a path."""
        return f"{'https' if self.hostile.tls else 'http'}://{HOST}:{self.port}{path}"

    def wait_until_settled(self, count: int = 1) -> None:
        """Return once that many clients have met the worst."""
        self.wait(lambda: self.settled >= count, f"the worst for {count} clients")

    def listen(self) -> socket.socket:
        if self.hostile.door == "shut":
            listening = socket.socket()
            listening.bind((HOST, 0))
            return listening
        if self.hostile.door == "full":
            listening = socket.create_server((HOST, 0), backlog=0)
            self._waiting.append(socket.create_connection(listening.getsockname()))
            return listening
        return super().listen()

    def open(self) -> None:
        if self.hostile.door == "open":
            super().open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, at)
        finally:
            for waiting in self._waiting:
                waiting.close()

    async def attend(self, connection: socket.socket, number: int, peer: int) -> None:
        client = Client(self, connection)
        try:
            if self._context is not None:
                await client.encrypt(self._context)
            await self.hostile.attack(client)
        except Spent:
            pass
        finally:
            client.settle()


def serve(hostile: Hostile, *, limit: int = LIMIT, tick: float = TICK) -> Server:
    """The server, for a `with` block; `port` and `url` say where it is."""
    return Server(hostile, limit=limit, tick=tick)


class Client(Stream):
    """The client at the other end of a connection, as an attack sees it."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        super().__init__(connection)
        self.server = server
        self._settled = False

    async def request(self) -> str:
        """Read a request to its end; its path."""
        head = parse(await self.head())
        _, whole = await read_body(self, head)
        if not whole:
            raise Left("the client has left in the middle of its request")
        self.server.paths.append(head.path)
        return head.path

    async def head(self) -> bytes:
        """Read a request up to its empty line."""
        return await self.until(b"\r\n\r\n", "the head")

    async def drip(self, data: bytes) -> None:
        """Send it, one byte per tick."""
        for at in range(len(data)):
            await self.tick()
            await self.send(data[at : at + 1])

    async def tick(self) -> None:
        self.server.ticks += 1
        self.server.notify()
        await asyncio.sleep(self.server.tick)

    async def leaves(self) -> None:
        """Read whatever comes until the client has left."""
        self.settle()
        while True:
            await self.receive()

    async def stays(self) -> None:
        """Read nothing until the server ends."""
        self.settle()
        await asyncio.Event().wait()

    def settle(self) -> None:
        """The client has met the worst."""
        if not self._settled:
            self._settled = True
            self.server.settled += 1
            self.server.notify()

    async def take(self, size: int) -> bytes:
        data = await super().take(size)
        self.server.received += len(data)
        self.server.notify()
        return data

    async def put(self, data: bytes) -> None:
        """Send it as far as the limit allows, in pieces, so that others get their turn."""
        for start in range(0, len(data), PIECE):
            whole = data[start : start + PIECE]
            piece = whole[: self.server.limit - self.server.sent]
            self.server.sent += len(piece)
            await super().put(piece)
            await asyncio.sleep(0)
            if piece != whole:
                raise Spent


Attack = Callable[[Client], Awaitable[None]]


def attack(*, tls: bool = False, door: Literal["open", "full", "shut"] = "open") -> Callable[[Attack], Attack]:
    """Register a coroutine under its own name; its docstring is the sentence."""

    def register(function: Attack) -> Attack:
        name, sentence = function.__name__, function.__doc__ or ""
        _register(Hostile(name, sentence, function, tls, door=door))
        return function

    return register


def _register(hostile: Hostile) -> None:
    assert hostile.name not in HOSTILE, f"two hostile servers are called {hostile.name!r}; rename one"
    HOSTILE[hostile.name] = hostile


def always(
    name: str, sentence: str, wire: bytes, *, closes: bool = False, context: Callable[[], ssl.SSLContext] | None = None
) -> None:
    """Register a server that sends these bytes to every request, and perhaps closes the connection then."""

    async def answer(client: Client) -> None:
        while True:
            await client.request()
            await client.send(wire)
            client.settle()
            if closes:
                return

    _register(Hostile(name, sentence, answer, context is not None, context))


def endless(name: str, sentence: str, opening: bytes, piece: bytes) -> None:
    """Register a server that answers with the opening and then the piece, again and again."""

    async def flood(client: Client) -> None:
        await client.request()
        await client.send(opening)
        while True:
            await client.send(piece * (PIECE // len(piece)))

    _register(Hostile(name, sentence, flood))


def slow(name: str, sentence: str, opening: bytes, piece: bytes) -> None:
    """Register a server that answers with the opening and then the piece, again and again, one byte per tick."""

    async def drip(client: Client) -> None:
        await client.request()
        await client.send(opening)
        while True:
            await client.drip(piece)

    _register(Hostile(name, sentence, drip))


def answer(status: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    """The bytes of an answer, with nothing in it that was not asked for."""
    return b"\r\n".join((b"HTTP/1.1 " + status, *headers, b"", body))


OK = answer(b"200 OK", b"Content-Length: 2", body=b"OK")
CHUNKED = answer(b"200 OK", b"Transfer-Encoding: chunked")
EMPTY = b"Content-Length: 0"


# Connections that end, or do not


@attack(door="shut")
async def refuses(client: Client) -> None:
    """Does not listen on its port, which nobody else can take: every connection is refused."""


@attack(door="full")
async def never_accepts(client: Client) -> None:
    """Has a full backlog: a connection is never established."""


@attack()
async def never_answers(client: Client) -> None:
    """Reads the request and never answers."""
    await client.request()
    await client.leaves()


@attack()
async def never_reads(client: Client) -> None:
    """Accepts, reads nothing and never answers."""
    await client.stays()


@attack()
async def stops_reading(client: Client) -> None:
    """Reads the head of the request, then nothing more, and never answers."""
    await client.head()
    await client.stays()


@attack()
async def reads_slowly(client: Client) -> None:
    """Reads one byte per tick and never answers."""
    while True:
        await client.receive(1)
        await client.tick()


@attack()
async def closes_at_once(client: Client) -> None:
    """Closes the connection as soon as it is there."""


@attack()
async def closes_after_request(client: Client) -> None:
    """Reads the request and closes the connection without a word."""
    await client.request()


@attack()
async def resets_before_reading(client: Client) -> None:
    """Resets the connection as soon as it is there."""
    client.reset()


@attack()
async def resets_in_request_body(client: Client) -> None:
    """Reads the head and some of the body of the request, then resets the connection."""
    await client.head()
    await client.receive(1)
    client.reset()


@attack()
async def resets_after_request(client: Client) -> None:
    """Reads the request, then resets the connection."""
    await client.request()
    client.reset()


@attack()
async def resets_in_answer_head(client: Client) -> None:
    """Answers with half a head, then resets the connection."""
    await client.request()
    await client.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    client.reset()


@attack()
async def resets_in_answer_body(client: Client) -> None:
    """Answers 200 with half of the body that it promised, then resets the connection."""
    await client.request()
    await client.send(answer(b"200 OK", b"Content-Length: 10", body=b"half "))
    client.reset()


@attack()
async def half_closes_first(client: Client) -> None:
    """Shuts its sending side as soon as the connection is there, and goes on reading."""
    client.hush()
    await client.leaves()


@attack()
async def answers_before_request(client: Client) -> None:
    """Answers 200 before it has read anything, and closes the connection."""
    await client.send(OK)


@attack()
async def answers_before_body(client: Client) -> None:
    """Answers 413 when it has read the head of the request, and closes the connection with the body unread."""
    await client.head()
    await client.send(answer(b"413 Content Too Large", EMPTY, b"Connection: close"))


@attack()
async def closes_after_answer(client: Client) -> None:
    """Answers 200 as if the connection stayed, and closes it at once."""
    await client.request()
    await client.send(OK)


@attack()
async def resets_next_request(client: Client) -> None:
    """Answers the first request of a connection with 200, reads the next one and resets the connection."""
    await client.request()
    await client.send(OK)
    await client.request()
    client.reset()


@attack()
async def never_answers_again(client: Client) -> None:
    """Answers the first request of a connection with 200, and never another."""
    await client.request()
    await client.send(OK)
    await client.leaves()


# Answers that do not end


slow(
    "slow_head",
    "Sends the head of its answer one byte per tick, without end.",
    b"HTTP/1.1 200 OK\r\n",
    b"X-Slow: 1\r\n",
)
slow(
    "slow_body",
    "Sends the body of its answer one byte per tick, without end.",
    answer(b"200 OK", b"Content-Length: 999999999999"),
    b"x",
)
endless("endless_status_line", "Sends a status line without end.", b"HTTP/1.1 200 ", b"O")
endless("endless_headers", "Sends headers without end.", b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n")
endless("endless_header_line", "Sends one header whose value has no end.", b"HTTP/1.1 200 OK\r\nX-Long: ", b"x")
endless("endless_continue", "Sends 100 Continue without end.", b"", answer(b"100 Continue"))
endless("endless_processing", "Sends 102 Processing without end.", b"", answer(b"102 Processing"))
endless(
    "endless_hints", "Sends 103 Early Hints without end.", b"", answer(b"103 Early Hints", b"Link: </a>; rel=preload")
)
endless("endless_body", "Sends a body without length and without end.", answer(b"200 OK"), b"x")
endless("endless_chunks", "Sends chunks without end.", CHUNKED, b"8\r\nxxxxxxxx\r\n")
endless("endless_chunk_size", "Sends a chunk whose size has no end.", CHUNKED, b"0")
endless("endless_chunk_extension", "Sends a chunk whose extension has no end.", CHUNKED + b"2;", b"x")
endless("endless_trailers", "Sends trailers without end.", CHUNKED + b"2\r\nOK\r\n0\r\n", b"X-More: and more\r\n")
endless(
    "length_huge",
    "Promises more bytes than a machine can count, and sends without end.",
    answer(b"200 OK", b"Content-Length: " + b"9" * 30),
    b"x",
)
endless(
    "chunk_huge",
    "Sends a chunk with a size beyond 64 bits, without end.",
    CHUNKED + b"f" * 20 + b"\r\n",
    b"x",
)


# Answers that are none


always("status_garbage", "Answers with bytes that are no status line.", b"\x00\xff\x13 nonsense \x80\r\n\r\n")
always("status_words", "Answers with words in place of the number.", answer(b"OK fine", EMPTY))
always("status_missing", "Answers with a status line that ends after the version.", b"HTTP/1.1\r\n\r\n")
always("status_negative", "Answers with status -200.", answer(b"-200 OK", EMPTY))
always("status_0", "Answers with status 0.", answer(b"0 Nothing", EMPTY))
always("status_99", "Answers with status 99.", answer(b"99 Odd", EMPTY))
always("status_999", "Answers with status 999.", answer(b"999 Odd", EMPTY))
always("status_1000", "Answers with status 1000.", answer(b"1000 Odd", EMPTY))
always("reason_long", "Answers 200 with a reason of 64 kB.", answer(b"200 " + b"O" * 65536, EMPTY))
always("version_unknown", "Answers 200 in HTTP/9.9.", b"HTTP/9.9 200 OK\r\n\r\n")
always("http_0_9", "Answers as HTTP/0.9 did, with a body alone.", b"<html>It works!</html>\n", closes=True)
always(
    "http_2",
    "Answers with the frames by which an HTTP/2 server begins and leaves: SETTINGS and GOAWAY.",
    b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x08\x07\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x01",
    closes=True,
)
always("smtp", "Answers as a mail server would.", b"220 mail.example ESMTP\r\n500 5.5.1 what?\r\n", closes=True)
always(
    "switches_protocols",
    "Answers 101 and switches to a protocol that nobody asked for.",
    answer(b"101 Switching Protocols", b"Connection: upgrade", b"Upgrade: noise", body=b"\0\1\2\3"),
)


# Bodies that lie


always("length_negative", "Promises a body of -1 bytes.", answer(b"200 OK", b"Content-Length: -1", body=b"OK"))
always("length_words", "Promises a body of 'two' bytes.", answer(b"200 OK", b"Content-Length: two", body=b"OK"))
always("length_signed", "Promises a body of '+2' bytes.", answer(b"200 OK", b"Content-Length: +2", body=b"OK"))
always(
    "lengths_differ",
    "Sends two lengths that differ.",
    answer(b"200 OK", b"Content-Length: 2", b"Content-Length: 20", body=b"OK"),
)
always(
    "length_and_chunks",
    "Sends both a length and chunks, which end elsewhere.",
    answer(b"200 OK", b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
)
always(
    "length_too_long",
    "Promises 100 bytes, sends 2 and closes the connection.",
    answer(b"200 OK", b"Content-Length: 100", body=b"OK"),
    closes=True,
)
always(
    "length_too_short",
    "Promises 2 bytes and sends more, which look like the answer to the next request on the connection.",
    OK + answer(b"200 OK", b"X-Smuggled: yes", b"Content-Length: 8", body=b"smuggled"),
)
always(
    "answers_twice",
    "Answers every request twice: with 200, then with 500.",
    OK + answer(b"500 Internal Server Error", EMPTY),
)
always("body_on_204", "Answers 204 and sends a body.", answer(b"204 No Content", b"Content-Length: 2", body=b"OK"))
always("chunk_garbage", "Sends a chunk whose size is no number.", CHUNKED + b"zz\r\nOK\r\n0\r\n\r\n")
always("chunk_negative", "Sends a chunk of -2 bytes.", CHUNKED + b"-2\r\nOK\r\n0\r\n\r\n")
always("chunk_too_long", "Sends a chunk with more data than it said.", CHUNKED + b"2\r\nOK and more\r\n0\r\n\r\n")
always(
    "chunks_cut", "Sends a chunk and closes the connection before the last one.", CHUNKED + b"2\r\nOK\r\n", closes=True
)
always(
    "ok_with_broken_body",
    "Answers 201 with JSON in a character set that does not exist, in chunks that break off with half a document.",
    answer(
        b"201 Created",
        b"Content-Type: application/json; charset=utf-99",
        b"Transfer-Encoding: chunked",
        body=b'8\r\n{"id": \xff\r\n',
    ),
    closes=True,
)


# Bodies that unpack badly


@functools.cache
def bomb(window: int) -> bytes:
    """Two gigabytes of zeros, packed: the same block again and again. The checksum is wrong; nobody gets that far."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    first = packer.compress(bytes(BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (BLOCKS - 1) + packer.flush()


def packed(coding: bytes, body: bytes) -> bytes:
    return answer(b"200 OK", b"Content-Encoding: " + coding, b"Content-Length: %d" % len(body), body=body)


GZIP, ZLIB = 31, 15


@attack()
async def gzip_bomb(client: Client) -> None:
    """Sends two megabytes of gzip that unpack to two gigabytes."""
    await client.request()
    await client.send(packed(b"gzip", bomb(GZIP)))
    await client.leaves()


@attack()
async def deflate_bomb(client: Client) -> None:
    """Sends two megabytes of deflate that unpack to two gigabytes."""
    await client.request()
    await client.send(packed(b"deflate", bomb(ZLIB)))
    await client.leaves()


@attack()
async def gzip_bomb_twice(client: Client) -> None:
    """Sends some kilobytes of gzip in gzip that unpack to two gigabytes."""
    await client.request()
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    await client.send(packed(b"gzip, gzip", packer.compress(bomb(GZIP)) + packer.flush()))
    await client.leaves()


always("gzip_garbage", "Says that its body is gzip, which it is not.", packed(b"gzip", b"this is not gzip"))
always(
    "gzip_cut",
    "Sends the first half of a gzip stream as if it were all.",
    packed(b"gzip", zlib.compress(bytes(range(256)), wbits=GZIP)[:100]),
)
always("coding_unknown", "Says that its body is packed in a way that nobody knows.", packed(b"rot13", b"BX"))


# Headers that should not be


def throttled(*values: bytes) -> bytes:
    return answer(b"503 Service Unavailable", *(b"Retry-After: " + value for value in values), EMPTY)


always("retry_after_negative", "Answers 503 with Retry-After: -1.", throttled(b"-1"))
always("retry_after_huge", "Answers 503 with Retry-After: 1e99.", throttled(b"1e99"))
always("retry_after_long", "Answers 503 with a Retry-After of five thousand digits.", throttled(b"9" * 5000))
always("retry_after_infinite", "Answers 503 with Retry-After: inf.", throttled(b"inf"))
always("retry_after_nan", "Answers 503 with Retry-After: nan.", throttled(b"nan"))
always("retry_after_9999", "Answers 503 with a date in the year 9999.", throttled(b"Fri, 31 Dec 9999 23:59:59 GMT"))
always("retry_after_1900", "Answers 503 with a date in the year 1900.", throttled(b"Mon, 01 Jan 1900 00:00:00 GMT"))
always(
    "retry_after_no_date", "Answers 503 with a date that does not exist.", throttled(b"Sun, 31 Feb 2027 25:61:61 GMT")
)
always(
    "retry_after_foreign", "Answers 503 with Retry-After in Arabic digits.", throttled("\u0661\u0662\u0660".encode())
)
always("retry_after_garbage", "Answers 503 with Retry-After: soon.", throttled(b"soon"))
always("retry_after_empty", "Answers 503 with an empty Retry-After.", throttled(b""))
always("retry_after_twice", "Answers 503 with two Retry-After that differ.", throttled(b"1", b"86400"))
always(
    "cookie_flood",
    "Answers 200 with ten thousand cookies.",
    answer(b"200 OK", *(b"Set-Cookie: c%d=%d; Path=/" % (one, one) for one in range(10_000)), EMPTY),
)
always("nul_in_header", "Sends a header with a NUL in it.", answer(b"200 OK", b"X-Odd: a\0b", EMPTY))
always("cr_in_header", "Sends a header with a lone CR in it.", answer(b"200 OK", b"X-Odd: a\rX-More: b", EMPTY))
always("lf_in_header", "Ends its lines with a lone LF.", OK.replace(b"\r\n", b"\n"))
always("folded_header", "Sends a header that goes on in a second line.", answer(b"200 OK", b"X-Odd: a", b" b", EMPTY))
always("header_without_colon", "Sends a header without a colon.", answer(b"200 OK", b"X-Odd", EMPTY))
always("header_without_name", "Sends a header without a name.", answer(b"200 OK", b": odd", EMPTY))
always(
    "space_before_colon",
    "Sends a length with a space before its colon.",
    answer(b"200 OK", b"Content-Length : 2", body=b"OK"),
)
always(
    "bytes_in_header", "Sends a header with bytes that are no UTF-8.", answer(b"200 OK", b"X-Odd: \xff\xfe\x80", EMPTY)
)
always(
    "utf_16_headers",
    "Sends its headers in UTF-16.",
    answer(b"200 OK", "Content-Length: 2\r\nX-Odd: yes".encode("utf-16"), body=b"OK"),
)


# Redirects


async def redirect(client: Client, status: bytes, target: Callable[[str], str]) -> None:
    """Answer every request with the address that the function makes of its path."""
    while True:
        path = await client.request()
        await client.send(answer(status, b"Location: " + target(path).encode(), EMPTY))
        client.settle()


@attack()
async def redirects_to_loopback(client: Client) -> None:
    """Redirects to the path /inside of a loopback address, where it answers 200."""
    inside = b"Location: " + client.server.url("/inside").encode()
    while await client.request() != "/inside":
        await client.send(answer(b"307 Temporary Redirect", inside, EMPTY))
        client.settle()
    await client.send(OK)
    await client.leaves()


@attack()
async def redirects_to_metadata(client: Client) -> None:
    """Redirects to the address at which clouds keep their secrets."""
    await redirect(client, b"302 Found", lambda path: "http://169.254.169.254/latest/meta-data/")


@attack()
async def redirects_to_file(client: Client) -> None:
    """Redirects to a file of the client's machine."""
    await redirect(client, b"301 Moved Permanently", lambda path: "file:///etc/passwd")


@attack()
async def redirects_to_itself(client: Client) -> None:
    """Redirects to the address that was asked for."""
    await redirect(client, b"308 Permanent Redirect", client.server.url)


@attack()
async def redirects_for_ever(client: Client) -> None:
    """Redirects to another path every time."""
    await redirect(client, b"307 Temporary Redirect", lambda path: f"/hop/{len(client.server.paths)}")


always("redirects_nowhere", "Redirects without saying where to.", answer(b"302 Found", EMPTY))


# TLS


def _old(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = certificate(NAMES).server_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = version
        context.maximum_version = version
    return context


always(
    "tls_wrong_name",
    "Has a certificate for another name.",
    OK,
    context=lambda: certificate(["elsewhere.example"]).server_context(),
)
always(
    "tls_expired",
    "Has a certificate that expired yesterday.",
    OK,
    context=lambda: certificate(NAMES, expired=True).server_context(),
)
always(
    "tls_self_signed",
    "Has a certificate that it signed itself.",
    OK,
    context=lambda: certificate(NAMES, self_signed=True).server_context(),
)
if ssl.HAS_TLSv1:
    always("tls_1_0", "Speaks TLS 1.0 only.", OK, context=lambda: _old(ssl.TLSVersion.TLSv1))
if ssl.HAS_TLSv1_1:
    always("tls_1_1", "Speaks TLS 1.1 only.", OK, context=lambda: _old(ssl.TLSVersion.TLSv1_1))
always(
    "tls_cut",
    "Sends a body without length over TLS and closes the connection without the goodbye of TLS.",
    answer(b"200 OK", body=b"is this all"),
    closes=True,
    context=lambda: certificate(NAMES).server_context(),
)


@attack(tls=True)
async def tls_plain_text(client: Client) -> None:
    """Speaks HTTP in plain text where TLS is expected."""
    await client.receive()
    await client.send(answer(b"400 Bad Request", EMPTY))
    await client.leaves()


@attack(tls=True)
async def tls_closes(client: Client) -> None:
    """Reads the greeting of TLS and closes the connection."""
    await client.receive()


@attack(tls=True)
async def tls_stalls(client: Client) -> None:
    """Reads the greeting of TLS and never answers."""
    await client.receive()
    await client.leaves()


@attack(tls=True)
async def tls_slow_handshake(client: Client) -> None:
    """Answers the greeting of TLS with a record that comes one byte per tick."""
    await client.receive()
    await client.send(b"\x16\x03\x03\x40\x00")
    while True:
        await client.drip(b"\x02\x00\x3f\xfc")
