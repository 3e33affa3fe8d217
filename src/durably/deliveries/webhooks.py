"""Standard Webhooks: three headers that show a receiver who sent a message, when, and that nobody changed it.

A secret is text with a prefix: `whsec_` is shared by both sides (HMAC-SHA256, signature `v1`); `whsk_` signs and
`whpk_` verifies (ed25519, signature `v1a`). During a rotation a sender signs with the old and the new secret.
"""

from __future__ import annotations

import hmac
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from secrets import token_bytes
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.moment import Duration, seconds
from durably.errors import BadOption, BadSignature, MissingPackage

LONGEST_HEADER = 8192
REMEMBERED = 1000
"""Secrets that were decoded, and need not be decoded again."""

_ID, _TIMESTAMP, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_WANTED = {
    "whsec_": (range(24, 65), "24 to 64 bytes, as `new_secret()` makes it"),
    "whsk_": ((32, 64), "an ed25519 private key of 32 bytes, or of 64 with its public half"),
    "whpk_": ((32,), "an ed25519 public key of 32 bytes"),
}
_TEXT = re.compile(r"[\t -~]*")
_MESSAGE_ID = re.compile(r"[!-\-/-~]{1,256}")
_SECONDS = re.compile(r"[0-9]{1,12}")


class Verified(msgspec.Struct, frozen=True):
    """A message whose signature holds. Its id is the same at every attempt: do not act on one id twice."""

    message_id: str
    timestamp: int


class KeyPair(msgspec.Struct, frozen=True):
    """An ed25519 pair: the sender keeps `private` (`whsk_`), receivers get `public` (`whpk_`)."""

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public)]


def new_secret() -> str:
    """A fresh shared secret. Give every destination its own."""
    return "whsec_" + _text(token_bytes(32))


