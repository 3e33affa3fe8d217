"""The servers that delivery is tested against: the receiver remembers and obeys, the hostile ones do what they say."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiohttp
import pytest

from durably.core.moment import SECOND
from tests.support import receivers
from tests.support.hostile_http import GZIP, HOSTILE, LIMIT, ZLIB, Server, serve
from tests.support.receivers import (
    HOST,
    NAMES,
    PIECE,
    ROOT,
    SAFETY,
    Answer,
    Hold,
    NeverHappened,
    Receiver,
    Request,
    certificate,
    read_ledger,
    receiver_apart,
)

REQUEST = b"POST /in HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody"
HEAD, BODY = REQUEST[:-4], REQUEST[-4:]
MEGABYTE = 1 << 20


class Wire:
    """A client that sends and reads bytes, and nothing else."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), SAFETY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes = REQUEST) -> None:
        if data:
            self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        data = b""
        while len(data) < count:
            piece = self.socket.recv(min(count - len(data), PIECE))
            assert piece, f"the stream ended after {data!r}"
            data += piece
        return data

    def read_to_end(self) -> bytes:
        """Everything up to the end of the stream."""
        data = b""
        while piece := self.socket.recv(PIECE):
            data += piece
        return data

    def read_answer(self) -> bytes:
        """A head, and a body as long as it says."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.read(1)
        length = re.search(rb"Content-Length: (\d+)", head)
        return head + self.read(int(length[1]) if length else 0)

    def hears_nothing(self) -> bool:
        """Whether there is nothing to read, not even the end."""
        self.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.socket.recv(1)
        return True

    def fill(self, most: int) -> int:
        """Send until no more can be sent; how much that was."""
        self.socket.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < most:
                sent += self.socket.send(bytes(PIECE))
        return sent


@contextlib.contextmanager
def encrypted(port: int, context: ssl.SSLContext, name: str = HOST) -> Iterator[Wire]:
    """A client after the handshake, which minds if it is cut off without a goodbye."""
    with Wire(port) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname=name, suppress_ragged_eofs=False)
        yield client


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """The block leaves neither a thread nor an open file or socket. (A warning about one is an error by itself.)"""
    threads, files = set(threading.enumerate()), set(os.listdir("/dev/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert set(os.listdir("/dev/fd")) <= files


def ask(receiver: Receiver, method: str = "POST", path: str = "/in", body: bytes | None = b"body") -> int:
    """The status of the answer to a request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(HOST, receiver.port, timeout=SAFETY)) as client:
        client.request(method, path, body)
        answer = client.getresponse()
        answer.read()
        return answer.status


# The receiver


async def test_a_receiver_keeps_what_was_asked_and_on_which_connection() -> None:
    with Receiver() as receiver:
        async with aiohttp.ClientSession() as session:
            for number in range(2):
                async with session.post(
                    receiver.url(f"/in?n={number}"), data=b"\0\xff", headers={"X-A": "1"}
                ) as answer:
                    assert (answer.status, await answer.read()) == (200, b"")
        async with aiohttp.ClientSession() as session, session.get(receiver.url("/other")) as answer:
            assert answer.status == 200
        first, second, third = receiver.requests

    assert (first.method, first.path, first.body, first.whole) == ("POST", "/in?n=0", b"\0\xff", True)
    assert (third.method, third.path, third.body, third.whole) == ("GET", "/other", b"", True)
    assert first.header("x-a") == "1"
    assert first.header("X-B") is None
    assert [request.connection for request in (first, second, third)] == [1, 1, 2]
    assert first.peer == second.peer != third.peer
    assert first.moment <= second.moment <= third.moment <= first.moment + SAFETY * SECOND


def test_headers_are_kept_in_their_order_with_their_spelling_and_every_line() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(b"GET / HTTP/1.1\r\nhOST:test\r\nX-A:  1 \r\nX-B:\r\nx-a: \xe9\r\n\r\n")
        client.read_answer()
        [request] = receiver.requests

    assert request.headers == [("hOST", "test"), ("X-A", "1"), ("X-B", ""), ("x-a", "\xe9")]
    assert request.values("X-a") == ["1", "\xe9"]
    assert request.header("x-A") == "1"


def test_a_chunked_body_is_put_together() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"4;note=1\r\nbo\r\n\r\nA\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n" + REQUEST)
        client.read_answer()
        client.read_answer()

        assert [request.body for request in receiver.requests] == [b"bo\r\n0123456789", b"body"]


def test_a_client_that_expects_100_gets_it_before_the_body_is_read() -> None:
    hold = Hold()
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.before_body = hold
        client.send(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        hold.wait_until_reached()
        assert client.hears_nothing()
        hold.release()
        client.socket.settimeout(SAFETY)

        assert client.read_answer() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY)
        assert client.read_answer().startswith(b"HTTP/1.1 200 OK\r\n")
        assert [request.body for request in receiver.requests] == [BODY]


def test_a_body_is_not_read_before_the_pause_before_it_is_over() -> None:
    hold = Hold()
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.before_body = hold
        client.send()
        hold.wait_until_reached()
        assert receiver.requests == []
        hold.release()
        client.read_answer()
        assert len(receiver.requests) == 1


def test_an_answer_is_sent_as_it_was_given() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.answer(429, {"Retry-After": "7"}, b"later")
        client.send()
        first = client.read_answer()
        receiver.answer(599, [("X-A", "1"), ("X-A", "2")])
        client.send()
        second = client.read_answer()

    assert first == b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\nlater"
    assert second == b"HTTP/1.1 599 Unknown\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 0\r\n\r\n"


