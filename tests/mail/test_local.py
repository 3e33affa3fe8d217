"""Mail for development: shown on the console, written into a folder, and honest when neither works."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from email import message_from_bytes
from email.policy import default
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from stat import S_IMODE
from typing import Any

import msgspec
import pytest

from durably import BadOption, Durably
from durably.core.delivery import Destination, Kind, Message, Outcome
from durably.deliveries.channel import Channel, Delivery
from durably.mail.attachments import Attachment
from durably.mail.info import MailInfo
from durably.mail.letter import Letter, Words, letter
from durably.mail.local import RULE, Console, Files, folder, shown

ANN, BOB, CYD = "ann@x.example", "bob@x.example", "cyd@x.example"
ID = "0190a5d1-ac96-774b-bcce-b302099a8057"
SOURCE = b"From: shop@here.example\r\nTo: ann@x.example\r\nSubject: Hello\r\n\r\nIt is there.\r\n"
NOBODY = 65534


def written(**given: Any) -> Letter:
    usual = {"sender": "Shop <shop@here.example>", "to": [ANN], "subject": "Hello", "text": "It is there."}
    return letter(Words(**{**usual, **given}), ID, 1_700_000_000_000_000)


async def deliver(
    channel: Channel,
    address: str,
    what: Letter | bytes = SOURCE,
    *,
    id: str = ID,
    before: Any = None,
    spent: int = 1,
) -> Outcome:
    """One attempt with a mail, or with the source of one to Ann and Bob."""
    made = Letter("shop@here.example", [ANN, BOB], what) if isinstance(what, bytes) else what
    message = Message(id, "durably.mail", msgspec.msgpack.encode(made))
    destination = Destination("default", "dev", "local", address)
    return await channel.deliver(Delivery("t", 1, message, destination, kept=before, spent=spent))


def states(outcome: Outcome) -> dict[str, str]:
    return {address: one.get("state", "waiting") for address, one in outcome.kept.items()}


def told(info: MailInfo) -> dict[str, tuple[str, str]]:
    return {one.address: (one.state, one.said) for one in info.recipients}


def url(place: Path) -> str:
    return place.as_uri()


def names(place: Path) -> list[str]:
    """What is in a folder, hidden or not."""
    return sorted(one.name for one in place.iterdir())


@contextmanager
def without_privileges() -> Iterator[None]:
    """As somebody whom permissions stop: not even root may do what it likes here."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_mail_is_printed_by_a_worker(app: Durably, capsys: pytest.CaptureFixture[str]) -> None:
    app.deliveries.channels["console"] = Console()
    app.deliveries.destinations.add("dev", "console:", channel="console")
    mail = app.mail.send(
        sender="Käthe <shop@here.example>",
        to=f"Ann <{ANN}>",
        bcc=BOB,
        subject="Grüße",
        text="Es ist da.\n\nBis bald",
        html="<p>Hallo</p>",
        attachments=[Attachment("räum.pdf", bytes(1234), "application/pdf")],
        transport="dev",
    )
    app.drain()

    printed = capsys.readouterr().out.splitlines()
    assert (printed[0], printed[-1]) == (RULE, RULE)
    assert printed[1] == f"from shop@here.example to {ANN}, {BOB}"
    assert {"From: Käthe <shop@here.example>", f"To: Ann <{ANN}>", "Subject: Grüße"} <= set(printed)
    assert printed[-7:-1] == [
        "",
        "Es ist da.",
        "",
        "Bis bald",
        "[HTML: 12 characters]",
        "[attachment: räum.pdf, 1,234 bytes]",
    ]
    info = app.mail.get(mail.id)
    assert info.state == "sent"
    assert told(info) == {ANN: ("sent", "written to the console"), BOB: ("sent", "written to the console")}


def test_a_mail_is_written_into_a_folder_by_a_worker(app: Durably, tmp_path: Path) -> None:
    place = tmp_path / "new" / "out box"
    app.deliveries.channels["file"] = Files()
    app.deliveries.destinations.add("dev", url(place), channel="file")
    mail = app.mail.send(
        sender="shop@here.example", to=ANN, bcc=BOB, subject="Hello", text="It is there.", transport="dev"
    )
    app.drain()

    [file] = place.iterdir()
    assert file.name == f"{mail.id}.eml"
    assert file.read_bytes() == (
        b"X-Envelope-From: shop@here.example\r\n"
        b"X-Envelope-To: ann@x.example\r\n"
        b"X-Envelope-To: bob@x.example\r\n" + app.mail.source(mail.id)
    )
    found = message_from_bytes(file.read_bytes(), policy=default)
    assert (found["Subject"], found.get_all("X-Envelope-To")) == ("Hello", [ANN, BOB])
    info = app.mail.get(mail.id)
    assert info.state == "sent"
    assert told(info) == {ANN: ("sent", f"written to {file}"), BOB: ("sent", f"written to {file}")}


