"""A stand-in for the package `cryptography`, which the tests do not need for anything else. It protects nothing."""

from __future__ import annotations

import secrets
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class Fernet:
    """Seals data so that only the same key can open it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @staticmethod
    def generate_key() -> bytes:
        return secrets.token_bytes(32)

    def encrypt(self, data: bytes) -> bytes:
        return self._key + data[::-1]

    def decrypt(self, data: bytes) -> bytes:
        if not data.startswith(self._key):
            raise ValueError("sealed with another key")
        return data[len(self._key) :][::-1]


class MultiFernet:
    """The first key encrypts, any of them decrypts."""

    def __init__(self, fernets: list[Fernet]) -> None:
        self._fernets = fernets

    def encrypt(self, data: bytes) -> bytes:
        return self._fernets[0].encrypt(data)

    def decrypt(self, data: bytes) -> bytes:
        for fernet in self._fernets[:-1]:
            try:
                return fernet.decrypt(data)
            except ValueError:
                continue
        return self._fernets[-1].decrypt(data)


def provide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `from cryptography.fernet import ...` work, with the real package if it is there."""
    if find_spec("cryptography") is None:
        fernet: Any = ModuleType("cryptography.fernet")
        fernet.Fernet, fernet.MultiFernet = Fernet, MultiFernet
        monkeypatch.setitem(sys.modules, "cryptography", ModuleType("cryptography"))
        monkeypatch.setitem(sys.modules, "cryptography.fernet", fernet)
