"""HTTP signatures for federation posts: RFC 9421, and draft-cavage-http-signatures-12 as Mastodon speaks it.

Both sign who (a key id), what (a digest of the body), where (method and URL) and when; `verify` takes either and
insists on all four. Cavage means RSA with SHA-256 (PKCS #1 v1.5), under the names `rsa-sha256` and `hs2019`, as the
fediverse has it. RFC 9421 means `rsa-v1_5-sha256` or `ed25519`.

A signature is good for an hour before and after its own time: about what Mastodon grants one that names no end. One
that names an end (`expires`) is not good after it.
"""

from __future__ import annotations

import hashlib
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.moment import Duration, seconds
from durably.deliveries.webhooks import cryptography_needed, field
from durably.errors import BadOption, BadSignature

with cryptography_needed("a federation signature"):
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

LEAST_RSA_BITS, MOST_RSA_BITS = 2048, 8192
MOST_SIGNATURES = 4
"""Each may cost the look-up of a key, at a stranger's word."""

_RSA, _ED25519 = "rsa-v1_5-sha256", "ed25519"
_ALGORITHMS = {None: (_RSA, _ED25519), f'"{_RSA}"': (_RSA,), f'"{_ED25519}"': (_ED25519,)}
_PORTS = {"http": 80, "https": 443}
_DIGESTS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NONE_HOLDS = "no signature holds for this request with a key that is known"

_METHOD = re.compile(r"[A-Za-z]{1,32}")
_KEY_ID = re.compile(r'"([!#-\[\]-~]{1,2048})"')
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_SECONDS = re.compile(r"[0-9]{1,12}")
_DATE = re.compile(rf"[A-Z][a-z]{{2}}, (\d\d) ({'|'.join(_MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII)
_URL = re.compile(
    r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{0,5}))?"  # scheme, host and port
    r'(/[!"$->@-~]*+)?(\?[!"$-~]*+)?(?:#[!-~]*+)?',  # path, query, and a fragment, which is not sent
    re.ASCII | re.IGNORECASE,
)

# As much of structured fields (RFC 8941) as signatures use. Possessive: no hostile text is read over and over.
_NAME = r"[a-z*][a-z0-9_.*-]*+"
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*+"'
_BARE = rf"(?:{_STRING}|:[A-Za-z0-9+/=]*+:|\?[01]|-?[0-9]++(?:\.[0-9]++)?|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+)"
_PARAMETERS = rf"(?:; *+{_NAME}(?:={_BARE})?)*+"
_ITEM = rf"{_STRING}{_PARAMETERS}"
_LIST = rf"\( *+(?:{_ITEM}(?: ++{_ITEM})*+ *+)?\)"
_MEMBER = re.compile(rf"({_NAME})=({_LIST}|{_BARE})({_PARAMETERS})[ \t]*+(?:(?P<more>,)[ \t]*+|\Z)")
_COMPONENT = re.compile(rf"({_STRING})({_PARAMETERS})")
_PARAMETER = re.compile(rf"; *+({_NAME})(?:=({_BARE}))?")
_CAVAGE = re.compile(r'([A-Za-z]++)=("[^"\\]*+"|[0-9.]++)[ \t]*+(?:(?P<more>,)[ \t]*+|\Z)')


class Key(msgspec.Struct, frozen=True):
    """A private key (PEM, not encrypted: RSA or ed25519) and the id under which peers find its public half."""

    key_id: str
    private_key: str

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(f'"{self.key_id}"'):
            raise BadOption(f"federation key: the id {brief(self.key_id)} must be visible ASCII without quotes: a URL")
        _loaded(self.private_key)

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("key_id", self.key_id)]


class Request(msgspec.Struct, frozen=True):
    """A post as signatures see it: scheme and host in lower case, no port that goes without saying, never no path."""

    method: str
    scheme: str
    authority: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Request:
        if not _METHOD.fullmatch(method):
            raise BadOption("the method must be a word such as POST")
        return cls(method.upper(), *_place(url), headers, body)


class _Claim(msgspec.Struct, frozen=True):
    """A signature that covers what it should, at a time that will do. Only its key can tell whether it is true."""

    key_id: str
    algorithms: tuple[str, ...]
    base: bytes
    signature: bytes


