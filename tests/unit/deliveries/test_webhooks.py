"""Standard Webhooks: what we sign others can verify, what others sign we can, and nothing else passes."""

from __future__ import annotations

import doctest
import sys
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from durably.deliveries import webhooks
from durably.deliveries.webhooks import (
    LONGEST_HEADER,
    KeyPair,
    Verified,
    field,
    new_key_pair,
    new_secret,
    sign,
    verify,
)
from durably.errors import BadOption, BadSignature, DurablyError, MissingPackage

ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
BODY = b'{"test": 2432232314}'
WHEN = 1614265330

# The vectors that implementations of the specification share.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SHARED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
ASYMMETRIC = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="

OTHER = "whsec_" + b64encode(b"another secret of 32 bytes here!").decode()
ids = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="."), min_size=1, max_size=80)
moments = st.integers(0, 10**12 - 1)
unhurried = settings(deadline=None)


def signed(secrets: list[str] | None = None, **changes: str) -> dict[str, str]:
    headers = sign(secrets or [SECRET], ID, WHEN, BODY)
    return headers | {name.replace("_", "-"): value for name, value in changes.items()}


def secret_of(size: int, prefix: str = "whsec_") -> str:
    return prefix + b64encode(bytes(range(size))).decode()


def test_a_message_is_signed_as_the_vector_says() -> None:
    assert sign([SECRET], ID, WHEN, BODY) == {
        "webhook-id": ID,
        "webhook-timestamp": str(WHEN),
        "webhook-signature": SHARED,
    }


@pytest.mark.parametrize("private", [PRIVATE, "whsk_" + b64encode(b64decode(PRIVATE[5:])[:32]).decode()])
def test_a_private_key_signs_as_the_vector_says_with_and_without_its_public_half(private: str) -> None:
    assert sign([private], ID, WHEN, BODY)["webhook-signature"] == ASYMMETRIC


def test_what_is_signed_with_a_private_key_is_verified_with_its_public_key() -> None:
    assert verify(BODY, signed([PRIVATE]), PUBLIC, now=WHEN) == Verified(ID, WHEN)
    with pytest.raises(BadSignature):
        verify(BODY, signed([PRIVATE]), new_key_pair().public, now=WHEN)


@unhurried
@given(message_id=ids, body=st.text())
def test_the_reference_library_accepts_what_we_sign(message_id: str, body: str) -> None:
    secret, now = new_secret(), int(time.time())
    headers = sign([OTHER, secret], message_id, now, body.encode())

    Webhook(secret).verify(body.encode(), headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body.encode() + b" ", headers, json_parse=False)


@unhurried
@given(message_id=ids, body=st.text(), when=st.integers(0, 4 * 10**9))
def test_we_accept_what_the_reference_library_signs(message_id: str, body: str, when: int) -> None:
    secret = new_secret()
    signature = Webhook(secret).sign(message_id, datetime.fromtimestamp(when, UTC), body)
    headers = {"webhook-id": message_id, "webhook-timestamp": str(when), "webhook-signature": signature}

    assert verify(body.encode(), headers, secret, now=when) == Verified(message_id, when)


@unhurried
@given(message_id=ids, when=moments, body=st.binary(), key=st.binary(min_size=24, max_size=64))
def test_whatever_is_signed_is_verified(message_id: str, when: int, body: bytes, key: bytes) -> None:
    pair, secret = new_key_pair(), "whsec_" + b64encode(key).decode()
    headers = sign([secret, pair.private], message_id, when, body)

    assert verify(body, headers, secret, now=when) == Verified(message_id, when)
    assert verify(body, headers, pair.public, now=when) == Verified(message_id, when)


def test_during_a_rotation_either_secret_will_do_on_either_side() -> None:
    both = signed([OTHER, SECRET])

    assert both["webhook-signature"].split(" ")[1] == SHARED
    for secrets in (OTHER, SECRET, [SECRET, new_secret()], (new_secret(), OTHER)):
        assert verify(BODY, both, secrets, now=WHEN) == Verified(ID, WHEN)
    assert verify(BODY, signed([SECRET]), [OTHER, SECRET], now=WHEN) == Verified(ID, WHEN)
    with pytest.raises(BadSignature):
        verify(BODY, both, new_secret(), now=WHEN)


