"""DKIM: a signature over a mail, which shows receivers that a domain answers for it and that nobody changed it.

White space may change on the way (relaxed/relaxed); what people see of a mail may not, and no second one of it may be
added. The hash is SHA-256, the key RSA (RFC 6376) or Ed25519 (RFC 8463).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from textwrap import wrap

from durably.core.brief import brief
from durably.errors import BadOption, MissingPackage
from durably.mail.domains import LONGEST_NAME, dns_name
from durably.mail.source import CRLF, NEXT_FIELD, with_crlf

LEAST_BITS = 1024
"""Receivers take no shorter RSA keys."""
WIDTH = 76
SIGNED = (
    b"from",
    b"sender",
    b"reply-to",
    b"subject",
    b"date",
    b"message-id",
    b"to",
    b"cc",
    b"mime-version",
    b"content-type",
    b"content-transfer-encoding",
    b"in-reply-to",
    b"references",
    b"list-id",
    b"list-unsubscribe",
    b"list-unsubscribe-post",
)
"""The fields that are signed, as often as they are there."""
SEALED = frozenset({b"from", b"subject", b"date", b"to", b"cc"})
"""The fields that are signed once more than they are there, so that nobody can add another one."""

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:(.*)", re.DOTALL)

Field = tuple[bytes, bytes]
"""The name of a header field in lower case, and its value as it is written."""


class Dkim:
    """Signs in the name of a domain, whose DNS has the public key at `selector._domainkey.domain`."""

    def __init__(self, domain: str, selector: str, private_key: str | bytes) -> None:
        self.domain = _domain(domain)
        self.selector = _selector(selector, self.domain)
        self._algorithm, self._signature = _signing(private_key)

    def __repr__(self) -> str:
        return f"Dkim(domain={self.domain!r}, selector={self.selector!r})"

    def covers(self, sender: str) -> bool:
        """Whether an address belongs to the domain, or to one below it: only there the signature counts."""
        found = dns_name(sender.rpartition("@")[2]) if "@" in sender else None
        return found is not None and (found == self.domain or found.endswith(f".{self.domain}"))

    def sign(self, source: bytes, now: float) -> bytes:
        """The source with a signature in front, and every line ended as SMTP wants it."""
        lines = with_crlf(source)
        fields, body = _parsed(lines)
        names, chosen = _chosen(fields)
        header = self._header(names, body, now)
        content = CRLF.join([*(_relaxed(field) for field in chosen), _relaxed(_field(header))])
        signature = b64encode(self._signature(content)).decode()
        return header + CRLF.join([b"", *(b" " + line.encode() for line in wrap(signature, WIDTH)), lines])

    def _header(self, names: Sequence[bytes], body: bytes, now: float) -> bytes:
        """The field of the signature, up to where the signature itself belongs."""
        tags = {
            "v": "1",
            "a": self._algorithm,
            "c": "relaxed/relaxed",
            "d": self.domain,
            "s": self.selector,
            "t": str(int(now)),
            "h": b": ".join(names).decode(),
            "bh": b64encode(sha256(_relaxed_body(body)).digest()).decode(),
            "b": "",
        }
        text = "DKIM-Signature: " + "; ".join(f"{tag}={value}" for tag, value in tags.items())
        return "\r\n ".join(wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)).encode()


def _parsed(lines: bytes) -> tuple[list[Field], bytes]:
    """The header fields and the body."""
    head, _, body = lines.partition(CRLF + CRLF)
    return [_field(one) for one in NEXT_FIELD.split(head.removesuffix(CRLF))], body


def _field(written: bytes) -> Field:
    found = _FIELD.match(written)
    if found is None:
        raise BadOption(f"dkim: the mail has a line in its header that is no field: {brief(written)}; leave it out")
    return found[1].lower(), found[2]


def _chosen(fields: Sequence[Field]) -> tuple[list[bytes], list[Field]]:
    """The names to sign, and the fields that they stand for: of several with one name, the last comes first."""
    senders = sum(name == b"from" for name, _ in fields)
    if senders != 1:
        raise BadOption(f"dkim: the mail has {senders} From fields; it must have exactly one to be signed")
    names: list[bytes] = []
    chosen: list[Field] = []
    for name in SIGNED:
        there = [field for field in reversed(fields) if field[0] == name]
        names += [name] * (len(there) + (name in SEALED))
        chosen += there
    return names, chosen


def _relaxed(field: Field) -> bytes:
    """A field with its name in lower case, its value on one line, and single spaces within."""
    name, value = field
    return name + b":" + _single_spaced(value.replace(CRLF, b"")).strip(b" ")


def _relaxed_body(body: bytes) -> bytes:
    """A body with single spaces, none of them at the end of a line, and no empty lines at its end."""
    text = _single_spaced(body + CRLF).replace(b" \r\n", CRLF).rstrip(CRLF)
    return text + CRLF if text else b""


def _single_spaced(text: bytes) -> bytes:
    """Every run of spaces and tabs as one space. Attachments are long: this is far faster than a pattern."""
    text = text.replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text


def _domain(given: str) -> str:
    found = dns_name(given) if isinstance(given, str) else None
    if found is None or "." not in found:
        raise BadOption(f"dkim domain: {brief(given)} is not the name of a domain; write it like example.org")
    return found


def _selector(given: str, domain: str) -> str:
    found = dns_name(given) if isinstance(given, str) and given.isascii() else None
    if found is None:
        raise BadOption(f"dkim selector: {brief(given)} is not a name in DNS; write letters, digits, hyphens and dots")
    place = f"{found}._domainkey.{domain}"
    if len(place) > LONGEST_NAME:
        raise BadOption(
            f"dkim selector: with its domain it makes a name of {len(place)} characters; "
            f"DNS has at most {LONGEST_NAME}, so choose a shorter one"
        )
    return found


def _signing(private_key: str | bytes) -> tuple[str, Callable[[bytes], bytes]]:
    """The name of the algorithm, and what signs with it. No error shows any of the key."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise MissingPackage(f"DKIM needs the package cryptography: pip install 'durably[smtp]' ({error})") from error
    if not isinstance(private_key, str | bytes):
        raise BadOption("dkim private key: it must be text or bytes; give what is in the PEM file")
    pem = private_key.encode("utf-8", "replace") if isinstance(private_key, str) else private_key
    if b"PRIVATE KEY-----" not in pem and b" PUBLIC KEY-----" in pem:
        raise BadOption("dkim private key: this is a public key, which belongs into DNS; give the private one")
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:
        raise BadOption("dkim private key: it is encrypted; give it without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadOption("dkim private key: it cannot be read; give a PEM file of PKCS#8 or PKCS#1, unchanged") from None
    if isinstance(key, Ed25519PrivateKey):
        sign = key.sign
        return "ed25519-sha256", lambda content: sign(sha256(content).digest())
    if not isinstance(key, RSAPrivateKey):
        raise BadOption("dkim private key: it is neither RSA nor Ed25519; make one of these")
    if key.key_size < LEAST_BITS:
        raise BadOption(f"dkim private key: RSA with {key.key_size} bits is too weak; make one of 2048 bits")
    return "rsa-sha256", partial(key.sign, padding=PKCS1v15(), algorithm=SHA256())
