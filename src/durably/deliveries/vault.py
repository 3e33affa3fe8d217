"""Secrets at rest: sealed with a key that the store never sees, and bound to the destination that they belong to."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Sequence

import msgspec

from durably.deliveries.webhooks import cryptography_needed
from durably.errors import BadOption

VARIABLE = "DURABLY_SECRETS_KEY"
KEY_BYTES = 32
NONCE_BYTES = 12
REMEMBERED = 10_000
"""Destinations whose secrets were opened, and need not be opened again: the key is in memory as well."""
HOW = f"make one with `durably.deliveries.vault.new_key()`, and set {VARIABLE} or give it as secrets_key="


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    key: str
    nonce: bytes
    text: bytes


def new_key() -> str:
    """A new key, as text."""
    return b64encode(os.urandom(KEY_BYTES)).decode()


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """A secret, and until when it signs: a moment in microseconds, or 0 for good."""

    text: str
    until: int = 0

    def __repr__(self) -> str:
        return f"<secret until {self.until}>" if self.until else "<secret>"


class Vault:
    """Seals and opens the secrets of destinations. Of several keys the first one seals, and all of them open."""

    def __init__(self, keys: Sequence[str] | None = None) -> None:
        given = os.environ.get(VARIABLE, "").split(",") if keys is None else keys
        self._keys = [_decoded(key.strip()) for key in given if key.strip()]
        self._opened: dict[tuple[bytes, str, str], tuple[Secret, ...]] = {}
        self._lasting: dict[tuple[bytes, str, str], tuple[str, ...]] = {}
        """Those of which none will ever end."""

    def __repr__(self) -> str:
        return f"<vault with {len(self._keys)} keys>"

    @property
    def empty(self) -> bool:
        """Whether it has no key."""
        return not self._keys

    def seal(self, secrets: Sequence[Secret], namespace: str, name: str) -> bytes | None:
        """The secrets as they are stored for a destination; None for none at all."""
        if not secrets:
            return None
        if not self._keys:
            raise BadOption(f"there is no key to keep the secrets of destinations with: {HOW}")
        with cryptography_needed("a secret"):
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_BYTES)
        text = AESGCM(self._keys[0]).encrypt(nonce, msgspec.json.encode(list(secrets)), _place(namespace, name))
        return msgspec.json.encode(_Sealed(_name(self._keys[0]), nonce, text))

    def open(self, sealed: bytes | None, namespace: str, name: str, now: int) -> tuple[str, ...]:
        """The secrets that were sealed for this destination, as far as they still sign at this moment."""
        if sealed is None:
            return ()
        place = (sealed, namespace, name)
        lasting = self._lasting.get(place)
        if lasting is not None:
            return lasting
        known = self._opened.get(place)
        if known is None:
            if len(self._opened) >= REMEMBERED:
                self._opened.clear()
                self._lasting.clear()
            known = self._opened[place] = self._open(sealed, namespace, name)
            if not any(secret.until for secret in known):
                self._lasting[place] = tuple(secret.text for secret in known)
        return tuple(secret.text for secret in known if not secret.until or secret.until > now)

    def _open(self, sealed: bytes, namespace: str, name: str) -> tuple[Secret, ...]:
        with cryptography_needed("a secret"):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        try:
            found = msgspec.json.decode(sealed, type=_Sealed)
            for key in self._keys:
                if _name(key) == found.key:
                    plain = AESGCM(key).decrypt(found.nonce, found.text, _place(namespace, name))
                    return msgspec.json.decode(plain, type=tuple[Secret, ...])
        except (msgspec.MsgspecError, InvalidTag, ValueError):
            raise BadOption(
                f"the secrets of {name!r} cannot be opened: they were damaged, or moved from elsewhere"
            ) from None
        raise BadOption(f"the secrets of {name!r} were sealed with the key {found.key!r}, which is not here: {HOW}")


def _place(namespace: str, name: str) -> bytes:
    """What sealed secrets are bound to: at another destination they cannot be opened."""
    return f"{namespace}/{name}".encode()


def _decoded(key: str) -> bytes:
    try:
        plain = b64decode(key, validate=True)
    except (Error, ValueError):
        plain = b""
    if len(plain) != KEY_BYTES:
        raise BadOption(f"secrets_key: a key is {KEY_BYTES} bytes in base64; {HOW}")
    return plain


def _name(key: bytes) -> str:
    """What a key is called, which does not tell it."""
    from hashlib import blake2b

    return blake2b(key, digest_size=4, person=b"durably-key").hexdigest()