def test_a_rotation_may_go_from_a_secret_to_a_key() -> None:
    both = signed([SECRET, PRIVATE])

    assert both["webhook-signature"] == f"{SHARED} {ASYMMETRIC}"
    assert verify(BODY, both, SECRET, now=WHEN) == verify(BODY, both, [OTHER, PUBLIC], now=WHEN)


@pytest.mark.parametrize("secrets", [[SECRET], [PRIVATE]])
@pytest.mark.parametrize(
    "changes",
    [
        {"webhook_id": ID + "x"},
        {"webhook_id": ID[:-1]},
        {"webhook_timestamp": str(WHEN + 1)},
        {"webhook_timestamp": f"0{WHEN}"},
        {"webhook_signature": SHARED.replace("g0hM", "g0hN")},
        {"webhook_signature": ASYMMETRIC.replace("hnO3", "hnO4")},
    ],
)
def test_nothing_that_is_signed_can_be_changed(secrets: list[str], changes: dict[str, str]) -> None:
    with pytest.raises(BadSignature):
        verify(BODY, signed(secrets, **changes), [SECRET, PUBLIC], now=WHEN)


@pytest.mark.parametrize("secrets", [[SECRET], [PRIVATE]])
@pytest.mark.parametrize("body", [b"", BODY + b" ", BODY.replace(b"2", b"3", 1), BODY[1:]])
def test_the_body_cannot_be_changed(secrets: list[str], body: bytes) -> None:
    with pytest.raises(BadSignature):
        verify(body, signed(secrets), [SECRET, PUBLIC], now=WHEN)


@pytest.mark.parametrize(("distance", "tolerance"), [(300, "5m"), (1, 1), (0, 0), (90, "1m30s")])
def test_the_timestamp_may_be_off_by_the_tolerance_and_no_more(distance: int, tolerance: str | int) -> None:
    for way in (1, -1):
        assert verify(BODY, signed(), SECRET, tolerance=tolerance, now=WHEN + way * distance).timestamp == WHEN
        with pytest.raises(BadSignature, match="tolerance"):
            verify(BODY, signed(), SECRET, tolerance=tolerance, now=WHEN + way * (distance + 0.5))


def test_the_tolerance_is_five_minutes_and_the_time_is_that_of_the_host_unless_told() -> None:
    now = int(time.time())

    assert verify(BODY, sign([SECRET], ID, now, BODY), SECRET) == Verified(ID, now)
    assert verify(BODY, signed(), SECRET, now=WHEN + 300) == Verified(ID, WHEN)
    for late in (now - 400, now + 400):
        with pytest.raises(BadSignature, match="tolerance"):
            verify(BODY, sign([SECRET], ID, late, BODY), SECRET)
    with pytest.raises(BadOption, match="tolerance"):
        verify(BODY, signed(), SECRET, tolerance="soon", now=WHEN)


def test_names_of_headers_have_no_case() -> None:
    shouted = {name.upper(): value for name, value in signed().items()}

    assert verify(BODY, {"Host": "x", **shouted}, SECRET, now=WHEN) == Verified(ID, WHEN)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_every_header_is_needed_and_only_once(name: str) -> None:
    headers = signed()
    twice = headers | {name.title(): headers[name].replace("e", "f").replace("3", "4")}
    without = {other: value for other, value in headers.items() if other != name}

    with pytest.raises(BadSignature, match=f"'{name}' is missing"):
        verify(BODY, without, SECRET, now=WHEN)
    with pytest.raises(BadSignature):
        verify(BODY, twice, SECRET, now=WHEN)


def test_signatures_of_other_kinds_are_passed_over() -> None:
    odd = f"v1 v1, ,x v2,{SHARED[3:]} v1a,%% v1a,AAAA v1,é".replace("é", "e")

    assert verify(BODY, signed(webhook_signature=f"{odd} {SHARED}"), SECRET, now=WHEN)
    assert verify(BODY, signed(webhook_signature=f"{odd} {ASYMMETRIC}"), PUBLIC, now=WHEN)
    with pytest.raises(BadSignature):
        verify(BODY, signed(webhook_signature=odd), [SECRET, PUBLIC], now=WHEN)


