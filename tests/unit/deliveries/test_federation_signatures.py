"""HTTP signatures for federation: both kinds against their specifications, an independent library, hostile peers."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, MappingKeyResolver
from http_message_signatures.algorithms import ED25519, RSA_V1_5_SHA256
from hypothesis import given, settings
from hypothesis import strategies as st

from durably.deliveries import federation
from durably.deliveries.federation import (
    MOST_SIGNATURES,
    Key,
    Request,
    averify,
    sign_cavage,
    sign_rfc9421,
    signature_base,
    verify,
)
from durably.deliveries.webhooks import LONGEST_HEADER
from durably.errors import BadOption, BadSignature, MissingPackage

Private = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
Sign = Callable[[Key, str, str, bytes, str, float], dict[str, str]]

URL = "https://peer.example/inbox?shared=1"
BODY = b'{"type": "Create", "actor": "https://home.example/users/ana"}'
TYPE = 'application/ld+json; profile="https://www.w3.org/ns/activitystreams"'
WHEN = 1_700_000_000
KEY_ID = "https://home.example/users/ana#main-key"
RSA, ED = "rsa-v1_5-sha256", "ed25519"

unhurried = settings(deadline=None)


def pem_of(private: Private, encryption: KeySerializationEncryption | None = None) -> str:
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()).decode()


@cache
def public_of(private: str) -> str:
    loaded = load_pem_private_key(private.encode(), None)
    return loaded.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@cache
def rsa_pem(name: str = "ana", bits: int = 2048) -> str:
    """A key that is the same for the same name, since a new one takes a while."""
    return pem_of(rsa.generate_private_key(65537, bits))


@cache
def ed_pem(name: str = "ana") -> str:
    return pem_of(ed25519.Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


KINDS: dict[str, tuple[Sign, Callable[[], str]]] = {
    "cavage": (sign_cavage, rsa_pem),
    "rfc9421 with rsa": (sign_rfc9421, rsa_pem),
    "rfc9421 with ed25519": (sign_rfc9421, ed_pem),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def signed(
    kind: str,
    *,
    key: Key | None = None,
    method: str = "POST",
    url: str = URL,
    body: bytes = BODY,
    content_type: str = TYPE,
    now: float = WHEN,
) -> dict[str, str]:
    sign, pem = KINDS[kind]
    return sign(key or Key(KEY_ID, pem()), method, url, body, content_type, now)


def keys(pem: str, key_id: str = KEY_ID) -> Callable[[str], str]:
    """A look-up that knows one key and raises KeyError for any other."""
    return {key_id: public_of(pem)}.__getitem__


def accepts(headers: Mapping[str, str], key_for: Callable[[str], str] | None = None, **changes: Any) -> bool:
    """Whether the post of these tests is accepted with these headers, from whoever has the key of that kind."""
    fallback = keys(rsa_pem() if f'alg="{ED}"' not in headers.get("signature-input", "") else ed_pem())
    arguments = {"method": "POST", "url": URL, "body": BODY, "now": WHEN, "key_for": key_for or fallback, **changes}
    try:
        return verify(headers=headers, **arguments) == KEY_ID
    except BadSignature:
        return False


def refusal(headers: Mapping[str, str], **changes: Any) -> str:
    arguments = {"method": "POST", "url": URL, "body": BODY, "now": WHEN, "key_for": keys(rsa_pem()), **changes}
    with pytest.raises(BadSignature) as refused:
        verify(headers=headers, **arguments)
    return str(refused.value)


def by_hand(pem: str, base: bytes) -> str:
    private = load_pem_private_key(pem.encode(), None)
    if isinstance(private, rsa.RSAPrivateKey):
        return b64encode(private.sign(base, padding.PKCS1v15(), SHA256())).decode()
    assert isinstance(private, ed25519.Ed25519PrivateKey)
    return b64encode(private.sign(base)).decode()


def content_digest(body: bytes = BODY, name: str = "sha256") -> str:
    return f"{name[:3]}-{name[3:]}=:{b64encode(hashlib.new(name, body).digest()).decode()}:"


FULL = ("@method", "@target-uri", "content-digest")
USUAL = f';created={WHEN};keyid="{KEY_ID}"'


def rfc9421(
    covered: Sequence[str] = FULL,
    parameters: str = USUAL,
    *,
    pem: str | None = None,
    label: str = "sig1",
    sent: str | None = None,
    **headers: str,
) -> dict[str, str]:
    """A true signature over whatever the test wants; `sent` is what Signature-Input says instead of what was signed."""
    given = {"content-digest": content_digest(), **{name.replace("_", "-"): value for name, value in headers.items()}}
    listed = f"({' '.join(f'{name!r}' for name in covered)})".replace("'", '"') + parameters
    signature = by_hand(pem or rsa_pem(), signature_base(covered, listed, Request.of("POST", URL, given, BODY)))
    return {**given, "signature-input": f"{label}={sent or listed}", "signature": f"{label}=:{signature}:"}


def together(*signatures: dict[str, str]) -> dict[str, str]:
    """One request with the signatures of several."""
    joined = {name: ", ".join(each[name] for each in signatures) for name in ("signature-input", "signature")}
    return signatures[0] | joined


DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
CAVAGE_FULL = "(request-target) host date digest"


def cavage(
    covered: str = CAVAGE_FULL,
    parameters: str = 'algorithm="rsa-sha256"',
    created: str = "",
    *,
    pem: str | None = None,
    **headers: str,
) -> dict[str, str]:
    """A true cavage signature over whatever the test wants."""
    given = {
        "host": "peer.example",
        "date": DATE,
        "digest": f"SHA-256={b64encode(hashlib.sha256(BODY).digest()).decode()}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    special = {"(request-target)": "post /inbox?shared=1", "(created)": created, "(expires)": created}
    base = "\n".join(f"{name}: {special.get(name) or given[name]}" for name in covered.lower().split())
    signature = by_hand(pem or rsa_pem(), base.encode())
    return {**given, "signature": f'keyId="{KEY_ID}",{parameters},headers="{covered}",signature="{signature}"'}


# What both kinds have in common.


@every_kind
def test_what_is_signed_is_verified_and_tells_the_key(kind: str) -> None:
    headers = signed(kind)

    assert verify("POST", URL, headers, BODY, keys(KINDS[kind][1]()), now=WHEN) == KEY_ID
    assert verify("post", URL, {k.upper(): v for k, v in headers.items()}, BODY, keys(KINDS[kind][1]()), now=WHEN)


@every_kind
async def test_the_async_twin_does_the_same(kind: str) -> None:
    async def key_for(key_id: str) -> str:
        return keys(KINDS[kind][1]())(key_id)

    assert await averify("POST", URL, signed(kind), BODY, key_for, now=WHEN) == KEY_ID
    with pytest.raises(BadSignature):
        await averify("POST", URL, signed(kind), BODY + b" ", key_for, now=WHEN)
    with pytest.raises(BadSignature, match="no signature holds"):
        await averify("POST", URL, signed(kind, key=Key("https://x.example", rsa_pem())), BODY, key_for, now=WHEN)
    with pytest.raises(BadSignature):
        await averify("POST", URL, signed(kind), BODY, key_for, now=WHEN + 3601)


paths = st.from_regex(r"(/[!\"$->@-~]{0,20})?(\?[!\"$-~]{0,20})?", fullmatch=True)


@unhurried
@given(
    kind=st.sampled_from(sorted(KINDS)),
    method=st.sampled_from(["POST", "PUT", "delete"]),
    host=st.from_regex(r"[A-Za-z0-9_-]{1,10}(\.[a-z0-9]{1,5}){0,2}(:[1-9][0-9]{0,3})?|\[::1\](:80)?", fullmatch=True),
    scheme=st.sampled_from(["http", "https", "HTTPS"]),
    path=paths,
    body=st.binary(),
    content_type=st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True),
    when=st.integers(0, 4 * 10**9),
)
def test_whatever_is_signed_is_verified(
    kind: str, method: str, host: str, scheme: str, path: str, body: bytes, content_type: str, when: int
) -> None:
    url = f"{scheme}://{host}{path}"
    headers = signed(kind, method=method, url=url, body=body, content_type=content_type, now=when + 0.9)

    assert verify(method, url, headers, body, keys(KINDS[kind][1]()), tolerance=0, now=when) == KEY_ID


@every_kind
def test_no_part_of_the_request_can_be_changed(kind: str) -> None:
    headers = signed(kind)

    assert accepts(headers)
    assert not accepts(headers, method="PUT")
    assert not accepts(headers, body=BODY + b" ")
    assert not accepts(headers, body=b"")
    assert not accepts(headers, url="https://other.example/inbox?shared=1")
    assert not accepts(headers, url="https://peer.example:8443/inbox?shared=1")
    assert not accepts(headers, url="https://peer.example/outbox?shared=1")
    assert not accepts(headers, url="https://peer.example/inbox?shared=2")
    assert not accepts(headers, url="https://peer.example/inbox")
    assert not accepts(headers | {"content-type": "text/html"})


@every_kind
def test_no_header_of_the_signature_can_be_changed_left_out_or_sent_twice(kind: str) -> None:
    headers = signed(kind)
    for name, value in headers.items():
        assert not accepts({other: text for other, text in headers.items() if other != name}), name
        assert not accepts(headers | {name.title(): value}), name
        for at in range(0, len(value), 7):
            changed = value[:at] + ("x" if value[at] != "x" else "y") + value[at + 1 :]
            if kind != "cavage" or "rsa-sha256" in changed.partition("algorithm=")[2] or name != "signature":
                assert not accepts(headers | {name: changed}), (name, changed)


@every_kind
def test_a_new_body_with_its_own_digest_is_refused(kind: str) -> None:
    forged = b'{"type": "Delete"}'
    digests = {name: value for name, value in signed(kind, body=forged).items() if "digest" in name}

    assert len(digests) == 1
    assert not accepts(signed(kind) | digests, body=forged)


@every_kind
def test_another_key_under_the_same_id_is_refused(kind: str) -> None:
    assert accepts(signed(kind))
    for other in (rsa_pem("mallory"), ed_pem("mallory")):
        assert not accepts(signed(kind), keys(other))


@every_kind
def test_a_signature_is_good_for_an_hour_either_way_or_as_long_as_is_asked(kind: str) -> None:
    headers = signed(kind)
    for way in (1, -1):
        assert accepts(headers, now=WHEN + way * 3600)
        assert not accepts(headers, now=WHEN + way * 3601)
        assert accepts(headers, now=WHEN + way * 12 * 3600, tolerance="12h")
        assert not accepts(headers, now=WHEN + way * 31, tolerance="30s")


@every_kind
def test_the_time_is_that_of_the_host_unless_told(kind: str) -> None:
    assert accepts(signed(kind, now=time.time()), now=None)
    assert not accepts(signed(kind), now=None)


@every_kind
@pytest.mark.parametrize(
    "url",
    [
        "https://PEER.example:443/inbox?shared=1",
        "HTTPS://peer.example/inbox?shared=1#top",
        "https://peer.example:/inbox?shared=1",
    ],
)
def test_urls_that_mean_the_same_are_the_same(kind: str, url: str) -> None:
    assert accepts(signed(kind, url=url))
    assert accepts(signed(kind), url=url)


def test_a_url_without_a_path_has_the_path_of_the_root() -> None:
    for kind in KINDS:
        assert accepts(signed(kind, url="https://peer.example?a=b"), url="https://peer.example/?a=b")


BAD_URLS = [
    "",
    "peer.example/inbox",
    "ftp://peer.example/inbox",
    "https:///inbox",
    "https://ana:hunter2@peer.example/inbox",
    "https://peer.example/in box",
    "https://peer.example/inbox\r\nx: y",
    "https://peer.example/inbox\n",
    "https://peer.example/\0",
    "https://péer.example/inbox",
    "https://peer.example/inböx",
    "https://peer.\u212aom/inbox",
    "https://peer.example:port/inbox",
    "https://peer.example:123456/inbox",
    "https://[::1/inbox",
    "https://peer.example/\ud800",
]


@every_kind
@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_cannot_be_sent_is_refused_and_not_shown(kind: str, url: str) -> None:
    with pytest.raises(BadOption, match="URL") as refused:
        signed(kind, url=url)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
    assert "URL" in refusal(signed(kind), url=url)


@every_kind
@pytest.mark.parametrize("method", ["", "PO ST", "POST\r\n", "PÖST", "x" * 33, "\ud800"])
def test_a_method_is_a_word(kind: str, method: str) -> None:
    with pytest.raises(BadOption, match="method"):
        signed(kind, method=method)
    assert "method" in refusal(signed(kind), method=method)


@every_kind
@pytest.mark.parametrize("content_type", ["", " a/b", "a/b ", "a/b\r\nx: y", "a/b\0", "é/b"])
def test_a_content_type_that_cannot_be_sent_is_refused(kind: str, content_type: str) -> None:
    with pytest.raises(BadOption, match="content type"):
        signed(kind, content_type=content_type)


@every_kind
def test_no_key_is_looked_up_for_a_request_that_cannot_be_right(kind: str) -> None:
    asked: list[str] = []

    def key_for(key_id: str) -> str:
        asked.append(key_id)
        raise KeyError(key_id)

    headers = signed(kind)
    assert not accepts(headers, key_for, body=b"x")
    assert not accepts(headers, key_for, now=WHEN + 9999)
    assert asked == []
    assert not accepts(headers, key_for)
    assert asked == [KEY_ID]


@every_kind
@pytest.mark.parametrize(
    "found", ["", "x", "é\ud800", None, b"bytes", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
)
def test_a_peer_whose_key_cannot_be_read_is_refused(kind: str, found: Any) -> None:
    assert not accepts(signed(kind), lambda key_id: found)


@every_kind
def test_a_private_key_in_place_of_the_public_one_is_refused(kind: str) -> None:
    assert not accepts(signed(kind), lambda key_id: KINDS[kind][1]())


@every_kind
def test_trouble_in_the_look_up_is_the_callers(kind: str) -> None:
    def key_for(key_id: str) -> str:
        raise ConnectionError("the peer is down")

    with pytest.raises(ConnectionError, match="the peer is down"):
        accepts(signed(kind), key_for)


def test_a_request_without_any_signature_is_refused() -> None:
    assert refusal({}) == "the header 'signature' is missing"


# Keys.


def test_a_key_does_not_show_its_private_half() -> None:
    key = Key(KEY_ID, rsa_pem())

    assert KEY_ID in repr(key)
    assert rsa_pem()[40:60] not in f"{key!r} {key} {key.__rich_repr__()}"


BAD_KEYS: dict[str, Callable[[], str]] = {
    "empty": lambda: "",
    "garbage": lambda: "hunter2canary",
    "not ASCII": lambda: "hunter2canary\ud800",
    "public": lambda: public_of(rsa_pem()),
    "encrypted": lambda: pem_of(
        ed25519.Ed25519PrivateKey.from_private_bytes(b"x" * 32), BestAvailableEncryption(b"hunter2canary")
    ),
    "cut off": lambda: rsa_pem()[:800],
    "of another kind": lambda: pem_of(ec.generate_private_key(ec.SECP256R1())),
    "too small": lambda: rsa_pem("small", 1024),
}


@pytest.mark.parametrize("pem", BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_a_key_that_cannot_sign_is_refused_at_once_and_not_shown(pem: Callable[[], str]) -> None:
    with pytest.raises(BadOption, match="federation key: ") as refused:
        Key(KEY_ID, pem())
    shown = "".join(traceback.format_exception(refused.value))
    assert "hunter2canary" not in shown
    assert all(line not in shown for line in pem().splitlines())


@pytest.mark.parametrize("key_id", ["", 'a"b', "a\\b", "a b", "a\r\nb", "a\0", "é", "x" * 2049])
def test_the_id_of_a_key_fits_into_both_kinds(key_id: str) -> None:
    with pytest.raises(BadOption, match="federation key: the id"):
        Key(key_id, ed_pem())


def test_a_peers_rsa_key_must_be_neither_small_nor_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = signed("rfc9421 with rsa")

    for least, most, fits in ((2048, 2048, True), (2049, 8192, False), (1024, 2047, False)):
        monkeypatch.setattr(federation, "LEAST_RSA_BITS", least)
        monkeypatch.setattr(federation, "MOST_RSA_BITS", most)
        assert accepts(headers) is fits


def test_cavage_needs_an_rsa_key_and_says_what_to_do() -> None:
    with pytest.raises(BadOption, match="sign_rfc9421"):
        signed("cavage", key=Key(KEY_ID, ed_pem()))


def test_without_cryptography_the_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, federation.__name__)

    with pytest.raises(MissingPackage, match=r"pip install 'durably\[http\]'"):
        importlib.import_module(federation.__name__)


# RFC 9421.

ED_TEST_KEY = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
"""
RSA_TEST_KEY = """-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAhAKYdtoeoy8zcAcR874L8cnZxKzAGwd7v36APp7Pv6Q2jdsPBRrw
WEBnez6d0UDKDwGbc6nxfEXAy5mbhgajzrw3MOEt8uA5txSKobBpKDeBLOsdJKFq
MGmXCQvEG7YemcxDTRPxAleIAgYYRjTSd/QBwVW9OwNFhekro3RtlinV0a75jfZg
kne/YiktSvLG34lw2zqXBDTC5NHROUqGTlML4PlNZS5Ri2U4aCNx2rUPRcKIlE0P
uKxI4T+HIaFpv8+rdV6eUgOrB2xeI1dSFFn/nnv5OoZJEIB+VmuKn3DCUcCZSFlQ
PSXSfBDiUGhwOw76WuSSsf1D4b/vLoJ10wIDAQAB
-----END RSA PUBLIC KEY-----
"""
TEST_BODY = b'{"hello": "world"}'
TEST_DIGEST = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
B_2_6 = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
B_2_6_PARAMETERS = (
    '("date" "@method" "@path" "@authority" "content-type" "content-length")'
    ';created=1618884473;keyid="test-key-ed25519"'
)
PROXY = "https://origin.host.internal.example/foo"
PROXIED = {
    "Host": "origin.host.internal.example",
    "Date": "Tue, 20 Apr 2021 02:07:56 GMT",
    "Content-Type": "application/json",
    "Content-Length": "18",
    "Forwarded": "for=192.0.2.123;host=example.com;proto=https",
    "Content-Digest": TEST_DIGEST,
    "Signature-Input": 'sig1=("@method" "@authority" "@path" "content-digest" "content-type" "content-length")'
    ';created=1618884475;keyid="test-key-ecc-p256", '
    'proxy_sig=("@method" "@authority" "@path" "content-digest" "content-type" "content-length" "forwarded")'
    ';created=1618884480;keyid="test-key-rsa";alg="rsa-v1_5-sha256";expires=1618884540',
    "Signature": "sig1=:X5spyd6CFnAG5QnDyHfqoSNICd+BUP4LYMz2Q0JXlb//4Ijpzp+kve2w4NIyqeAuM7jTDX+sNalzA8ESSaHD3A==:, "
    "proxy_sig=:S6ZzPXSdAMOPjN/6KXfXWNO/f7V6cHm7BXYUh3YD/fRad4BCaRZxP+JH+8XY1I6+8Cy+CM5g92iHgxtRPz+MjniOaYmdkDcnL9cC"
    "pXJleXsOckpURl49GwiyUpZ10KHgOEe11sx3G2gxI8S0jnxQB+Pu68U9vVcasqOWAEObtNKKZd8tSFu7LB5YAv0RAGhB8tmpv7sFnIm9y+7X5kXQ"
    "fi8NMaZaA8i2ZHwpBdg7a6CMfwnnrtflzvZdXAsD3LH2TwevU+/PBPv0B6NMNk93wUs/vfJvye+YuI87HU38lZHowtznbLVdp770I6VHR6WfgS9d"
    "dzirrswsE1w5o0LV/g==:",
}


