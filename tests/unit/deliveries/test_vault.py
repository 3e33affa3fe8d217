"""Secrets at rest: only whoever has the key reads them, and only where they belong."""

from __future__ import annotations

import pytest

from durably.deliveries.vault import VARIABLE, Secret, Vault, new_key
from durably.errors import BadOption

TEXTS = ("whsec_new", "whsec_old")
SECRETS = [Secret(text) for text in TEXTS]
NOW = 1_000


def test_what_is_sealed_can_be_opened_and_cannot_be_read() -> None:
    vault = Vault([new_key()])
    sealed = vault.seal(SECRETS, "default", "acme")

    assert sealed is not None
    assert vault.open(sealed, "default", "acme", NOW) == TEXTS
    assert b"whsec" not in sealed
    assert vault.seal(SECRETS, "default", "acme") != sealed
    assert (vault.seal((), "default", "acme"), vault.open(None, "default", "acme", NOW)) == (None, ())


@pytest.mark.parametrize(("namespace", "name"), [("default", "other"), ("other", "acme")])
def test_what_was_moved_to_another_destination_cannot_be_opened(namespace: str, name: str) -> None:
    vault = Vault([new_key()])

    with pytest.raises(BadOption, match="damaged, or moved"):
        vault.open(vault.seal(SECRETS, "default", "acme"), namespace, name, NOW)


@pytest.mark.parametrize("spoil", [lambda sealed: sealed[:-6] + b'AAAA"]', lambda _: b"{}", lambda _: b"\xff"])
def test_what_was_damaged_is_called_so(spoil: object) -> None:
    vault = Vault([new_key()])
    sealed = vault.seal(SECRETS, "default", "acme")

    with pytest.raises(BadOption, match="damaged, or moved"):
        vault.open(spoil(sealed), "default", "acme", NOW)  # type: ignore[operator]


def test_the_first_key_seals_and_every_key_opens() -> None:
    old, new = new_key(), new_key()
    sealed = Vault([old]).seal(SECRETS, "default", "acme")
    both = Vault([new, old])

    assert both.open(sealed, "default", "acme", NOW) == TEXTS
    assert Vault([new]).open(both.seal(SECRETS, "default", "acme"), "default", "acme", NOW) == TEXTS
    with pytest.raises(BadOption, match="which is not here") as caught:
        Vault([new]).open(sealed, "default", "acme", NOW)
    assert old not in str(caught.value)


def test_without_a_key_nothing_is_sealed_and_the_error_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Vault().empty
    with pytest.raises(BadOption, match=f"new_key.*{VARIABLE}"):
        Vault().seal(SECRETS, "default", "acme")

    monkeypatch.setenv(VARIABLE, f"{new_key()}, {new_key()}")
    assert not Vault().empty


@pytest.mark.parametrize("key", ["short", "!" * 44, "QUJD"])
def test_a_bad_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(BadOption, match="a key is 32 bytes in base64") as caught:
        Vault([key])

    assert key not in str(caught.value)
    assert key not in repr(Vault([new_key()]))


def test_a_secret_signs_until_its_moment_has_come_and_shows_itself_nowhere() -> None:
    vault = Vault([new_key()])
    sealed = vault.seal([Secret("whsec_new"), Secret("whsec_old", NOW)], "default", "acme")

    assert vault.open(sealed, "default", "acme", NOW - 1) == ("whsec_new", "whsec_old")
    assert vault.open(sealed, "default", "acme", NOW) == ("whsec_new",)
    assert "whsec" not in repr([Secret("whsec_new"), Secret("whsec_old", NOW), vault])


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durably.deliveries.vault.REMEMBERED", 2)
    vault = Vault([new_key()])
    for name in ("a", "b", "c", "a"):
        assert vault.open(vault.seal(SECRETS, "default", name), "default", name, NOW) == TEXTS
        assert len(vault._opened) <= 2