def test_a_length_that_was_given_is_left_as_it_is() -> None:
    assert wire(Answer(200, {"content-length": "9"}, b"OK")) == b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nOK"
    assert wire(Answer(200, {"Transfer-Encoding": "chunked"}, b"0\r\n\r\n")).endswith(b": chunked\r\n\r\n0\r\n\r\n")


def test_answers_without_a_body_have_none() -> None:
    assert wire(Answer(204, body=b"OK")) == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert wire(Answer(304, body=b"OK")) == b"HTTP/1.1 304 Not Modified\r\n\r\n"
    assert wire(Answer(200, body=b"OK"), method="HEAD") == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def wire(answer: Answer, method: str = "POST") -> bytes:
    request = Request(method, "/", [], b"", whole=True, moment=0, connection=1, peer=1)
    return answer.wire(request, last=False)


def test_queued_answers_are_given_once_each_and_then_the_usual_one() -> None:
    with Receiver() as receiver:
        receiver.answer(204)
        receiver.answers([500, Answer(503)])
        receiver.answers([410])
        assert [ask(receiver) for _ in range(5)] == [500, 503, 410, 204, 204]

        receiver.answers([500])
        receiver.answer(202)
        assert ask(receiver) == 202


def test_a_function_may_decide_by_the_request() -> None:
    def script(request: Request) -> Answer:
        return Answer(413 if len(request.body) > 4 else 200)

    with Receiver() as receiver:
        receiver.answer_with(script)
        assert [ask(receiver, body=body) for body in (b"short", b"tiny")] == [413, 200]


def failing(request: Request) -> Answer:
    raise LookupError(request.path)


def ask_one_that_fails(then: Callable[[], object]) -> None:
    with Receiver() as receiver:
        receiver.answer_with(failing)
        with pytest.raises(http.client.RemoteDisconnected):
            ask(receiver)
        receiver.wait_until_left()
        then()


def test_a_function_that_fails_fails_the_test() -> None:
    with nothing_left(), pytest.raises(LookupError, match="/in"):
        ask_one_that_fails(lambda: None)


def test_what_fails_in_the_block_is_not_hidden_by_what_fails_in_the_receiver() -> None:
    with nothing_left(), pytest.raises(ZeroDivisionError):
        ask_one_that_fails(lambda: 1 / 0)


def test_a_held_answer_waits_until_it_is_released_and_holds_nobody_else() -> None:
    hold = Hold()
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.answers([Answer(202, pause=hold)])
        client.send()
        hold.wait_until_reached()
        assert ask(receiver) == 200
        assert client.hears_nothing()
        hold.release()
        client.socket.settimeout(SAFETY)

        assert client.read_answer().startswith(b"HTTP/1.1 202 Accepted\r\n")
        receiver.answer(201, pause=hold)
        assert ask(receiver) == 201


def test_a_client_may_leave_while_it_is_held() -> None:
    hold = Hold()
    with nothing_left(), Receiver() as receiver:
        receiver.answer(pause=hold)
        with Wire(receiver.port) as client:
            client.send()
            hold.wait_until_reached()
        hold.release()
        receiver.wait_until_left()


def test_an_answer_may_be_late() -> None:
    with Receiver() as receiver:
        receiver.answer(202, pause=0.001)
        receiver.before_body = 0.001
        assert ask(receiver) == 202


def test_a_connection_can_be_closed_before_the_answer() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.answer(hang_up="before")
        client.send()
        assert client.read_to_end() == b""
        assert len(receiver.requests) == 1


def test_a_connection_can_be_closed_after_the_answer_which_says_so() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.answer(hang_up="after")
        client.send()
        assert client.read_to_end() == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_a_connection_can_be_reset_in_place_of_the_answer() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        receiver.answer(hang_up="reset")
        client.send()
        with pytest.raises(ConnectionResetError):
            client.read_to_end()


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"], ids=["1.0", "close"]
)
def test_a_client_that_wants_no_more_is_let_go(request_: bytes) -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(request_)
        assert client.read_to_end().endswith(b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (HEAD + b"bo", b"bo"),
        (b"POST /in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n8\r\nmo", b"bodymo"),
        (b"POST /in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n", b"body"),
        (b"POST /in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n", b"body"),
    ],
    ids=["length", "chunk", "between chunks", "trailers"],
)
def test_a_body_that_breaks_off_is_kept_as_far_as_it_came_and_not_answered(sent: bytes, kept: bytes) -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(sent)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.read_to_end() == b""
        [request] = receiver.requests

    assert (request.path, request.body, request.whole) == ("/in", kept, False)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"nonsense\r\n\r\n", "request line"),
        (b"GET / HTTP/2\r\n\r\n", "request line"),
        (b"GET /a b HTTP/1.1\r\n\r\n", "request line"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", "no header"),
        (b"GET / HTTP/1.1\r\nX-A : 1\r\n\r\n", "no header"),
        (b"GET / HTTP/1.1\r\nX-A: 1\n2\r\n\r\n", "no header"),
        (b"GET / HTTP/1.1\r\nX-A: \0\r\n\r\n", "no header"),
        (b"GET / HTTP/1.1\r\nX-A: 1\r\n folded\r\n\r\n", "no header"),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "more than one length"),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "more than one length"),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "cannot be understood"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "cannot be understood"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no size"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", "longer than it said"),
        (b"GET / HTTP/1.1\r\nX-A: " + b"a" * PIECE * 2, "does not end"),
    ],
)
def test_a_request_that_is_not_http_is_answered_with_400_and_complained_about(sent: bytes, complaint: str) -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(sent)
        assert client.read_answer().startswith(b"HTTP/1.1 400 Bad Request\r\n")
        [found] = receiver.complaints
        assert complaint in found
        assert receiver.requests == []