def new_key_pair() -> KeyPair:
    """A fresh ed25519 pair, for receivers who should be able to verify but not to sign."""
    with cryptography_needed("an ed25519 key"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    seed = token_bytes(32)
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return KeyPair("whsk_" + _text(seed + public), "whpk_" + _text(public))


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers for one attempt: the same id every time, a fresh timestamp, one signature per secret."""
    moment = _named(message_id, timestamp)
    content = _content(message_id, moment, body)
    signatures = [_signature(kind, key, content) for kind, key in _decoded(secrets, "whsec_", "whsk_")]
    return {_ID: message_id, _TIMESTAMP: moment, _SIGNATURE: " ".join(signatures)}


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secrets: str | Sequence[str],
    *,
    tolerance: Duration = "5m",
    now: float | None = None,
) -> Verified:
    """Check a webhook that arrived: one of the signatures must hold for one of the secrets, else `BadSignature`.

    Take the body as it came over the wire, before anything parses it. A malformed secret is a `BadOption`.

    >>> SECRET = new_secret()
    >>> seen = set()
    >>> def receive(body, headers):
    ...     try:
    ...         message = verify(body, headers, SECRET)
    ...     except BadSignature:
    ...         return 401
    ...     if message.message_id not in seen:  # a table of yours, written in the transaction that acts on the message
    ...         seen.add(message.message_id)
    ...     return 204

    >>> headers = sign([SECRET], "msg-1", int(time.time()), b'{"paid": true}')
    >>> receive(b'{"paid": true}', headers)
    204
    >>> receive(b'{"paid": false}', headers)
    401
    """
    keys = _decoded(secrets, "whsec_", "whpk_")
    window = seconds(tolerance, "verify tolerance")
    message_id, timestamp, offered = (field(headers, name) for name in (_ID, _TIMESTAMP, _SIGNATURE))
    if not _MESSAGE_ID.fullmatch(message_id) or not _SECONDS.fullmatch(timestamp):
        raise BadSignature(f"the header {_ID} or {_TIMESTAMP} is malformed")
    if abs((time.time() if now is None else now) - int(timestamp)) > window:
        raise BadSignature(f"the {_TIMESTAMP} is further from this clock than the tolerance allows; check both clocks")
    content, signatures = _content(message_id, timestamp, body), offered.split(" ")
    if not any(_matches(kind, key, content, signatures) for kind, key in keys):
        raise BadSignature("no signature holds for this body; check the secret, and that the body is as it arrived")
    return Verified(message_id, int(timestamp))


def field(headers: Mapping[str, str], name: str) -> str:
    """The value of a header, in whatever case its name is spelled; several lines become one, as HTTP has it."""
    lines = [value for spelled, value in headers.items() if isinstance(spelled, str) and spelled.lower() == name]
    if not lines:
        raise BadSignature(f"the header {brief(name)} is missing")
    if not all(isinstance(line, str) for line in lines) or sum(map(len, lines)) > LONGEST_HEADER:
        raise BadSignature(f"the header {brief(name)} is not text of at most {LONGEST_HEADER} characters")
    value = ", ".join(line.strip(" \t") for line in lines)
    if not _TEXT.fullmatch(value):
        raise BadSignature(f"the header {brief(name)} has characters other than printable ASCII")
    return value


@contextmanager
def cryptography_needed(what: str) -> Iterator[None]:
    """Import `cryptography` within, so that its absence is told with what to install."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(f"{what} needs the package cryptography: pip install 'durably[http]' ({error})") from error


@lru_cache(REMEMBERED, typed=True)
def _named(message_id: str, timestamp: int) -> str:
    """The moment as it is written, unless it or the id cannot be. One message goes to many in the same second."""
    if not _MESSAGE_ID.fullmatch(message_id):
        raise BadOption(f"webhook id: {brief(message_id)} must be 1 to 256 visible ASCII characters, none a full stop")
    moment = str(timestamp)
    if not _SECONDS.fullmatch(moment):
        raise BadOption(f"webhook timestamp: {brief(timestamp)} must be whole seconds since 1970")
    return moment


def _content(message_id: str, timestamp: str, body: bytes) -> bytes:
    """What is signed. An id with a full stop could be split elsewhere, and so could the body: no id has one."""
    return b".".join((message_id.encode(), timestamp.encode(), body))


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(secrets: str | Sequence[str], *kinds: str) -> list[tuple[str, bytes]]:
    """Every secret as its prefix, one of `kinds`, and its bytes. No error shows any of them."""
    listed = [secrets] if isinstance(secrets, str) else list(secrets)
    if not listed:
        raise BadOption("webhook secret: there is none; `new_secret()` makes one")
    try:
        return [_parsed(secret, kinds) for secret in listed]
    except (TypeError, AttributeError):
        raise BadOption("webhook secret: it must be text") from None


@lru_cache(REMEMBERED)
def _parsed(secret: str, kinds: tuple[str, ...]) -> tuple[str, bytes]:
    kind = next((kind for kind in kinds if secret.startswith(kind)), None)
    if kind is None:
        raise BadOption(f"webhook secret: here it must start with {' or '.join(kinds)} (whsk_ signs, whpk_ verifies)")
    lengths, wanted = _WANTED[kind]
    try:
        key = b64decode(secret.removeprefix(kind), validate=True)
    except ValueError:
        raise BadOption(f"webhook secret: after {kind} there must be base64 with its padding: {wanted}") from None
    if len(key) not in lengths:
        raise BadOption(f"webhook secret: after {kind} there are {len(key)} bytes; there must be {wanted}")
    return kind, key


def _signature(kind: str, key: bytes, content: bytes) -> str:
    if kind == "whsec_":
        return "v1," + _text(hmac.digest(key, content, "sha256"))
    with cryptography_needed("an ed25519 signature"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    private = Ed25519PrivateKey.from_private_bytes(key[:32])
    if key[32:] not in (b"", private.public_key().public_bytes_raw()):
        raise BadOption("webhook secret: the two halves after whsk_ do not belong together; copy the whole key again")
    return "v1a," + _text(private.sign(content))


def _matches(kind: str, key: bytes, content: bytes, signatures: list[str]) -> bool:
    if kind == "whsec_":
        expected = _signature(kind, key, content).encode()
        return any(hmac.compare_digest(expected, signature.encode()) for signature in signatures)
    with cryptography_needed("an ed25519 signature"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    public = Ed25519PublicKey.from_public_bytes(key)
    for signature in signatures:
        version, _, encoded = signature.partition(",")
        if version == "v1a":
            try:
                public.verify(b64decode(encoded, validate=True), content)
            except (InvalidSignature, ValueError):
                continue
            return True
    return False