class _Window(msgspec.Struct, frozen=True):
    now: float
    tolerance: float

    def check(self, times: Sequence[int], parameters: Mapping[str, str]) -> None:
        if any(abs(self.now - when) > self.tolerance for when in times):
            raise BadSignature("the time of the signature is too far from this clock; check both clocks")
        if "expires" in parameters and _number(parameters, "expires") < self.now:
            raise BadSignature("the signature has expired; sign every attempt anew")


def sign_cavage(key: Key, method: str, url: str, body: bytes, content_type: str, now: float) -> dict[str, str]:
    """The headers of a post, signed as Mastodon signs. Send them all as they are, `host` and `date` too."""
    if not isinstance(_loaded(key.private_key), RSAPrivateKey):
        raise BadOption(f"federation key {key.key_id}: cavage signatures need an RSA key; use `sign_rfc9421` instead")
    headers = {
        "host": _place(url)[1],
        "date": format_datetime(datetime.fromtimestamp(int(now), UTC), usegmt=True),
        "digest": f"SHA-256={_digest('sha-256', body)}",
        "content-type": _checked(content_type),
    }
    covered = ["(request-target)", *headers]
    signature = _signed(key, _cavage_base(covered, {}, Request.of(method, url, headers, body)))
    named = f'keyId="{key.key_id}",algorithm="rsa-sha256",headers="{" ".join(covered)}",signature="{signature}"'
    return {**headers, "signature": named}


def sign_rfc9421(key: Key, method: str, url: str, body: bytes, content_type: str, now: float) -> dict[str, str]:
    """The headers of a post, signed after RFC 9421. Send them all as they are."""
    headers = {"content-type": _checked(content_type), "content-digest": f"sha-256=:{_digest('sha-256', body)}:"}
    covered = ["@method", "@target-uri", "content-digest", "content-type"]
    algorithm = _RSA if isinstance(_loaded(key.private_key), RSAPrivateKey) else _ED25519
    listed = " ".join(f'"{name}"' for name in covered)
    parameters = f'({listed});created={int(now)};keyid="{key.key_id}";alg="{algorithm}"'
    signature = _signed(key, signature_base(covered, parameters, Request.of(method, url, headers, body)))
    return {**headers, "signature-input": f"sig1={parameters}", "signature": f"sig1=:{signature}:"}


def verify(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    key_for: Callable[[str], str],
    *,
    tolerance: Duration = "1h",
    now: float | None = None,
) -> str:
    """The id of the key that signed this post, or `BadSignature`. Then check that the key is the actor's own.

    Give the URL as the peer wrote it, not as a proxy changed it, and the body as it came over the wire. `key_for` turns
    a key id into a public key (PEM) and raises LookupError if there is none; whatever else it raises is the caller's.
    """
    for claim in _claims(method, url, headers, body, tolerance, now):
        with suppress(LookupError):
            if _holds(claim, key_for(claim.key_id)):
                return claim.key_id
    raise BadSignature(_NONE_HOLDS)


async def averify(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    key_for: Callable[[str], Awaitable[str]],
    *,
    tolerance: Duration = "1h",
    now: float | None = None,
) -> str:
    """The async twin of `verify`: `key_for` is awaited."""
    for claim in _claims(method, url, headers, body, tolerance, now):
        with suppress(LookupError):
            if _holds(claim, await key_for(claim.key_id)):
                return claim.key_id
    raise BadSignature(_NONE_HOLDS)


def signature_base(covered: Sequence[str], parameters: str, request: Request) -> bytes:
    """What a signature of RFC 9421 signs: a line for every component, then its parameters."""
    lines = [f'"{name}": {_component(name, request)}' for name in covered]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode()


def _component(name: str, request: Request) -> str:
    match name:
        case "@method":
            return request.method
        case "@target-uri":
            return f"{request.scheme}://{request.authority}{request.path}{request.query}"
        case "@authority":
            return request.authority
        case "@scheme":
            return request.scheme
        case "@request-target":
            return request.path + request.query
        case "@path":
            return request.path
        case "@query":
            return request.query or "?"
        case _:
            return field(request.headers, name)


def _cavage_base(covered: Sequence[str], parameters: Mapping[str, str], request: Request) -> bytes:
    special = {"(request-target)": f"{request.method.lower()} {request.path}{request.query}"}
    special |= {f"({name})": parameters[name] for name in ("created", "expires") if name in parameters}
    lines = [f"{name}: {special[name] if name in special else field(request.headers, name)}" for name in covered]
    return "\n".join(lines).encode()