def test_rfc9421_b_2_6_signs_as_the_rfc_says() -> None:
    headers = {"date": "Tue, 20 Apr 2021 02:07:55 GMT", "content-type": "application/json", "content-length": "18"}
    request = Request.of("POST", "https://example.com/foo?param=Value&Pet=dog", headers, TEST_BODY)
    covered = ["date", "@method", "@path", "@authority", "content-type", "content-length"]

    assert by_hand(ED_TEST_KEY, signature_base(covered, B_2_6_PARAMETERS, request)) == B_2_6


def test_rfc9421_b_2_6_is_refused_as_it_says_nothing_of_the_body() -> None:
    headers = {
        "Date": "Tue, 20 Apr 2021 02:07:55 GMT",
        "Content-Type": "application/json",
        "Content-Length": "18",
        "Content-Digest": TEST_DIGEST,
        "Signature-Input": f"sig-b26={B_2_6_PARAMETERS}",
        "Signature": f"sig-b26=:{B_2_6}:",
    }
    with pytest.raises(BadSignature, match="does not cover content-digest"):
        verify("POST", "https://example.com/foo", headers, TEST_BODY, keys(ED_TEST_KEY), now=1618884473)


def test_rfc9421_4_3_the_signature_of_the_proxy_holds_beside_one_of_a_kind_that_we_do_not_take() -> None:
    found = {
        "test-key-rsa": RSA_TEST_KEY,
        "test-key-ecc-p256": public_of(pem_of(ec.generate_private_key(ec.SECP256R1()))),
    }

    assert verify("POST", PROXY, PROXIED, TEST_BODY, found.__getitem__, now=1618884500) == "test-key-rsa"
    for changed in (PROXIED | {"Forwarded": "for=192.0.2.1"}, PROXIED | {"Content-Length": "19"}):
        with pytest.raises(BadSignature):
            verify("POST", PROXY, changed, TEST_BODY, found.__getitem__, now=1618884500)
    with pytest.raises(BadSignature):
        verify("POST", PROXY, PROXIED, TEST_BODY, found.__getitem__, now=1618884541)
    with pytest.raises(BadSignature, match="does not cover @query"):
        verify("POST", f"{PROXY}?param=Value&Pet=dog", PROXIED, TEST_BODY, found.__getitem__, now=1618884500)