def test_a_mail_waits_until_its_folder_can_be_written(app: Durably, tmp_path: Path) -> None:
    place = tmp_path / "outbox"
    place.write_text("this is no folder")
    app.deliveries.channels["file"] = Files()
    app.deliveries.destinations.add("dev", url(place), channel="file")
    mail = app.mail.send(sender="shop@here.example", to=ANN, subject="Hello", text="It is there.", transport="dev")
    app.tick()
    before = app.mail.get(mail.id)
    place.unlink()
    app.deliveries.destinations.flush("dev", force=True)

    assert before.state == "waiting"
    assert before.reason == f"infra: the mail could not be written into {place}: File exists"
    assert app.mail.get(mail.id).state == "sent"
    assert names(place) == [f"{mail.id}.eml"]


def test_destinations_with_addresses_that_cannot_work_are_refused(app: Durably) -> None:
    app.deliveries.channels |= {"console": Console(), "file": Files()}
    with pytest.raises(BadOption, match="console: and nothing more"):
        app.deliveries.destinations.add("dev", "console:here", channel="console")
    with pytest.raises(BadOption, match="absolute folder"):
        app.deliveries.destinations.add("dev", "file:outbox", channel="file")


def test_a_mail_is_shown_with_what_it_says() -> None:
    made = written(
        to=["Jürgen <ann@x.example>"],
        cc=[BOB],
        subject="Grüße aus Köln",
        text="Hallo,\n\n\tes ist da.\n\n",
        html="<p>Grüße</p>",
        attachments=[Attachment("räum.pdf", b"%PDF", "application/pdf"), Attachment("empty", b"")],
    )

    lines = [line for line in shown(made, [ANN]).split("\n") if not line.startswith(("Content-Type", "MIME-Version"))]
    assert lines == [
        RULE,
        f"from shop@here.example to {ANN}",
        "",
        "From: Shop <shop@here.example>",
        "To: Jürgen <ann@x.example>",
        f"Cc: {BOB}",
        "Subject: Grüße aus Köln",
        "Date: Tue, 14 Nov 2023 22:13:20 +0000",
        f"Message-ID: <{ID}@here.example>",
        "",
        "Hallo,",
        "",
        "    es ist da.",
        "[HTML: 12 characters]",
        "[attachment: räum.pdf, 4 bytes]",
        "[attachment: empty, 0 bytes]",
        RULE,
    ]


def test_html_alone_is_only_counted() -> None:
    printed = shown(written(text=None, html="<p>Grüße</p>"), [ANN])

    assert printed.endswith(f"[HTML: 12 characters]\n{RULE}")
    assert "<p>" not in printed


def test_an_attached_mail_is_named_and_not_shown() -> None:
    attached = (
        b"From: a@x\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/plain\r\n\r\nouter\r\n"
        b"--b\r\nContent-Type: message/rfc822\r\nContent-Disposition: attachment\r\n\r\n"
        b"Subject: inner\r\n\r\nhidden\r\n"
        b"--b--\r\n"
    )
    lines = shown(Letter("a@x", [ANN], attached), [ANN]).split("\n")

    assert "outer" in lines
    assert "hidden" not in lines
    assert any(line.startswith("[attachment: without a name, ") for line in lines)


@pytest.mark.parametrize(
    "source",
    [
        b"Subject: a\x1b[2Jb\r\n\r\ntext",
        b"Subject: =?utf-8?q?a=1B[2J=0AFrom: _evil=C2=9B?=\r\n\r\ntext",
        b"Sub\x1bject: a\r\n\r\ntext",
        b"Subject: a\r\n\r\ntext \x1b]0;title\x07 \x08\x08 \x7f over\rwrite\r\n",
        "Subject: a\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\x9b2J\x85".encode(),
        b"Content-Type: text/plain; charset=no-such\r\n\r\n\x1b[2J\r\n",
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n"
        b"Content-Disposition: attachment; filename*=utf-8''a%1B%5B2J%0A\r\n\r\nx\r\n--b--\r\n",
    ],
)
def test_nothing_in_a_mail_drives_the_terminal(source: bytes) -> None:
    printed = shown(Letter("a\x1b[2J@x\n", ["b\x9b\r@x"], source), ["b\x9b\r@x"])

    assert not [sign for sign in printed if sign != "\n" and (sign < " " or "\x7f" <= sign < "\xa0")]
    assert printed.split("\n")[1] == "from a\\x1b[2J@x\\x0a to b\\x9b\\x0d@x"
    assert "From: evil" not in printed.split("\n")


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (b"Content-Type: text/plain; charset=no-such\r\nX: 1\r\n\r\nGr\xc3\xbc\xc3\x9fe\r\n", "X: 1\n\nGrüße"),
        (b"no mail at all \xff", "no mail at all \ufffd"),
        (b"Subject: a\r\n\r\n", "Subject: a\n"),
        (b"", ""),
    ],
)
def test_what_cannot_be_parsed_is_shown_as_it_is(source: bytes, seen: str) -> None:
    printed = shown(Letter("a@x", [ANN], source), [ANN])

    assert seen in printed
    assert printed.count("X: 1") <= 1


