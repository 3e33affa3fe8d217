"""A message as it goes over the wire: seven bits wide, with the line ends of SMTP, and with no header but its own."""

from __future__ import annotations

import re
from base64 import encodebytes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from email.generator import BytesGenerator
from email.message import Message
from io import BytesIO

from durably.core.brief import brief
from durably.errors import BadOption, DurablyError
from durably.mail.headers import CONTROL, NAME

CRLF = b"\r\n"
NEXT_FIELD = re.compile(rb"\r\n(?![ \t])")
ENCODING = "content-transfer-encoding"
BARE = ("", "7bit", "8bit", "binary")
"""What the encoding of a part is called that has none."""
_WHITE = re.compile(r"\r?\n[ \t]+(?=\S)|\t")
"""White space in a header that was folded. A line of nothing else might end the header for some reader."""


@contextmanager
def writing() -> Iterator[None]:
    """For whatever uses the email package, which does not promise to write, or to read, what it is given."""
    try:
        yield
    except DurablyError:
        raise
    except Exception as error:
        raise BadOption(f"this mail cannot be written: {type(error).__name__}: {error}") from None


def source(message: Message) -> bytes:
    """The bytes that every attempt sends; a server need not know of 8BITMIME to take them."""
    for part in message.walk():
        _check(part)
    made = _written(_encoded(message))
    head, _, body = made.partition(CRLF + CRLF)
    # With SMTPUTF8, which takes eight bits anyway, the headers of its parts are in UTF-8 too.
    if not body.isascii() and not getattr(message.policy, "utf8", False):
        raise BadOption("this mail has bytes outside of ASCII where nothing can encode them; write its parts in ASCII")
    if _names(NEXT_FIELD.split(head)) != _names(name.encode() for name, _ in message.items()):
        raise BadOption("a header of this mail would become several; take line breaks out of what it says")
    return made


def with_crlf(text: bytes) -> bytes:
    """The text with the line ends that it has on the wire, whatever it has here."""
    return text.replace(CRLF, b"\n").replace(b"\r", b"\n").replace(b"\n", CRLF)


def _check(part: Message) -> None:
    """Refuse what would be another header, or a body, for whoever reads it. Encoded words hide that from the eye."""
    for name, value in part.items():
        if not NAME.fullmatch(name):
            raise BadOption(f"headers: {brief(name)} is not the name of a header")
        if CONTROL.search(_WHITE.sub(" ", str(value))):
            raise BadOption(f"{name}: {brief(str(value))} must not have line breaks or other control characters")


def _written(message: Message) -> bytes:
    written = BytesIO()
    BytesGenerator(written, mangle_from_=False, policy=message.policy.clone(cte_type="7bit")).flatten(message)
    return with_crlf(written.getvalue())


def _encoded(message: Message) -> Message:
    """The message with an encoding for every part that needs one and has none."""
    if not any(map(_is_bare, message.walk())):
        return message
    made = deepcopy(message)
    for part in filter(_is_bare, made.walk()):
        content = _content(part)
        del part[ENCODING]
        part["Content-Transfer-Encoding"] = "base64"
        part.set_payload(encodebytes(content).decode("ascii"))
    return made


def _content(part: Message) -> bytes:
    """The bytes of a part; those of a text have the line ends of the wire within an encoding too."""
    text, data = str(part.get_payload()), part.get_payload(decode=True)
    if not isinstance(data, bytes) or data.decode(part.get_content_charset("ascii"), "replace") != text:
        raise BadOption(f"this mail says {brief(text)}, and not in which charset; give set_payload() one")
    return with_crlf(data) if part.get_content_maintype() == "text" else data


def _is_bare(part: Message) -> bool:
    """Whether its content goes beyond ASCII as it stands."""
    content = part.get_payload()
    return isinstance(content, str) and not content.isascii() and str(part.get(ENCODING, "")).strip().lower() in BARE


def _names(fields: Iterable[bytes]) -> list[bytes]:
    """The names of fields; that of an encoding may have been added."""
    names = [field.partition(b":")[0].lower() for field in fields]
    return [name for name in names if name != ENCODING.encode()]