class Message:
    """A request as the independent library wants it."""

    def __init__(self, headers: dict[str, str], url: str = URL) -> None:
        self.method, self.url, self.headers = "POST", url, headers


ALGORITHMS: dict[str, tuple[type, Callable[[], str]]] = {RSA: (RSA_V1_5_SHA256, rsa_pem), ED: (ED25519, ed_pem)}


def resolver(pem: str) -> MappingKeyResolver:
    return MappingKeyResolver(public_keys={KEY_ID: public_of(pem).encode()}, private_keys={KEY_ID: pem.encode()})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_independent_library_accepts_what_we_sign(name: str) -> None:
    algorithm, pem = ALGORITHMS[name]
    verifier = HTTPMessageVerifier(signature_algorithm=algorithm, key_resolver=resolver(pem()))
    headers = signed("rfc9421 with rsa", key=Key(KEY_ID, pem()), now=time.time())

    [result] = verifier.verify(Message(headers), body=BODY, max_age=timedelta(minutes=5))
    assert result.parameters["keyid"] == KEY_ID
    assert [*result.covered_components][:-1] == [
        f'"{one}"' for one in ("@method", "@target-uri", "content-digest", "content-type")
    ]


@pytest.mark.parametrize("include_alg", [True, False])
@pytest.mark.parametrize(
    "covered",
    [
        ("@method", "@target-uri", "content-digest"),
        ("content-digest", "@query", "@path", "@authority", "@method", "@scheme", "content-type"),
        ("@request-target", "@authority", "@method", "content-digest", "date"),
    ],
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_we_accept_what_an_independent_library_signs(name: str, covered: tuple[str, ...], include_alg: bool) -> None:
    algorithm, pem = ALGORITHMS[name]
    signer = HTTPMessageSigner(signature_algorithm=algorithm, key_resolver=resolver(pem()))
    message = Message({"Content-Type": TYPE, "Date": "Tue, 14 Nov 2023 22:13:20 GMT"})
    signer.sign(
        message,
        key_id=KEY_ID,
        covered_component_ids=covered,
        body=BODY,
        nonce='a "quoted\\" one',
        tag="fediverse",
        label="their-label",
        include_alg=include_alg,
    )

    assert verify("POST", URL, message.headers, BODY, keys(pem())) == KEY_ID
    assert not accepts(message.headers, keys(pem()), now=None, body=BODY + b" ")
    assert not accepts(message.headers, keys(pem()), now=None, method="PUT")


@pytest.mark.parametrize(
    "covered",
    [
        FULL,
        ("@method", "@authority", "@path", "@query", "content-digest"),
        ("@method", "@authority", "@request-target", "content-digest"),
        ("content-digest", "@target-uri", "@method", "x-empty"),
    ],
)
def test_a_signature_that_covers_method_url_and_body_is_accepted(covered: tuple[str, ...]) -> None:
    assert accepts(rfc9421(covered, x_empty=""))


@pytest.mark.parametrize(
    ("covered", "missing"),
    [
        ((), "@authority, @method, @path, @query, content-digest"),
        (("@target-uri", "content-digest"), "@method"),
        (("@method", "@target-uri"), "content-digest"),
        (("@method", "content-digest"), "@authority, @path, @query"),
        (("@method", "@path", "@query", "content-digest"), "@authority"),
        (("@method", "@request-target", "content-digest"), "@authority"),
        (("@method", "@authority", "content-digest"), "@path, @query"),
        (("@method", "@authority", "@query", "content-digest"), "@path"),
        (("@method", "@authority", "@path", "content-digest"), "@query"),
    ],
)
def test_a_true_signature_that_leaves_something_out_is_refused(covered: tuple[str, ...], missing: str) -> None:
    assert refusal(rfc9421(covered)) == f"a signature does not cover {missing}"


@pytest.mark.parametrize(
    "parameters",
    [
        f';keyid="{KEY_ID}";created={WHEN}',
        f'{USUAL};alg="{RSA}"',
        f"{USUAL};expires={WHEN}",
        f'{USUAL};nonce="a \\"quoted\\\\ ; one";tag="t"',
        f"{USUAL};flag;off=?0;token=a/b:c;bytes=:AAAA:;ratio=-1.5",
    ],
)
def test_parameters_in_any_order_and_unknown_ones_are_signed_along(parameters: str) -> None:
    assert accepts(rfc9421(parameters=parameters))


def test_the_parameters_are_read_as_structured_fields_are_whatever_their_spacing() -> None:
    sent = f'(  "@method"   "@target-uri" "content-digest" );  created={WHEN}; keyid="{KEY_ID}";flag=?1'

    assert accepts(rfc9421(parameters=f"{USUAL};flag", sent=sent))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (f';keyid="{KEY_ID}"', "the parameter created is missing"),
        (f';created="{WHEN}";keyid="{KEY_ID}"', "the parameter created is missing, or is not whole"),
        (f';created={WHEN}.5;keyid="{KEY_ID}"', "the parameter created is missing, or is not whole"),
        (f';created=-{WHEN};keyid="{KEY_ID}"', "the parameter created is missing, or is not whole"),
        (f';created;keyid="{KEY_ID}"', "the parameter created is missing, or is not whole"),
        (f';created={"9" * 13};keyid="{KEY_ID}"', "the parameter created is missing, or is not whole"),
        (f";created={WHEN}", "the id of the key is missing"),
        (f';created={WHEN};keyid=""', "the id of the key is missing"),
        (f";created={WHEN};keyid", "the id of the key is missing"),
        (f";created={WHEN};keyid=x{KEY_ID.partition('#')[0]}x", "the id of the key is missing or malformed"),
        (f';created={WHEN};keyid="{KEY_ID}\\""', "the id of the key is missing or malformed"),
        (f"{USUAL};expires={WHEN - 1}", "the signature has expired"),
        (f'{USUAL};expires="{WHEN + 9}"', "the parameter expires is missing, or is not whole"),
        (f"{USUAL};expires", "the parameter expires is missing, or is not whole"),
        (f'{USUAL};alg="hs2019"', "the algorithm of a signature is not known"),
        (f'{USUAL};alg="rsa-pss-sha512"', "the algorithm of a signature is not known"),
        (f"{USUAL};alg=ed25519", "the algorithm of a signature is not known"),
        (f"{USUAL};alg", "the algorithm of a signature is not known"),
        (f'{USUAL};alg="{ED}"', "no signature holds"),
        (f"{USUAL};created={WHEN}", "names a component or a parameter twice"),
        (f';created={WHEN - 9000};keyid="{KEY_ID}"', "too far from this clock"),
        (f';created={WHEN + 9000};keyid="{KEY_ID}"', "too far from this clock"),
    ],
)
def test_a_true_signature_with_parameters_that_will_not_do_is_refused(parameters: str, reason: str) -> None:
    assert reason in refusal(rfc9421(parameters=parameters))