def test_a_signature_of_one_kind_is_none_of_the_other() -> None:
    for secret, swapped in ((SECRET, "v1a" + SHARED[2:]), (PUBLIC, "v1" + ASYMMETRIC[3:])):
        with pytest.raises(BadSignature):
            verify(BODY, signed(webhook_signature=swapped), secret, now=WHEN)


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\r\nx: y", "a\0", "é", "x" * 257])
def test_an_id_that_could_be_read_in_two_ways_is_refused_on_both_sides(message_id: str) -> None:
    with pytest.raises(BadOption, match="webhook id"):
        sign([SECRET], message_id, WHEN, BODY)
    with pytest.raises(BadSignature):
        verify(BODY, signed(webhook_id=message_id), SECRET, now=WHEN)


def test_the_start_of_a_body_cannot_be_passed_off_as_the_timestamp() -> None:
    headers = sign([SECRET], "msg", WHEN, f"{WHEN + 1}.rest".encode())
    shifted = headers | {"webhook-id": f"msg.{WHEN}", "webhook-timestamp": str(WHEN + 1)}

    with pytest.raises(BadSignature):
        verify(b"rest", shifted, SECRET, now=WHEN)


@pytest.mark.parametrize("timestamp", [-1, 1.5, True, "now", 10**12])
def test_a_timestamp_is_whole_seconds_since_1970(timestamp: Any) -> None:
    with pytest.raises(BadOption, match="timestamp"):
        sign([SECRET], ID, timestamp, BODY)
    with pytest.raises(BadSignature):
        verify(BODY, signed(webhook_timestamp=str(timestamp)), SECRET, now=WHEN)


@pytest.mark.parametrize("timestamp", ["+1614265330", " 1614265330 1", "1_614_265_330", "1614265330.0", "१६१४२६५३३०"])
def test_a_timestamp_has_one_spelling(timestamp: str) -> None:
    with pytest.raises(BadSignature):
        verify(BODY, signed(webhook_timestamp=timestamp), SECRET, now=WHEN)


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_has_24_to_64_bytes(size: int) -> None:
    assert verify(BODY, signed([secret_of(size)]), secret_of(size), now=WHEN) == Verified(ID, WHEN)


CANARY = "Y2FuYXJ5"
BAD_SECRETS = {
    "none": "",
    "no prefix": CANARY * 4,
    "another prefix": "whsecret_" + CANARY * 4,
    "another case": "WHSEC_" + CANARY * 4,
    "too short": "whsec_" + b64encode(b"x" * 23).decode(),
    "too long": "whsec_" + b64encode(b"x" * 65).decode(),
    "empty": "whsec_",
    "not base64": f"whsec_{CANARY * 4}!!!!",
    "not ASCII": f"whsec_{CANARY * 4}éééé",
    "base64 for URLs": f"whsec_{CANARY * 4}_-_-",
    "without its padding": "whsec_" + b64encode(b"x" * 25).decode().rstrip("="),
    "a line end": f"whsec_{CANARY * 4}\n",
}
BAD_KEYS = {
    "private key too short": secret_of(31, "whsk_"),
    "private key too long": secret_of(33, "whsk_"),
    "halves of two keys": secret_of(64, "whsk_"),
    "a public key that should sign": PUBLIC,
}
BAD_PUBLIC_KEYS = {
    "public key too short": secret_of(31, "whpk_"),
    "public key too long": secret_of(64, "whpk_"),
    "a private key that should verify": PRIVATE,
}


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def refusal_shows_nothing(error: DurablyError, secret: str) -> bool:
    hidden = secret.partition("_")[2].strip()
    return not hidden or (hidden[:8] not in told(error) and CANARY not in told(error))


@pytest.mark.parametrize("secret", (BAD_SECRETS | BAD_KEYS).values(), ids=(BAD_SECRETS | BAD_KEYS).keys())
def test_no_one_signs_with_a_bad_secret_and_its_refusal_does_not_show_it(secret: str) -> None:
    with pytest.raises(BadOption, match="webhook secret: ") as refused:
        sign([SECRET, secret], ID, WHEN, BODY)
    assert refusal_shows_nothing(refused.value, secret)


@pytest.mark.parametrize("secret", (BAD_SECRETS | BAD_PUBLIC_KEYS).values(), ids=(BAD_SECRETS | BAD_PUBLIC_KEYS).keys())
def test_no_one_verifies_with_a_bad_secret_even_if_another_fits(secret: str) -> None:
    with pytest.raises(BadOption, match="webhook secret: ") as refused:
        verify(BODY, signed(), [SECRET, secret], now=WHEN)
    assert refusal_shows_nothing(refused.value, secret)