def test_a_client_that_goes_on_sending_after_a_malformed_request_still_hears_about_it() -> None:
    with Receiver() as receiver, Wire(receiver.port) as client:
        client.send(b"nonsense\r\n\r\n" + bytes(16 * MEGABYTE))
        assert client.read_answer().startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_test_can_wait_for_requests_without_blocking_its_loop() -> None:
    with Receiver() as receiver:
        waiting = asyncio.create_task(asyncio.to_thread(receiver.wait_for, 2))
        async with aiohttp.ClientSession() as session:
            for path in ("/a", "/b"):
                (await session.post(receiver.url(path))).release()

        assert [request.path for request in await waiting] == ["/a", "/b"]


def test_what_never_comes_is_given_up_with_a_word_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "SAFETY", 0)
    with Receiver() as receiver:
        with pytest.raises(NeverHappened, match="request number 1 did not come"):
            receiver.wait_for(1)
        with pytest.raises(NeverHappened, match="the end of 1 connections"):
            receiver.wait_until_left()
        with pytest.raises(NeverHappened, match="nobody reached the hold"):
            Hold().wait_until_reached()


def test_a_port_can_be_taken_up_again() -> None:
    with Receiver() as first:
        assert ask(first) == 200
    with pytest.raises(ConnectionRefusedError):
        ask(first)
    with Receiver(port=first.port) as second:
        assert second.port == first.port
        assert ask(second) == 200


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    with Receiver() as first, nothing_left(), pytest.raises(OSError, match="in use"):
        Receiver(port=first.port, ledger=tmp_path / "ledger").__enter__()


def idle(client: Wire) -> None:
    """The connection is there, and nothing was asked."""


def half_a_head(client: Wire) -> None:
    client.send(HEAD[:10])


def half_a_body(client: Wire) -> None:
    client.send(REQUEST[:-1])


def a_held_request(client: Wire) -> None:
    client.send()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("doing", [idle, half_a_head, half_a_body, a_held_request])
def test_a_receiver_ends_whatever_its_clients_do(doing: Callable[[Wire], None], tls: bool) -> None:
    made = certificate(NAMES)
    with nothing_left():
        with Receiver(tls=made if tls else None) as receiver:
            receiver.answer(pause=(hold := Hold()))
            client = Wire(receiver.port)
            if tls:
                client.socket = made.client_context().wrap_socket(client.socket, server_hostname=HOST)
            doing(client)
            if doing is a_held_request:
                hold.wait_until_reached()
            receiver.wait(lambda: receiver.connections == 1, "the connection")
        with client, contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            assert client.read_to_end() == b""
        hold.release()


def test_a_receiver_ends_in_the_middle_of_a_handshake() -> None:
    with nothing_left():
        with Receiver(tls=certificate(NAMES)) as receiver, Wire(receiver.port) as client:
            client.send(b"\x16\x03\x01")
            receiver.wait(lambda: receiver.connections == 1, "the connection")
        assert receiver.requests == []


def test_a_receiver_says_goodbye_in_tls_and_does_not_wait_for_the_client_to_say_it() -> None:
    made = certificate(NAMES)
    with nothing_left(), Receiver(tls=made) as receiver:
        receiver.answer(hang_up="after", body=bytes(MEGABYTE))
        with encrypted(receiver.port, made.client_context()) as client:
            client.send()
            receiver.wait_for(1)
            answer = client.read_to_end()
            receiver.wait_until_left()
        assert answer.endswith(b"\r\nConnection: close\r\n\r\n" + bytes(MEGABYTE))


# Certificates


@pytest.mark.parametrize("name", NAMES)
async def test_a_client_that_trusts_the_authority_trusts_the_receiver(name: str) -> None:
    made = certificate(NAMES)
    with Receiver(tls=made) as receiver:
        url = receiver.url("/in").replace(HOST, name)
        async with aiohttp.ClientSession() as session:
            async with session.post(url, ssl=made.client_context(), data=b"body") as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.post(url)

        assert url.startswith("https://")
        assert [request.body for request in receiver.requests] == [b"body"]


class Refused(NamedTuple):
    """The codes by which OpenSSL says why it does not trust."""

    expired: int = 10
    self_signed: int = 18
    other_name: int = 62
    other_address: int = 64


WHY = Refused()


@pytest.mark.parametrize(
    ("names", "options", "why"),
    [
        (NAMES, {"expired": True}, WHY.expired),
        (NAMES, {"self_signed": True}, WHY.self_signed),
        (["elsewhere.example"], {}, WHY.other_address),
    ],
)
def test_a_certificate_can_be_wrong_in_just_one_way(names: list[str], options: dict[str, bool], why: int) -> None:
    made = certificate(names, **options)
    with Receiver(tls=made) as receiver, Wire(receiver.port) as client:
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            made.client_context().wrap_socket(client.socket, server_hostname=HOST)
        assert refused.value.verify_code == why
        assert receiver.requests == []