def test_an_end_cuts_a_signature_short_however_long_the_tolerance() -> None:
    headers = rfc9421(parameters=f"{USUAL};expires={WHEN + 10}")

    assert accepts(headers, now=WHEN + 10, tolerance="1d")
    assert not accepts(headers, now=WHEN + 11, tolerance="1d")


def test_an_algorithm_binds_the_kind_of_the_key() -> None:
    for pem, other in ((rsa_pem(), ED), (ed_pem(), RSA)):
        assert accepts(rfc9421(pem=pem), keys(pem))
        assert not accepts(rfc9421(pem=pem, parameters=f'{USUAL};alg="{other}"'), keys(pem))


@pytest.mark.parametrize("option", [";sf", ";bs", ";tr", ";req", ';key="sha-256"', ';name="x"', ";x=1"])
def test_parts_of_components_are_not_taken_for_the_whole(option: str) -> None:
    sent = f'("@method" "@target-uri" "content-digest"{option}){USUAL}'

    assert "covers a part of a component" in refusal(rfc9421(sent=sent))


@pytest.mark.parametrize(
    "name", ["@status", "@query-param", "@signature-params", "@", "Content-Digest", "", "x-absent"]
)
def test_components_that_the_request_does_not_have_are_refused(name: str) -> None:
    sent = f'("@method" "@target-uri" "content-digest" "{name}"){USUAL}'

    assert refusal(rfc9421(sent=sent)) == f"the header {name!r} is missing"


