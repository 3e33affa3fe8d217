"""Transports for development: mail that is shown on the console, or written into a folder, and sent to nobody."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email import message_from_bytes
from email.message import EmailMessage, MIMEPart
from email.policy import default
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TextIO
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgspec

from durably.core.brief import brief
from durably.core.delivery import Kind, Outcome
from durably.core.task import clean
from durably.deliveries.channel import Delivery
from durably.errors import BadOption
from durably.mail.headers import CONTROL
from durably.mail.letter import Letter, read
from durably.mail.results import Recipient, Results, kept, outcome, waiting

RULE = "-" * 72
SHOWN = 500
_SPELLED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_LAID_OUT = {**_SPELLED, ord("\n"): "\n", ord("\t"): "    "}


class Console:
    """Prints mail; its address is `console:`. The stream is standard output, unless another one is given."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def check(self, address: str) -> None:
        """Refuse an address that means something else."""
        if not isinstance(address, str) or address.lower() != "console:":
            raise BadOption(f"transport: {brief(address)} must be console: and nothing more")

    async def deliver(self, delivery: Delivery) -> Outcome:
        letter = read(delivery)
        if isinstance(letter, Outcome):
            return letter
        results = kept(letter.recipients, delivery.kept)
        left = waiting(results)
        if left:
            try:
                _print(shown(letter, left), self._stream or sys.stdout)
            except (OSError, ValueError) as error:
                return _not_written("on the console", error, results)
        return _written(results, left, "the console")


class Files:
    """Writes each mail into a file `<id>.eml`; its address is `file:///absolute/folder`."""

    def check(self, address: str) -> None:
        """Refuse an address that is no folder."""
        folder(address)

    async def deliver(self, delivery: Delivery) -> Outcome:
        letter = read(delivery)
        if isinstance(letter, Outcome):
            return letter
        try:
            place = folder(delivery.destination.address)
        except BadOption as error:
            return Outcome(kind=Kind.MISCONFIGURED, reason=str(error))
        results = kept(letter.recipients, delivery.kept)
        left = waiting(results)
        file = place / f"{quote(delivery.message.id, safe='')}.eml"
        if left:
            try:
                await asyncio.to_thread(_write, file, _envelope(letter, left) + letter.source)
            except OSError as error:
                return _not_written(f"into {place}", error, results)
        return _written(results, left, str(file))


def folder(address: str) -> Path:
    """The folder that an address names."""
    if not isinstance(address, str) or CONTROL.search(address):
        raise BadOption(f"transport: {brief(address)} must be an address without control characters")
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise BadOption(f"transport: {brief(address)}: {error}") from None
    if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
        raise BadOption(
            f"transport: {brief(address)} must be an absolute folder on this machine, like file:///var/outbox"
        )
    if "?" in address or "#" in address:
        raise BadOption(f"transport: {brief(address)}: nothing follows the folder; write %3F for ? and %23 for # in it")
    path = unquote_to_bytes(parts.path)
    if b"\0" in path:
        raise BadOption(f"transport: {brief(address)}: no folder has a NUL in its name")
    return Path(os.fsdecode(path))


def shown(letter: Letter, recipients: Sequence[str]) -> str:
    """A mail for people to read, on a terminal that nothing in it can drive."""
    try:
        content = [*_readable(letter.source)]
    except Exception:
        # The parser does not promise to read whatever somebody calls a mail.
        content = [_laid_out(_plain(letter.source.decode("utf-8", "replace")))]
    envelope = f"from {_spelled(letter.sender)} to {', '.join(map(_spelled, recipients))}"
    return "\n".join([RULE, envelope, "", *content, RULE])


def _readable(source: bytes) -> Iterator[str]:
    """The headers and the text, decoded, and what else there is."""
    message: EmailMessage = message_from_bytes(source, policy=default)
    for name, value in message.items():
        yield f"{name}: {_spelled(str(value))}"
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    if text is not None:
        yield ""
        yield _laid_out(_content(text))
    if html is not None:
        yield f"[HTML: {len(_content(html)):,} characters]"
    for part in message.iter_attachments():
        yield f"[attachment: {_spelled(part.get_filename() or 'without a name')}, {_size(part):,} bytes]"


def _content(part: MIMEPart[Any, Any]) -> str:
    return _plain(part.get_content())


def _plain(text: str) -> str:
    """The text with the line ends that it has here, and none after the last line."""
    return text.replace("\r\n", "\n").rstrip("\n")


def _size(part: MIMEPart[Any, Any]) -> int:
    content = part.get_payload(decode=True)
    return len(content if isinstance(content, bytes) else part.as_bytes())


def _spelled(text: str) -> str:
    """The text on one line, with its control characters spelled out."""
    return text.translate(_SPELLED)


def _laid_out(text: str) -> str:
    """The same, with the lines that it has."""
    return text.translate(_LAID_OUT)


def _print(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _envelope(letter: Letter, recipients: Sequence[str]) -> bytes:
    lines = [f"X-Envelope-From: {letter.sender}", *(f"X-Envelope-To: {one}" for one in recipients)]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _write(file: Path, content: bytes) -> None:
    """Put a file there as a whole: whoever looks sees none, or all of it, also after the power was cut."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
    try:
        with open(handle, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(handle)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    names = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def _written(results: Results, recipients: Sequence[str], where: str) -> Outcome:
    return outcome({**results, **dict.fromkeys(recipients, Recipient("sent", clean(f"written to {where}", SHOWN)))})


def _not_written(where: str, error: Exception, results: Results) -> Outcome:
    told = error.strerror if isinstance(error, OSError) and error.strerror else error
    reason = f"the mail could not be written {where}: {told}"
    return Outcome(kind=Kind.INFRA, reason=clean(reason, SHOWN), kept=msgspec.to_builtins(results))