async def test_the_console_is_what_standard_output_is_at_that_moment() -> None:
    console = Console()
    stream = StringIO()
    with redirect_stdout(stream):
        found = await deliver(console, "console:")

    assert (found.kind, states(found)) == (Kind.OK, {ANN: "sent", BOB: "sent"})
    assert stream.getvalue() == shown(Letter("shop@here.example", [], SOURCE), [ANN, BOB]) + "\n"


async def test_another_stream_gets_what_it_can_show() -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, "ascii")
    found = await deliver(Console(stream), "console:", written(subject="Grüße"))

    assert found.kind is Kind.OK
    assert rb"Subject: Gr\xfc\xdfe" in raw.getvalue().splitlines()


async def test_a_console_that_is_gone_is_trouble_on_our_side() -> None:
    stream = StringIO()
    stream.close()
    found = await deliver(Console(stream), "console:")

    assert (found.kind, states(found)) == (Kind.INFRA, {ANN: "waiting", BOB: "waiting"})
    assert found.reason.startswith("the mail could not be written on the console: ")


@pytest.mark.parametrize("channel", ["console", "file"])
async def test_only_those_who_wait_get_it(channel: str, tmp_path: Path) -> None:
    stream = StringIO()
    ways: dict[str, tuple[Channel, str]] = {
        "console": (Console(stream), "console:"),
        "file": (Files(), url(tmp_path)),
    }

    def seen() -> str:
        return stream.getvalue() + "".join(file.read_text() for file in tmp_path.iterdir())

    sent, refused = {"state": "sent", "said": "250 ok"}, {"state": "refused", "said": "550 no"}
    nobody = await deliver(*ways[channel], before={ANN: sent, BOB: refused}, spent=2)
    before = seen()
    bob = await deliver(*ways[channel], before={ANN: sent, BOB: {}}, spent=1)

    assert (nobody.kind, states(nobody), before) == (Kind.PERMANENT, {ANN: "sent", BOB: "refused"}, "")
    assert (bob.kind, states(bob), bob.kept[ANN]) == (Kind.OK, {ANN: "sent", BOB: "sent"}, sent)
    assert BOB in seen()
    assert f"to {ANN}" not in seen()
    assert f"X-Envelope-To: {ANN}" not in seen()


@pytest.mark.parametrize(("channel", "address"), [(Console(StringIO()), "console:"), (Files(), "file:///nowhere")])
async def test_what_is_no_mail_is_a_dead_letter(channel: Channel, address: str) -> None:
    message = Message(ID, "durably.mail", b'{"no": "mail"}')
    found = await channel.deliver(Delivery("t", 1, message, Destination("default", "dev", "local", address)))

    assert found.kind is Kind.PERMANENT
    assert found.reason.startswith("this is not a mail")


async def test_another_attempt_writes_the_same_file_and_not_a_second_one(tmp_path: Path) -> None:
    place = tmp_path / "outbox"
    first = await deliver(Files(), url(place))
    before = (place / f"{ID}.eml").read_bytes()
    again = await deliver(Files(), url(place))

    assert first == again
    assert names(place) == [f"{ID}.eml"]
    assert (place / f"{ID}.eml").read_bytes() == before


async def test_nobody_else_can_read_what_is_written(tmp_path: Path) -> None:
    place = tmp_path / "outbox"
    mask = os.umask(0)
    try:
        await deliver(Files(), url(place))
    finally:
        os.umask(mask)

    assert S_IMODE(place.stat().st_mode) == 0o700
    assert S_IMODE((place / f"{ID}.eml").stat().st_mode) == 0o600


async def test_a_file_is_safe_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, bool, bool]] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def step(*given: Any) -> Any:
            [only] = names(tmp_path)
            steps.append((name, only == f"{ID}.eml", threading.current_thread() is threading.main_thread()))
            return real(*given)

        monkeypatch.setattr(os, name, step)

    watched("fsync")
    watched("replace")
    await deliver(Files(), url(tmp_path))

    assert steps == [("fsync", False, False), ("replace", False, False), ("fsync", True, False)]