def test_a_component_that_is_named_twice_is_refused() -> None:
    assert "names a component or a parameter twice" in refusal(rfc9421((*FULL, "content-digest")))


def test_one_good_signature_among_bad_ones_will_do() -> None:
    good = rfc9421(label="good")
    stranger = rfc9421(label="stranger", pem=ed_pem(), parameters=f';created={WHEN};keyid="https://x.example/key"')
    forged = rfc9421(label="forged", pem=rsa_pem("mallory"))
    narrow = rfc9421(("@method",), label="narrow")

    for others in ([stranger], [forged], [narrow], [stranger, forged, narrow]):
        assert accepts(together(*others, good))
        assert accepts(together(good, *others))
        assert not accepts(together(*others))


def test_a_request_may_not_make_us_look_up_any_number_of_keys() -> None:
    many = [rfc9421(label=f"sig{number}") for number in range(MOST_SIGNATURES + 1)]

    assert accepts(together(*many[:-1]))
    assert refusal(together(*many)) == f"the request has more than {MOST_SIGNATURES} signatures"


def test_a_label_that_is_used_twice_is_refused() -> None:
    assert refusal(together(rfc9421(), rfc9421(pem=rsa_pem("mallory")))) == "the header signature-input is malformed"
    good = rfc9421()
    assert refusal(good | {"signature": f"{good['signature']}, sig1=:AAAA:"}) == "the header signature is malformed"