@pytest.mark.parametrize("secrets", [[], (), [None], [b"whsec_"], [7]])
def test_a_secret_is_text_and_there_is_one(secrets: Any) -> None:
    with pytest.raises(BadOption, match="webhook secret: "):
        sign(secrets, ID, WHEN, BODY)
    with pytest.raises(BadOption, match="webhook secret: "):
        verify(BODY, signed(), secrets, now=WHEN)


def test_new_secrets_and_keys_are_new_each_time_and_of_full_length() -> None:
    secrets, pairs = {new_secret() for _ in range(20)}, {new_key_pair() for _ in range(20)}

    assert len(secrets) == len(pairs) == 20
    assert {len(b64decode(secret.removeprefix("whsec_"))) for secret in secrets} == {32}
    assert {len(b64decode(pair.private.removeprefix("whsk_"))) for pair in pairs} == {64}
    assert {len(b64decode(pair.public.removeprefix("whpk_"))) for pair in pairs} == {32}


def test_a_pair_of_keys_does_not_show_its_private_half() -> None:
    pair = KeyPair(PRIVATE, PUBLIC)

    assert PUBLIC in repr(pair)
    assert PRIVATE[5:20] not in f"{pair!r} {pair} {pair.__rich_repr__()}"


def test_no_refusal_says_what_would_have_been_right() -> None:
    with pytest.raises(BadSignature) as refused:
        verify(BODY, signed(webhook_signature="v1,AAAA"), SECRET, now=WHEN)

    assert SHARED[3:12] not in told(refused.value)
    assert SECRET[6:14] not in told(refused.value)


@pytest.fixture
def without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)


@pytest.mark.usefixtures("without_cryptography")
def test_shared_secrets_need_no_package() -> None:
    assert verify(BODY, signed([new_secret(), SECRET]), SECRET, now=WHEN) == Verified(ID, WHEN)


@pytest.mark.usefixtures("without_cryptography")
def test_keys_say_which_package_they_need() -> None:
    for use in (new_key_pair, lambda: signed([PRIVATE]), lambda: verify(BODY, signed(), PUBLIC, now=WHEN)):
        with pytest.raises(MissingPackage, match=r"pip install 'durably\[http\]'"):
            use()


hostile = st.one_of(
    st.text(max_size=200),
    st.text(st.sampled_from("v1a,= \t\0\r\n.é\ud800\u212a0123AZaz+/"), max_size=200),
    st.sampled_from(["v1," * LONGEST_HEADER, "A" * 10**6, "9" * 10**5, "v1a," + "A" * 4000, "\0", "\ud800"]),
    st.none(),
    st.binary(),
    st.integers(),
)


@unhurried
@given(
    names=st.lists(st.sampled_from(["webhook-id", "Webhook-Timestamp", "WEBHOOK-SIGNATURE"]), unique=True, min_size=1),
    values=st.lists(hostile, min_size=3, max_size=3),
    stray=st.dictionaries(st.one_of(st.text(), st.none(), st.integers()), hostile, max_size=3),
)
def test_hostile_headers_are_refused_and_nothing_else_happens(
    names: list[str], values: list[Any], stray: dict[Any, Any]
) -> None:
    changed = dict(zip((name.lower() for name in names), values, strict=False))
    headers: Mapping[str, str] = {**stray, **signed([SECRET, PRIVATE]), **changed}

    with pytest.raises(BadSignature):
        verify(BODY, headers, [SECRET, PUBLIC], now=WHEN)


def test_a_header_is_read_up_to_a_limit() -> None:
    longest = SHARED.rjust(LONGEST_HEADER)

    assert verify(BODY, signed(webhook_signature=longest), SECRET, now=WHEN)
    with pytest.raises(BadSignature, match=str(LONGEST_HEADER)):
        verify(BODY, signed(webhook_signature=" " + longest), SECRET, now=WHEN)


def test_lines_of_one_header_are_joined() -> None:
    assert field({"A": " 1\t", "b": "2", "a": "3 "}, "a") == "1, 3"


def test_the_example_for_receivers_works() -> None:
    assert doctest.testmod(webhooks, raise_on_error=True).attempted > 3