def _claims(
    method: str, url: str, headers: Mapping[str, str], body: bytes, tolerance: Duration, now: float | None
) -> list[_Claim]:
    window = _Window(time.time() if now is None else now, seconds(tolerance, "verify tolerance"))
    try:
        request = Request.of(method, url, headers, body)
    except BadOption as error:
        raise BadSignature(str(error)) from None
    if any(isinstance(name, str) and name.lower() == "signature-input" for name in headers):
        return _rfc9421_claims(request, window)
    return [_cavage_claim(request, window)]


def _rfc9421_claims(request: Request, window: _Window) -> list[_Claim]:
    """The signatures for which a key is worth a look-up; if there are none, what is wrong with the last."""
    inputs, signatures = _members(_MEMBER, "signature-input", request), _members(_MEMBER, "signature", request)
    if len(inputs) > MOST_SIGNATURES:
        raise BadSignature(f"the request has more than {MOST_SIGNATURES} signatures")
    digests = _members(_MEMBER, "content-digest", request)
    known = [name for name in _DIGESTS if name in digests]
    if not known or any(digests[name][2] != f":{_digest(name, request.body)}:" for name in known):
        raise BadSignature("the header content-digest has no sha-256 or sha-512 that fits the body")
    claims, problem = [], BadSignature(_NONE_HOLDS)
    for label, found in inputs.items():
        try:
            claims.append(_rfc9421_claim(found, signatures.get(label), request, window))
        except BadSignature as error:
            problem = error
    if not claims:
        raise problem
    return claims


def _rfc9421_claim(found: re.Match[str], signature: re.Match[str] | None, request: Request, window: _Window) -> _Claim:
    components, listed = _COMPONENT.findall(found[2]), _PARAMETER.findall(found[3])
    parameters, covered = dict(listed), [string[1:-1] for string, _ in components]
    if not found[2].startswith("(") or signature is None or not signature[2].startswith(":"):
        raise BadSignature("a signature has no list of what it covers, or the list has no signature")
    if len(parameters) < len(listed) or len(set(covered)) < len(covered):
        raise BadSignature("a signature names a component or a parameter twice")
    if any(options for _, options in components):
        raise BadSignature("a signature covers a part of a component; cover the whole of it")
    _check_covered(covered, request)
    window.check([_number(parameters, "created")], parameters)
    algorithms = _ALGORITHMS.get(parameters.get("alg"))
    if algorithms is None:
        raise BadSignature(f"the algorithm of a signature is not known; use {_RSA} or {_ED25519}")
    texts = [f";{name}" if value in ("", "?1") else f";{name}={value}" for name, value in listed]
    base = signature_base(covered, f"({' '.join(string for string, _ in components)}){''.join(texts)}", request)
    return _Claim(_key_id(parameters.get("keyid", "")), algorithms, base, _bytes(signature[2].strip(":")))


def _check_covered(covered: Sequence[str], request: Request) -> None:
    """The method, the body and the whole URL must be covered: at once, or as host, path and query."""
    needed = {"@method", "content-digest"}
    if "@target-uri" not in covered:
        needed.add("@authority")
        if "@request-target" not in covered:
            needed |= {"@path", "@query"} if request.query else {"@path"}
    if missing := needed - set(covered):
        raise BadSignature(f"a signature does not cover {', '.join(sorted(missing))}")


def _cavage_claim(request: Request, window: _Window) -> _Claim:
    parameters = {name: found[2].strip('"') for name, found in _members(_CAVAGE, "signature", request).items()}
    covered = parameters.get("headers", "").lower().split()
    if missing := {"(request-target)", "host", "digest"} - set(covered):
        raise BadSignature(f"the signature does not cover {', '.join(sorted(missing))}")
    special, algorithm = {"(created)", "(expires)"} & set(covered), parameters.get("algorithm", "hs2019")
    if algorithm != "hs2019" and (algorithm != "rsa-sha256" or special):
        raise BadSignature("the algorithm is not known, or not with what is covered; use rsa-sha256 and date")
    times = [_number(parameters, "created")] if "(created)" in special else []
    times += [_dated(field(request.headers, "date"))] if "date" in covered else []
    if not times:
        raise BadSignature("the signature does not cover date")
    window.check(times, parameters)
    if not _is_host(field(request.headers, "host"), request):
        raise BadSignature("the header host is not the host of the URL")
    offered = [part.strip().partition("=") for part in field(request.headers, "digest").split(",")]
    if {value for name, _, value in offered if name.lower() == "sha-256"} != {_digest("sha-256", request.body)}:
        raise BadSignature("the header digest has no SHA-256 that fits the body")
    base = _cavage_base(covered, parameters, request)
    return _Claim(_key_id(f'"{parameters.get("keyId", "")}"'), (_RSA,), base, _bytes(parameters.get("signature", "")))