def test_a_url_without_a_query_has_an_empty_one() -> None:
    request = Request.of("POST", "https://peer.example/inbox", {}, BODY)

    assert signature_base(["@query"], "()", request) == b'"@query": ?\n"@signature-params": ()'


@pytest.mark.parametrize("value", ['"content-digest"', ":AAAA:", "?1", "5", "token"])
def test_what_is_covered_is_a_list(value: str) -> None:
    assert "has no list of what it covers" in refusal(rfc9421(sent=f"{value}{USUAL}"))


def test_signatures_of_other_labels_do_not_count() -> None:
    good = rfc9421()

    assert "the list has no signature" in refusal(good | {"signature": good["signature"].replace("sig1", "sig2")})
    assert accepts(good | {"signature": f"{good['signature']},\tsig2=:AAAA:;x=1"})


@pytest.mark.parametrize("value", ["sig1=AAAA", 'sig1="AAAA"', "sig1=?1", "sig1=5", 'sig1=("a")'])
def test_a_signature_is_bytes(value: str) -> None:
    assert "the list has no signature" in refusal(rfc9421() | {"signature": value})


@pytest.mark.parametrize("value", ["sig1=:A:", "sig1=:AA=A:", "sig1=:AAAA", "sig1=:A A:", "sig1", "sig1=", "=:AAAA:"])
def test_bytes_are_base64(value: str) -> None:
    assert refusal(rfc9421() | {"signature": value}) in (
        "a signature is not base64",
        "the header signature is malformed",
    )


def test_a_digest_by_sha_512_or_by_both_will_do() -> None:
    by_512, by_256 = content_digest(name="sha512"), content_digest()

    assert accepts(rfc9421(content_digest=by_512))
    assert accepts(rfc9421(content_digest=f"{by_256}, {by_512}, md5=:AAAA:"))


@pytest.mark.parametrize(
    "digest",
    [
        content_digest(b"other"),
        content_digest(b"other", "sha512"),
        f"{content_digest()}, {content_digest(b'other', 'sha512')}",
        f"{content_digest(b'other')}, {content_digest(name='sha512')}",
        content_digest().replace("sha-256", "sha-1"),
        content_digest().replace("sha-256", "SHA-256"),
        content_digest().replace(":", ""),
        content_digest().replace(":", '"'),
        "sha-256",
        "sha-256=()",
        "",
    ],
)
def test_a_true_signature_over_a_digest_that_does_not_fit_is_refused(digest: str) -> None:
    assert refusal(rfc9421(content_digest=digest)) in (
        "the header content-digest has no sha-256 or sha-512 that fits the body",
        "the header content-digest is malformed",
    )


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "sig1",
        "sig1=",
        "sig1=(",
        "sig1=()",
        "sig1=(a)",
        'sig1=("@method"',
        'sig1=("@method" "@target-uri" "content-digest"),',
        'sig1=("@method""@target-uri")',
        'sig1=("@method",  "@target-uri")',
        'sig1=("@method");created',
        f'sig1=("@method"){USUAL};',
        f'sig1=("@method"){USUAL};UPPER=1',
        f'sig1=("@method"){USUAL} garbage',
        f'sig1=("@method"){USUAL} sig2=("@method")',
        f'sig1=("@method"){USUAL},,sig2=("@method")',
        f'Sig1=("@method"){USUAL}',
        'sig1="@method"',
        'sig1=("\\a")',
        'sig1=("' + "\\" * 4001 + '")',
        'sig1=("' + 'a" "' * 2000,
        "sig1=(" + " " * 8000,
        'sig1=("a"' + ";a" * 4000,
        'sig1=("a"' + ";" + "a" * 8000,
        'sig1=("a")' + ";a=a" * 2000 + "!",
        "sig1=(" * 1300,
        "a=1," * 2000,
    ],
)
def test_input_that_is_no_list_of_signatures_is_refused(sent: str) -> None:
    assert not accepts(rfc9421() | {"signature-input": sent})