@pytest.mark.parametrize("step", ["fsync", "replace"])
async def test_a_full_disk_is_trouble_on_our_side_and_leaves_nothing_behind(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        found = await deliver(Files(), url(tmp_path))
    left = names(tmp_path)
    again = await deliver(Files(), url(tmp_path), before=found.kept)

    assert (found.kind, states(found), left) == (Kind.INFRA, {ANN: "waiting", BOB: "waiting"}, [])
    assert found.reason == f"the mail could not be written into {tmp_path}: No space left on device"
    assert (again.kind, states(again)) == (Kind.OK, {ANN: "sent", BOB: "sent"})


async def test_a_missing_permission_is_trouble_on_our_side(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with without_privileges():
        here = await deliver(Files(), url(closed))
        below = await deliver(Files(), url(closed / "below"))

    assert (here.kind, below.kind) == (Kind.INFRA, Kind.INFRA)
    assert here.reason == f"the mail could not be written into {closed}: Permission denied"
    assert names(closed) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [("taken", "File exists"), ("taken/below", "Not a directory"), ("full", "Is a directory"), ("x" * 300, "too long")],
)
async def test_what_stands_in_the_way_is_trouble_on_our_side(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "full" / f"{ID}.eml" / "below").mkdir(parents=True)
    found = await deliver(Files(), url(tmp_path / place))

    assert found.kind is Kind.INFRA
    assert reason in found.reason
    assert names(tmp_path / "full") == [f"{ID}.eml"]


async def test_no_id_leads_out_of_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "outbox"
    for id in ("../out", "/etc/out", "..", "a\0b"):
        assert (await deliver(Files(), url(place), id=id)).kind is Kind.OK

    assert names(tmp_path) == ["outbox"]
    assert names(place) == ["%2Fetc%2Fout.eml", "..%2Fout.eml", "...eml", "a%00b.eml"]


async def test_the_envelope_is_written_as_it_is_and_adds_no_header(tmp_path: Path) -> None:
    fine = await deliver(Files(), url(tmp_path), Letter("käthe@x", ["jürgen@x"], SOURCE))
    evil = await deliver(Files(), url(tmp_path), Letter("a@x", ["b@x\r\nSubject: evil"], SOURCE), id="evil")

    assert (fine.kind, evil.kind) == (Kind.OK, Kind.PERMANENT)
    assert names(tmp_path) == [f"{ID}.eml"]
    envelope = "X-Envelope-From: käthe@x\r\nX-Envelope-To: jürgen@x\r\n".encode()
    assert (tmp_path / f"{ID}.eml").read_bytes() == envelope + SOURCE


async def test_a_folder_whose_name_is_no_text_can_be_written(tmp_path: Path) -> None:
    found = await deliver(Files(), f"{url(tmp_path)}/%FF")

    assert found.kind is Kind.OK
    assert os.listdir(os.fsencode(tmp_path) + b"/\xff") == [f"{ID}.eml".encode()]
    assert msgspec.json.encode(found.kept)


async def test_an_address_that_nobody_has_checked_is_a_mistake_of_the_operator() -> None:
    found = await deliver(Files(), "file:outbox")

    assert found.kind is Kind.MISCONFIGURED
    assert "absolute folder" in found.reason


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("file:///var/outbox", "/var/outbox"),
        ("file:///var/outbox/", "/var/outbox"),
        ("FILE:///var/outbox", "/var/outbox"),
        ("file:/var/outbox", "/var/outbox"),
        ("file:///out%20box/100%25/%C3%BC%3F%23", "/out box/100%/ü?#"),
        ("file:///ü", "/ü"),
    ],
)
def test_the_folder_of_an_address_is_found(address: str, expected: str) -> None:
    Files().check(address)
    assert folder(address) == Path(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "/var/outbox",
        "file:",
        "file://",
        "file:outbox",
        "file:./outbox",
        "file:../outbox",
        "file://host/outbox",
        "file://localhost/outbox",
        "file://[/outbox",
        "http:///outbox",
        "file:///outbox?x=1",
        "file:///outbox?",
        "file:///outbox#x",
        "file:///outbox#",
        "file:///out\0box",
        "file:///out%00box",
        "file:///out\nbox",
        " file:///outbox\x1f",
        b"file:///outbox",
        None,
    ],
)
def test_what_is_no_folder_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match=r"^transport: "):
        Files().check(wrong)


@pytest.mark.parametrize("wrong", ["", "console", "console://", "console:x", " console:", "file:///x", None])
def test_what_is_no_console_is_refused(wrong: Any) -> None:
    Console().check("console:")
    Console().check("CONSOLE:")
    with pytest.raises(BadOption, match=r"^transport: "):
        Console().check(wrong)