def _members(pattern: re.Pattern[str], name: str, request: Request) -> dict[str, re.Match[str]]:
    """The members of a header that is a list of names with values, none of them twice."""
    text, members, at = field(request.headers, name), dict[str, re.Match[str]](), 0
    while True:
        found = pattern.match(text, at)
        if found is None or found[1] in members:
            raise BadSignature(f"the header {name} is malformed")
        members[found[1]] = found
        if not found["more"]:
            return members
        at = found.end()


def _place(url: str) -> tuple[str, str, str, str]:
    """Scheme, authority, path and query. The error does not show the URL: there may be a password in it."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BadOption(
            "the URL must be http(s)://host/path in plain ASCII (encode the rest), without a user or password"
        )
    scheme, host = found[1].lower(), found[2].lower()
    port = int(found[3] or _PORTS[scheme])
    authority = host if port == _PORTS[scheme] else f"{host}:{port}"
    return scheme, authority, found[4] or "/", found[5] or ""


def _is_host(host: str, request: Request) -> bool:
    try:
        return _place(f"{request.scheme}://{host}") == (request.scheme, request.authority, "/", "")
    except BadOption:
        return False


def _number(parameters: Mapping[str, str], name: str) -> int:
    text = parameters.get(name, "")
    if not _SECONDS.fullmatch(text):
        raise BadSignature(f"the parameter {name} is missing, or is not whole seconds since 1970")
    return int(text)


def _dated(text: str) -> int:
    found = _DATE.fullmatch(text)
    with suppress(ValueError):
        if found is not None:
            day, month, year, *clock = found.groups()
            hour, minute, second = map(int, clock)
            when = datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=UTC)
            return int(when.timestamp())
    raise BadSignature("the header date is not a date such as Sun, 06 Nov 1994 08:49:37 GMT")


def _key_id(quoted: str) -> str:
    found = _KEY_ID.fullmatch(quoted)
    if found is None:
        raise BadSignature("the id of the key is missing or malformed")
    return found[1]


def _bytes(encoded: str) -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        raise BadSignature("a signature is not base64") from None


def _digest(name: str, body: bytes) -> str:
    return b64encode(_DIGESTS[name](body).digest()).decode()


def _checked(content_type: str) -> str:
    if not _CONTENT_TYPE.fullmatch(content_type):
        raise BadOption(f"content type: {brief(content_type)} must be plain ASCII, such as application/activity+json")
    return content_type


@lru_cache(maxsize=1024)
def _loaded(pem: str) -> RSAPrivateKey | Ed25519PrivateKey:
    """The key, checked. Once: it takes a hundred times longer than a signature."""
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadOption("federation key: the private key must be PEM, complete and not encrypted") from None
    if isinstance(key, Ed25519PrivateKey) or (isinstance(key, RSAPrivateKey) and _fits(key.key_size)):
        return key
    raise BadOption(f"federation key: it must be ed25519, or RSA of {LEAST_RSA_BITS} to {MOST_RSA_BITS} bits")


def _fits(bits: int) -> bool:
    return LEAST_RSA_BITS <= bits <= MOST_RSA_BITS


def _signed(key: Key, base: bytes) -> str:
    private = _loaded(key.private_key)
    signature = private.sign(base, PKCS1v15(), SHA256()) if isinstance(private, RSAPrivateKey) else private.sign(base)
    return b64encode(signature).decode()


def _holds(claim: _Claim, pem: str) -> bool:
    """Whether the signature is that of the key. A key that cannot be read, or is of another kind, signed nothing."""
    if not isinstance(pem, str):
        return False
    try:
        key = load_pem_public_key(pem.encode())
        if isinstance(key, RSAPublicKey) and _fits(key.key_size) and _RSA in claim.algorithms:
            key.verify(claim.signature, claim.base, PKCS1v15(), SHA256())
        elif isinstance(key, Ed25519PublicKey) and _ED25519 in claim.algorithms:
            key.verify(claim.signature, claim.base)
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True