# Cavage.

CAVAGE_TEST_KEY = """-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDCFENGw33yGihy92pDjZQhl0C3
6rPJj+CvfSC8+q28hxA161QFNUd13wuCTUcq0Qd2qsBe/2hFyc2DCJJg0h1L78+6
Z4UMR7EOcpfdUE9Hf3m/hs+FUR45uBJeDK1HSFHD8bHKD6kv8FPGfJTotc+2xjJw
oYi+1hqp1fIekaxsyQIDAQAB
-----END PUBLIC KEY-----
"""
CAVAGE_TEST_HEADERS = {
    "Host": "example.com",
    "Date": "Sun, 05 Jan 2014 21:31:40 GMT",
    "Content-Type": "application/json",
    "Digest": "SHA-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=",
    "Content-Length": "18",
    "Signature": 'keyId="Test",algorithm="rsa-sha256",'
    'headers="(request-target) host date content-type digest content-length",'
    'signature="vSdrb+dS3EceC9bcwHSo4MlyKS59iFIrhgYkz8+oVLEEzmYZZvRs8rgOp+63LEM3v+MFHB32NfpB2bEKBIvB1q52LaEUHFv120V0'
    '1IL+TAD48XaERZFukWgHoBTLMhYS2Gb51gWxpeIq8knRmPnYePbF5MOkR0Zkly4zKH7s1dE="',
}


def test_cavage_c_3_holds_as_the_draft_says_but_for_its_small_key(monkeypatch: pytest.MonkeyPatch) -> None:
    url, now = "https://example.com/foo?param=value&pet=dog", 1388957500
    arguments = ("POST", url, CAVAGE_TEST_HEADERS, TEST_BODY, lambda key_id: CAVAGE_TEST_KEY)

    with pytest.raises(BadSignature, match="no signature holds"):
        verify(*arguments, now=now)
    monkeypatch.setattr(federation, "LEAST_RSA_BITS", 1024)
    assert verify(*arguments, tolerance=0, now=now) == "Test"


def test_cavage_headers_are_those_that_mastodon_sends() -> None:
    headers = signed("cavage")

    assert headers | {"signature": ""} == {
        "host": "peer.example",
        "date": DATE,
        "digest": f"SHA-256={b64encode(hashlib.sha256(BODY).digest()).decode()}",
        "content-type": TYPE,
        "signature": "",
    }
    assert headers["signature"].startswith(
        f'keyId="{KEY_ID}",algorithm="rsa-sha256",headers="(request-target) host date digest content-type",signature="'
    )
    base = (
        f"(request-target): post /inbox?shared=1\nhost: peer.example\ndate: {DATE}\n"
        f"digest: {headers['digest']}\ncontent-type: {TYPE}"
    )
    assert headers["signature"].endswith(f'"{by_hand(rsa_pem(), base.encode())}"')


@pytest.mark.parametrize(
    ("covered", "missing"),
    [
        ("", "(request-target), digest, host"),
        ("host date digest", "(request-target)"),
        ("(request-target) date digest", "host"),
        ("(request-target) host date", "digest"),
        ("(request-target) host digest", "date"),
    ],
)
def test_a_true_cavage_signature_that_leaves_something_out_is_refused(covered: str, missing: str) -> None:
    assert refusal(cavage(covered)) == f"the signature does not cover {missing}"


@pytest.mark.parametrize(
    "parameters",
    ['algorithm="rsa-sha256"', 'algorithm="hs2019"', 'unknown="x"', f"expires={WHEN}", f'expires="{WHEN + 9}"'],
)
def test_cavage_parameters_may_be_those_of_the_draft_and_unknown_ones(parameters: str) -> None:
    assert accepts(cavage(parameters=parameters))


def test_the_list_of_covered_headers_has_no_case() -> None:
    assert accepts(cavage("(Request-Target) Host Date Digest"))


def test_cavage_may_say_when_it_was_made_instead_of_a_date() -> None:
    covered, made = "(request-target) (created) host digest", f'algorithm="hs2019",created={WHEN}'

    assert accepts(cavage(covered, made, created=str(WHEN)))
    assert accepts(cavage(covered, made, created=str(WHEN), date="yesterday"))
    assert not accepts(cavage(covered, made, created=str(WHEN)), now=WHEN + 3601)
    assert not accepts(cavage(f"{covered} date", made, created=str(WHEN), date="Tue, 14 Nov 2023 10:13:20 GMT"))
    assert "the algorithm" in refusal(cavage(covered, made.replace("hs2019", "rsa-sha256"), created=str(WHEN)))
    assert "the parameter created" in refusal(cavage(covered, 'algorithm="hs2019"', created=str(WHEN)))
    assert "the parameter created" in refusal(cavage(covered, f"{made}.5", created=f"{WHEN}.5"))


def test_a_time_that_is_not_covered_does_not_count() -> None:
    late = cavage(parameters=f'algorithm="hs2019",created={WHEN}', date="Tue, 14 Nov 2023 10:13:20 GMT")

    assert "too far" in refusal(late)


def test_a_cavage_signature_ends_when_it_says() -> None:
    covered, ends = f"{CAVAGE_FULL} (expires)", f'algorithm="hs2019",expires={WHEN + 10}'

    assert accepts(cavage(covered, ends, created=str(WHEN + 10)), now=WHEN + 10)
    assert "expired" in refusal(cavage(covered, ends, created=str(WHEN + 10)), now=WHEN + 11)
    assert "the algorithm" in refusal(cavage(covered, ends.replace("hs2019", "rsa-sha256"), created=str(WHEN + 10)))
    assert "'(expires)' is missing" in refusal(cavage(covered, 'algorithm="hs2019"', created=str(WHEN)))