def test_the_files_of_certificates_go_with_their_process() -> None:
    script = "from tests.support.receivers import certificate; print(certificate(['a.example']).key)"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    key = Path(ran.stdout.decode().strip())

    assert key.name.endswith(".key.pem")
    assert not key.parent.exists()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


# The ledger, and the receiver as a process


def test_a_request_is_in_the_ledger_before_it_is_answered(tmp_path: Path) -> None:
    ledger, seen = tmp_path / "ledger", []

    def script(request: Request) -> Answer:
        seen.append(read_ledger(ledger))
        return Answer()

    assert read_ledger(ledger) == []
    with Receiver(ledger=ledger) as receiver:
        receiver.answer_with(script)
        ask(receiver, body=b"\0\xff")
        ask(receiver, path="/other")

    assert seen == [receiver.requests[:1], receiver.requests]
    assert receiver.requests[0].body == b"\0\xff"


def test_a_ledger_is_synced_to_disk_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Receiver(ledger=tmp_path / "ledger") as receiver:
        ask(receiver)
        assert synced == [(tmp_path / "ledger").stat().st_size]


def test_a_ledger_goes_on_where_it_was_and_a_torn_last_line_does_not_count(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with Receiver(ledger=ledger) as receiver:
        ask(receiver, path="/a")
    with ledger.open("ab") as file:
        file.write(b'{"method":"PO')
    assert read_ledger(ledger) == receiver.requests
    with Receiver(ledger=ledger) as receiver:
        ask(receiver, path="/b")

    assert [request.path for request in read_ledger(ledger)] == ["/a", "/b"]


def test_a_receiver_apart_that_is_killed_has_written_down_what_it_answered(tmp_path: Path) -> None:
    with receiver_apart(tmp_path / "ledger", "--status", "202") as apart, Wire(apart.port) as client:
        for _ in range(3):
            client.send()
            assert client.read_answer().startswith(b"HTTP/1.1 202 Accepted\r\n")
        apart.process.kill()
        apart.process.wait()

        assert [(request.path, request.body) for request in apart.requests] == [("/in", BODY)] * 3


def test_a_receiver_apart_ends_with_its_block_and_on_a_signal(tmp_path: Path) -> None:
    with receiver_apart(tmp_path / "ledger") as attached:
        assert attached.process.poll() is None
    assert attached.process.returncode == 0
    with receiver_apart(tmp_path / "ledger", "--port", str(attached.port)) as again:
        assert again.port == attached.port
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(SAFETY) == 0


def test_a_receiver_apart_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.receivers import receiver_apart\n"
        "with receiver_apart(Path(sys.argv[1])) as apart: print(apart.process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "ledger")],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        handle = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
    try:
        assert select.select([handle], [], [], SAFETY)[0]
    finally:
        os.close(handle)


def test_a_receiver_that_is_not_attached_goes_on_when_its_input_ends(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = ["-m", "tests.support.receivers", "--ledger", str(tmp_path / "ledger"), "--port-file", str(port_file)]
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        with Wire(int(port_file.read_text())) as client:
            client.send()
            client.read_answer()
        process.send_signal(signal.SIGINT)
        assert process.wait(SAFETY) == 0

    assert url == f"http://{HOST}:{port_file.read_text().strip()}/"
    assert len(read_ledger(tmp_path / "ledger")) == 1


# The hostile servers

SHOWN: set[str] = set()


def shows(*names: str, **expected: Any) -> pytest.MarkDecorator:
    """The test is about these servers; with what is expected of each, if that differs."""
    SHOWN.update(names, expected)
    if names:
        return pytest.mark.parametrize("name", names)
    return pytest.mark.parametrize(("name", "expected"), expected.items(), ids=expected)


class Met(NamedTuple):
    """A hostile server and a client of it."""

    server: Server
    client: Wire


@contextlib.contextmanager
def met(name: str, sent: bytes = REQUEST, *, limit: int = LIMIT, tick: float = 0.0) -> Iterator[Met]:
    """A client of that server that has sent a request."""
    with serve(HOSTILE[name], limit=limit, tick=tick) as server, Wire(server.port) as client:
        client.send(sent)
        yield Met(server, client)


class Answered(NamedTuple):
    """What came back, split where HTTP would."""

    status_line: bytes
    headers: list[bytes]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [line.partition(b": ")[2] for line in self.headers if line.startswith(name + b": ")]


def answered(name: str) -> Answered:
    """All that the server sends to one request."""
    with met(name) as (server, client):
        server.wait_until_settled()
        data = client.read(server.sent)
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *headers = head.split(b"\r\n")
    return Answered(status_line, headers, body)


def test_every_hostile_server_has_a_sentence_and_a_test() -> None:
    assert set(HOSTILE) == SHOWN
    assert len(HOSTILE) >= 30
    assert all(re.fullmatch(r"[A-Z].*\.", hostile.sentence) for hostile in HOSTILE.values())
    assert all(hostile.name == name for name, hostile in HOSTILE.items())
    assert len({hostile.sentence for hostile in HOSTILE.values()}) == len(HOSTILE)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_ends_while_its_client_waits(name: str) -> None:
    with nothing_left():
        with serve(HOSTILE[name]) as server:
            client = socket.socket()
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                client.connect((HOST, server.port))
            with contextlib.suppress(BlockingIOError, ConnectionError):
                client.send(REQUEST)
            if server.hostile.door == "open":
                server.wait(lambda: server.connections == 1, "the connection")
        client.close()


@pytest.mark.parametrize("name", [name for name, hostile in HOSTILE.items() if hostile.door == "open"])
def test_a_hostile_server_lets_go_of_a_client_that_leaves(name: str) -> None:
    stays = {"never_reads", "stops_reading"}
    with nothing_left(), serve(HOSTILE[name], tick=0.0) as server:
        with contextlib.suppress(ConnectionError), Wire(server.port) as client:
            client.send()
            if name in stays:
                server.wait_until_settled()
        if name not in stays:
            server.wait_until_left()
            assert server.sent < LIMIT


@shows("refuses")
def test_it_refuses(name: str) -> None:
    with serve(HOSTILE[name]) as server:
        with pytest.raises(ConnectionRefusedError):
            Wire(server.port)
        with pytest.raises(OSError, match="in use"):
            Receiver(port=server.port).__enter__()


@shows("never_accepts")
def test_it_never_lets_a_connection_be(name: str) -> None:
    with serve(HOSTILE[name]) as server, contextlib.closing(socket.socket()) as client:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.connect((HOST, server.port))
        with pytest.raises(OSError, match="not connected"):
            client.getpeername()
        assert select.select([], [client], [], 0)[1] == []


@shows("never_answers", "tls_stalls")
def test_it_reads_and_says_nothing(name: str) -> None:
    with met(name) as (server, client):
        server.wait_until_settled()
        assert client.hears_nothing()
        assert server.received == len(REQUEST)
        assert server.sent == 0
        assert server.paths == ([] if server.hostile.tls else ["/in"])


@shows(never_reads=0, stops_reading=PIECE)
def test_it_stops_reading(name: str, expected: int) -> None:
    with met(name, HEAD.replace(b": 4", b": 99999999")) as (server, client):
        server.wait_until_settled()
        received = server.received
        assert client.fill(64 * MEGABYTE) < 64 * MEGABYTE
        assert client.hears_nothing()
        assert server.received == received <= expected
        assert (received > 0) == (expected > 0)
        assert server.sent == 0


@shows("reads_slowly")
def test_it_reads_one_byte_per_tick(name: str) -> None:
    with met(name) as (server, client):
        server.wait(lambda: server.ticks >= len(REQUEST), "a tick for every byte")
        assert server.received == server.ticks == len(REQUEST)
        assert client.hears_nothing()


@shows(closes_at_once=b"", closes_after_request=REQUEST, half_closes_first=b"", tls_closes=REQUEST)
def test_it_closes_without_a_word(name: str, expected: bytes) -> None:
    with met(name, expected) as (server, client):
        assert client.read_to_end() == b""
        assert (server.sent, server.received) == (0, len(expected))


def test_a_server_that_half_closed_goes_on_reading() -> None:
    with met("half_closes_first", b"") as (server, client):
        assert client.read_to_end() == b""
        client.send(bytes(MEGABYTE))
        server.wait(lambda: server.received == MEGABYTE, "the end of what was sent")


def read_from(port: int) -> bytes:
    with Wire(port) as client:
        return client.read_to_end()


@shows("resets_before_reading")
def test_it_resets_at_once(name: str) -> None:
    with serve(HOSTILE[name]) as server:
        with pytest.raises(ConnectionResetError):
            read_from(server.port)
        assert (server.sent, server.received) == (0, 0)


@shows(resets_in_request_body=HEAD + b"b", resets_after_request=REQUEST)
def test_it_resets_without_a_word(name: str, expected: bytes) -> None:
    with met(name, expected) as (server, client):
        with pytest.raises(ConnectionResetError):
            client.read_to_end()
        assert (server.sent, server.received) == (0, len(expected))
        assert server.paths == (["/in"] if expected == REQUEST else [])


def test_a_server_that_resets_after_the_request_waits_for_all_of_it() -> None:
    with met("resets_after_request", HEAD + b"b") as (server, client):
        server.wait(lambda: server.received == len(HEAD) + 1, "the first byte of the body")
        assert client.hears_nothing()


@shows(
    resets_in_answer_head=b"HTTP/1.1 200 OK\r\nContent-Le",
    resets_in_answer_body=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ",
)
def test_it_resets_in_the_middle_of_its_answer(name: str, expected: bytes) -> None:
    with met(name) as (_, client):
        assert client.read(len(expected)) == expected
        with pytest.raises(ConnectionResetError):
            client.read_to_end()


@shows("answers_before_request")
def test_it_answers_what_nobody_asked(name: str) -> None:
    with met(name, b"") as (server, client):
        assert client.read_to_end() == OK
        assert server.received == 0


@shows("answers_before_body")
def test_it_answers_while_the_body_is_on_its_way(name: str) -> None:
    with met(name, HEAD) as (server, client):
        assert client.read_to_end().startswith(b"HTTP/1.1 413 ")
        assert server.paths == []


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@shows("closes_after_answer")
def test_it_closes_after_an_answer_that_does_not_say_so(name: str) -> None:
    with met(name) as (server, client):
        assert client.read_to_end() == OK
        assert server.paths == ["/in"]


@shows("resets_next_request")
def test_it_resets_the_next_request_on_a_connection(name: str) -> None:
    with met(name) as (server, client):
        assert client.read(len(OK)) == OK
        client.send(HEAD)
        assert client.hears_nothing()
        client.send(BODY)
        client.socket.settimeout(SAFETY)
        with pytest.raises(ConnectionResetError):
            client.read_to_end()
        assert server.paths == ["/in", "/in"]


@shows("never_answers_again")
def test_it_answers_once(name: str) -> None:
    with met(name) as (server, client):
        assert client.read(len(OK)) == OK
        client.send()
        server.wait(lambda: server.received == 2 * len(REQUEST), "the second request")
        assert client.hears_nothing()
        assert server.sent == len(OK)


@shows(
    slow_head=rb"HTTP/1.1 200 OK\r\n(X-Slow: 1\r\n){100,}",
    slow_body=rb"HTTP/1.1 200 OK\r\nContent-Length: 9{12}\r\n\r\nx{1000,}",
    tls_slow_handshake=rb"\x16\x03\x03\x40\x00\x02[^\xff]{1000,}",
)
def test_it_sends_one_byte_per_tick(name: str, expected: bytes) -> None:
    with met(name, limit=2000) as (server, client):
        data = client.read_to_end()
        opening = re.match(rb"\x16.{4}|HTTP/1.1 200 OK\r\n(Content-Length: 9+\r\n\r\n)?", data, re.DOTALL)
        assert opening is not None
        assert re.match(expected, data)
        assert len(data) == server.sent == 2000
        assert server.ticks == 2000 - opening.end() + 1


CHUNKED = rb"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@shows(
    endless_status_line=rb"HTTP/1.1 200 O{100000,}",
    endless_headers=rb"HTTP/1.1 200 OK\r\n(X-More: and more\r\n){1000,}",
    endless_header_line=rb"HTTP/1.1 200 OK\r\nX-Long: x{100000,}",
    endless_continue=rb"(HTTP/1.1 100 Continue\r\n\r\n){1000,}",
    endless_processing=rb"(HTTP/1.1 102 Processing\r\n\r\n){1000,}",
    endless_hints=rb"(HTTP/1.1 103 Early Hints\r\nLink: [^\r\n]*\r\n\r\n){1000,}",
    endless_body=rb"HTTP/1.1 200 OK\r\n\r\nx{100000,}",
    endless_chunks=CHUNKED + rb"(8\r\nx{8}\r\n){1000,}",
    endless_chunk_size=CHUNKED + rb"0{100000,}",
    endless_chunk_extension=CHUNKED + rb"2;x{100000,}",
    endless_trailers=CHUNKED + rb"2\r\nOK\r\n0\r\n(X-More: and more\r\n){1000,}",
    length_huge=rb"HTTP/1.1 200 OK\r\nContent-Length: 9{30}\r\n\r\nx{100000,}",
    chunk_huge=CHUNKED + rb"f{20}\r\nx{100000,}",
)
def test_it_sends_without_end_up_to_its_limit(name: str, expected: bytes) -> None:
    with met(name, limit=200_000) as (server, client):
        data = client.read_to_end()
        assert len(data) == server.sent == 200_000
        found = re.match(expected, data)
        assert found is not None
        assert found.end() > 199_900
        with Wire(server.port) as another:
            another.send()
            assert another.read_to_end() == b""


@shows(
    status_words=b"HTTP/1.1 OK fine",
    status_missing=b"HTTP/1.1",
    status_negative=b"HTTP/1.1 -200 OK",
    status_0=b"HTTP/1.1 0 Nothing",
    status_99=b"HTTP/1.1 99 Odd",
    status_999=b"HTTP/1.1 999 Odd",
    status_1000=b"HTTP/1.1 1000 Odd",
    reason_long=b"HTTP/1.1 200 " + b"O" * 65536,
    version_unknown=b"HTTP/9.9 200 OK",
    switches_protocols=b"HTTP/1.1 101 Switching Protocols",
)
def test_it_has_an_odd_status_line(name: str, expected: bytes) -> None:
    assert answered(name).status_line == expected


@shows(
    status_garbage=rb"[^H].*\r\n\r\n",
    http_0_9=rb"<html>.*</html>\n",
    http_2=rb"\0\0\0\x04\0\0{4}\0\0\x08\x07\0\0{4}.{8}",
    smtp=rb"220 .*\r\n500 .*\r\n",
)
def test_it_does_not_speak_http_1(name: str, expected: bytes) -> None:
    with met(name) as (server, client):
        server.wait_until_settled()
        assert re.fullmatch(expected, client.read(server.sent), re.DOTALL)
        if name != "status_garbage":
            assert client.read_to_end() == b""


@shows(
    length_negative=[b"-1"],
    length_words=[b"two"],
    length_signed=[b"+2"],
    lengths_differ=[b"2", b"20"],
)
def test_it_says_an_odd_length(name: str, expected: list[bytes]) -> None:
    answer = answered(name)
    assert answer.status_line == b"HTTP/1.1 200 OK"
    assert answer.values(b"Content-Length") == expected
    assert answer.body == b"OK"


@shows("length_and_chunks")
def test_it_says_two_kinds_of_length(name: str) -> None:
    answer = answered(name)
    assert answer.headers == [b"Content-Length: 2", b"Transfer-Encoding: chunked"]
    assert answer.body == b"5\r\nhello\r\n0\r\n\r\n"


@shows("length_too_long")
def test_it_closes_before_all_has_come(name: str) -> None:
    with met(name) as (_, client):
        assert client.read_to_end() == OK.replace(b": 2", b": 100")


async def get(server: Server, session: aiohttp.ClientSession) -> tuple[int, bytes]:
    async with session.get(server.url("/in")) as answer:
        return answer.status, await answer.read()


@shows(length_too_short=b"X-Smuggled: yes\r\nContent-Length: 8\r\n\r\nsmuggled", answers_twice=b"")
def test_it_sends_a_second_answer_that_nobody_asked_for(name: str, expected: bytes) -> None:
    with met(name) as (server, client):
        assert client.read_answer() == OK
        second = client.read_answer()
        assert second.startswith(b"HTTP/1.1 200 OK\r\n" if expected else b"HTTP/1.1 500 ")
        assert second.endswith(expected)
        client.send()
        assert client.read_answer() + client.read_answer() == OK + second
        assert server.connections == 1


@shows("body_on_204")
def test_it_sends_a_body_where_there_can_be_none(name: str) -> None:
    answer = answered(name)
    assert answer.status_line == b"HTTP/1.1 204 No Content"
    assert answer.body == b"OK"


@shows(
    chunk_garbage=b"zz\r\nOK\r\n0\r\n\r\n",
    chunk_negative=b"-2\r\nOK\r\n0\r\n\r\n",
    chunk_too_long=b"2\r\nOK and more\r\n0\r\n\r\n",
)
def test_it_sends_a_broken_chunk(name: str, expected: bytes) -> None:
    answer = answered(name)
    assert answer.values(b"Transfer-Encoding") == [b"chunked"]
    assert answer.body == expected


@shows(chunks_cut=b"HTTP/1.1 200 OK", ok_with_broken_body=b"HTTP/1.1 201 Created")
def test_it_closes_before_the_last_chunk(name: str, expected: bytes) -> None:
    with met(name) as (_, client):
        data = client.read_to_end()
        head, _, body = data.partition(b"\r\n\r\n")
        size, chunk, rest = body.split(b"\r\n")
        assert head.startswith(expected + b"\r\n")
        assert (int(size, 16), rest) == (len(chunk), b"")


def test_a_body_can_be_broken_in_every_way_at_once() -> None:
    answer = answered("ok_with_broken_body")
    assert answer.values(b"Content-Type") == [b"application/json; charset=utf-99"]
    with pytest.raises(ValueError, match="codec can't decode"):
        answer.body.decode()


def unpacked(data: bytes, window: int, most: int) -> tuple[int, int]:
    """How many zeros come out, at least, and how much of the data that took."""
    unpacker, zeros, rest = zlib.decompressobj(window), 0, data
    while zeros < most:
        piece = unpacker.decompress(rest, MEGABYTE)
        assert piece
        assert not piece.strip(b"\0")
        zeros, rest = zeros + len(piece), unpacker.unconsumed_tail
    return zeros, len(data) - len(rest)


@shows(gzip_bomb=(b"gzip", GZIP), deflate_bomb=(b"deflate", ZLIB), gzip_bomb_twice=(b"gzip, gzip", GZIP))
def test_it_sends_little_that_unpacks_to_gigabytes(name: str, expected: tuple[bytes, int]) -> None:
    coding, window = expected
    with met(name) as (server, client):
        answer = client.read_answer()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert len(answer) == server.sent < (100_000 if name == "gzip_bomb_twice" else 3 * MEGABYTE)
    if name == "gzip_bomb_twice":
        body = zlib.decompress(body, GZIP)
    zeros, taken = unpacked(body, window, 16 * MEGABYTE)

    assert b"Content-Encoding: " + coding + b"\r\n" in head
    assert zeros / taken * len(body) > 1.9 * 1024 * MEGABYTE


@shows("gzip_garbage", "gzip_cut")
def test_it_sends_gzip_that_cannot_be_unpacked(name: str) -> None:
    answer = answered(name)
    unpacker = zlib.decompressobj(GZIP)

    assert answer.values(b"Content-Encoding") == [b"gzip"]
    assert answer.values(b"Content-Length") == [str(len(answer.body)).encode()]
    if name == "gzip_garbage":
        with pytest.raises(zlib.error):
            unpacker.decompress(answer.body)
    else:
        assert unpacker.decompress(answer.body)
        assert not unpacker.eof


@shows("coding_unknown")
def test_it_packs_in_a_way_that_nobody_knows(name: str) -> None:
    assert answered(name).values(b"Content-Encoding") == [b"rot13"]


@shows(
    retry_after_negative=["-1"],
    retry_after_huge=["1e99"],
    retry_after_long=["9" * 5000],
    retry_after_infinite=["inf"],
    retry_after_nan=["nan"],
    retry_after_9999=["Fri, 31 Dec 9999 23:59:59 GMT"],
    retry_after_1900=["Mon, 01 Jan 1900 00:00:00 GMT"],
    retry_after_no_date=["Sun, 31 Feb 2027 25:61:61 GMT"],
    retry_after_foreign=["١٢٠"],
    retry_after_garbage=["soon"],
    retry_after_empty=[""],
    retry_after_twice=["1", "86400"],
)
async def test_it_says_nonsense_about_when_to_come_again(name: str, expected: list[str]) -> None:
    with serve(HOSTILE[name]) as server:
        async with aiohttp.ClientSession() as session, session.post(server.url("/in"), data=b"body") as answer:
            assert answer.status == 503
            assert answer.headers.getall("Retry-After") == expected
        assert server.paths == ["/in"]


@shows("cookie_flood")
def test_it_sends_thousands_of_cookies(name: str) -> None:
    cookies = answered(name).values(b"Set-Cookie")
    assert len(set(cookies)) == 10_000


@shows(
    nul_in_header=b"X-Odd: a\0b",
    cr_in_header=b"X-Odd: a\rX-More: b",
    header_without_colon=b"X-Odd",
    header_without_name=b": odd",
    space_before_colon=b"Content-Length : 2",
    bytes_in_header=b"X-Odd: \xff\xfe\x80",
    folded_header=b" b",
)
def test_it_sends_a_header_that_should_not_be(name: str, expected: bytes) -> None:
    assert expected in answered(name).headers


@shows("lf_in_header")
def test_it_ends_its_lines_with_lf(name: str) -> None:
    answer = answered(name)
    assert answer.headers == []
    assert answer.status_line == OK.replace(b"\r\n", b"\n")


@shows("utf_16_headers")
def test_it_sends_headers_in_utf_16(name: str) -> None:
    with met(name) as (server, client):
        server.wait_until_settled()
        data = client.read(server.sent)
    status_line, _, rest = data.partition(b"\r\n")

    assert status_line == b"HTTP/1.1 200 OK"
    assert rest.removesuffix(b"\r\n\r\nOK").decode("utf-16") == "Content-Length: 2\r\nX-Odd: yes"


@shows(
    redirects_to_loopback=(307, "http://127.0.0.1:{port}/inside"),
    redirects_to_metadata=(302, "http://169.254.169.254/latest/meta-data/"),
    redirects_to_file=(301, "file:///etc/passwd"),
    redirects_to_itself=(308, "http://127.0.0.1:{port}/in"),
    redirects_for_ever=(307, "/hop/1"),
    redirects_nowhere=(302, None),
)
async def test_it_redirects(name: str, expected: tuple[int, str | None]) -> None:
    status, location = expected
    with serve(HOSTILE[name]) as server:
        async with aiohttp.ClientSession() as session:
            answer = await session.post(server.url("/in"), data=b"body", allow_redirects=False)
            answer.release()
        assert answer.status == status
        assert answer.headers.get("Location") == (location and location.format(port=server.port))


async def test_who_follows_a_redirect_to_the_inside_gets_there() -> None:
    with serve(HOSTILE["redirects_to_loopback"]) as server:
        async with aiohttp.ClientSession() as session:
            assert await get(server, session) == (200, b"OK")
        assert server.paths == ["/in", "/inside"]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("redirects_to_itself", ["/in"] * 5),
        ("redirects_for_ever", ["/in", "/hop/1", "/hop/2", "/hop/3", "/hop/4"]),
    ],
)
async def test_who_follows_every_redirect_never_arrives(name: str, paths: list[str]) -> None:
    with serve(HOSTILE[name]) as server:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.TooManyRedirects):
                await session.get(server.url("/in"), max_redirects=5)
        assert server.paths == paths