@pytest.mark.parametrize("algorithm", ["rsa-sha1", "hmac-sha256", "ed25519", "RSA-SHA256", "", RSA])
def test_cavage_algorithms_that_are_not_known_are_refused(algorithm: str) -> None:
    assert "the algorithm is not known" in refusal(cavage(parameters=f'algorithm="{algorithm}"'))


@pytest.mark.parametrize(
    "parameters",
    [f'keyId="{KEY_ID}"', 'algorithm="hs2019",algorithm="hs2019"', 'x="a\\"b"', "x=y", "x", ",", 'x="'],
)
def test_cavage_parameters_that_are_malformed_or_named_twice_are_refused(parameters: str) -> None:
    assert refusal(cavage(parameters=parameters)) == "the header signature is malformed"


@pytest.mark.parametrize("key_id", ["", "a b", "x" * 2049])
def test_a_cavage_key_needs_an_id(key_id: str) -> None:
    headers = cavage()
    changed = headers["signature"].replace(KEY_ID, key_id)

    assert "the id of the key" in refusal(headers | {"signature": changed})
    assert "the id of the key" in refusal(headers | {"signature": changed.partition(",")[2]})


def test_a_cavage_signature_must_be_there_and_be_base64() -> None:
    headers = cavage()
    without = re.sub(r',signature=".*"', "", headers["signature"])

    assert not accepts(headers | {"signature": without})
    assert refusal(headers | {"signature": f'{without},signature="%%"'}) == "a signature is not base64"


def test_only_rsa_keys_hold_for_cavage() -> None:
    for parameters in ('algorithm="rsa-sha256"', 'algorithm="hs2019"'):
        assert accepts(cavage(parameters=parameters), keys(rsa_pem()))
        assert not accepts(cavage(parameters=parameters, pem=ed_pem()), keys(ed_pem()))


@pytest.mark.parametrize("host", ["peer.example", "PEER.example", "peer.example:443"])
def test_the_host_is_that_of_the_url_however_it_is_spelled(host: str) -> None:
    assert accepts(cavage(host=host))


@pytest.mark.parametrize(
    "host", ["other.example", "peer.example:80", "peer.example/x", "peer.example?", "ana@peer.example", "", "x y"]
)
def test_a_true_signature_for_another_host_is_refused(host: str) -> None:
    assert refusal(cavage(host=host)) == "the header host is not the host of the URL"


@pytest.mark.parametrize("name", ["SHA-256", "sha-256", "Sha-256"])
def test_the_name_of_the_digest_has_no_case(name: str) -> None:
    fits = b64encode(hashlib.sha256(BODY).digest()).decode()

    assert accepts(cavage(digest=f"{name}={fits}"))
    assert accepts(cavage(digest=f"SHA-512=AAAA, {name}={fits}"))
    assert not accepts(cavage(digest=f"{name}={fits}, SHA-256=AAAA"))


@pytest.mark.parametrize(
    "digest", ["", "SHA-256", "SHA-256=", "SHA-256=AAAA", "SHA-512=AAAA", "garbage", ",,,", "===="]
)
def test_a_true_signature_over_a_cavage_digest_that_does_not_fit_is_refused(digest: str) -> None:
    assert refusal(cavage(digest=digest)) == "the header digest has no SHA-256 that fits the body"


@pytest.mark.parametrize(
    "date",
    [
        "",
        "now",
        str(WHEN),
        "2023-11-14T22:13:20Z",
        "Tue, 14 Nov 2023 22:13:20",
        "Tue, 14 Nov 2023 22:13:20 +0000",
        "Tue, 14 Nov 2023 22:13:60 GMT",
        "Tue, 14 Nov 2023 25:13:20 GMT",
        "Tue, 31 Nov 2023 22:13:20 GMT",
        "Tue, 14 Nov 0000 22:13:20 GMT",
        "Tue, 14 Xyz 2023 22:13:20 GMT",
        "Tuesday, 14-Nov-23 22:13:20 GMT",
    ],
)
def test_a_date_that_is_none_is_refused(date: str) -> None:
    assert "the header date is not a date" in refusal(cavage(date=date))


# Hostile peers.

garbage = st.one_of(
    st.text(max_size=100),
    st.text(st.sampled_from('sig1=("@method");created,keyId=\'\\: \t\0\r\né\ud800?:*0123456789'), max_size=100),
    st.sampled_from(["\0", "\ud800", "é", "A" * (LONGEST_HEADER + 1), "9" * 8000, '"' * 8000, "(" * 8000, "," * 8000]),
    st.none(),
    st.binary(),
    st.integers(),
)


@unhurried
@given(
    kind=st.sampled_from(sorted(KINDS)),
    names=st.sets(st.integers(0, 4), min_size=1),
    values=st.lists(garbage, min_size=5, max_size=5),
    stray=st.dictionaries(st.one_of(st.text(), st.none(), st.integers()), garbage, max_size=3),
)
def test_hostile_headers_are_refused_and_nothing_else_happens(
    kind: str, names: set[int], values: list[Any], stray: dict[Any, Any]
) -> None:
    headers: dict[Any, Any] = signed(kind)
    named = sorted(headers)
    changed = {named[number % len(named)]: values[number] for number in names}

    with pytest.raises(BadSignature):
        verify("POST", URL, {**stray, **headers, **changed}, BODY, lambda key_id: public_of(rsa_pem()), now=WHEN)


@unhurried
@given(kind=st.sampled_from(sorted(KINDS)), at=st.integers(0, 10**4), inserted=st.text(min_size=1, max_size=5))
def test_a_signature_with_something_slipped_in_is_for_the_same_key_or_refused(
    kind: str, at: int, inserted: str
) -> None:
    headers = signed(kind)
    for name in {"signature", "signature-input"} & headers.keys():
        cut = at % len(headers[name])
        changed = headers | {name: headers[name][:cut] + inserted + headers[name][cut:]}
        try:
            assert verify("POST", URL, changed, BODY, keys(KINDS[kind][1]()), now=WHEN) == KEY_ID
        except BadSignature:
            continue