@shows(tls_wrong_name=WHY.other_name, tls_expired=WHY.expired, tls_self_signed=WHY.self_signed)
def test_it_has_a_certificate_that_no_client_should_trust(name: str, expected: int) -> None:
    with serve(HOSTILE[name]) as server:
        with (
            pytest.raises(ssl.SSLCertVerificationError) as refused,
            encrypted(server.port, certificate(NAMES).client_context(), "localhost"),
        ):
            pass
        assert refused.value.verify_code == expected
        assert server.url().startswith("https://")
        with encrypted(server.port, careless()) as client:
            client.send()
            assert client.read_answer() == OK
        server.wait_until_left(2)
        assert server.paths == ["/in"]


def careless() -> ssl.SSLContext:
    """A client that trusts everybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@shows(**({"tls_1_0": "TLSv1"} if ssl.HAS_TLSv1 else {}), **({"tls_1_1": "TLSv1.1"} if ssl.HAS_TLSv1_1 else {}))
def test_it_speaks_only_a_tls_of_the_past(name: str, expected: str) -> None:
    with serve(HOSTILE[name]) as server:
        with pytest.raises(ssl.SSLError), encrypted(server.port, certificate(NAMES).client_context()):
            pass
        spoken = [version for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1) if speaks(server, version)]
        assert [version.name.replace("_", ".") for version in spoken] == [expected]


def speaks(server: Server, version: ssl.TLSVersion) -> bool:
    """Whether the server answers a client that speaks this version alone."""
    context = certificate(NAMES).client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = version
        context.maximum_version = version
    try:
        with encrypted(server.port, context) as client:
            client.send()
            return client.read_answer() == OK
    except ssl.SSLError:
        return False


@shows("tls_cut")
def test_it_closes_without_the_goodbye_of_tls(name: str) -> None:
    with serve(HOSTILE[name]) as server, encrypted(server.port, certificate(NAMES).client_context()) as client:
        client.send()
        expected = b"HTTP/1.1 200 OK\r\n\r\nis this all"
        assert client.read(len(expected)) == expected
        with pytest.raises(ssl.SSLEOFError):
            client.read_to_end()


@shows("tls_plain_text")
def test_it_speaks_plain_text_where_tls_is_expected(name: str) -> None:
    with serve(HOSTILE[name]) as server:
        with (
            pytest.raises(ssl.SSLError, match=r"WRONG_VERSION_NUMBER|wrong version number"),
            encrypted(server.port, certificate(NAMES).client_context()),
        ):
            pass
        assert server.url().startswith("https://")
    with met(name) as (_, plain):
        assert plain.read_answer().startswith(b"HTTP/1.1 400 ")
