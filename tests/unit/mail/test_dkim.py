"""DKIM: what is signed verifies elsewhere, whatever it looks like, and not any more once somebody has changed it."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from email import message_from_bytes
from functools import cache
from types import SimpleNamespace
from typing import Any

import dkim  # type: ignore[import-untyped]
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from durably.errors import BadOption, MissingPackage
from durably.mail.attachments import Attachment
from durably.mail.dkim import SIGNED, Dkim
from durably.mail.letter import Words, letter

NOW = 1_700_000_000.9
MAIL = (
    b"From: Ann <ann@example.org>\r\n"
    b"To: bob@x.example\r\n"
    b"Subject: A long way\r\n"
    b"\tto go\r\n"
    b"X-Other: this\r\n"
    b"\r\n"
    b"Hello  Bob,\r\n"
    b"\r\n"
    b"it is there. \r\n"
)
# The example of RFC 8463: its private key, the hash of its body, a signature, and the mail itself.
SEED = b64decode("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
BODY_HASH = "2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8="
SIGNATURE = (
    b"DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;\r\n"
    b" d=football.example.com; i=@football.example.com;\r\n"
    b" q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r\n"
    b" subject : date : message-id : from : subject : date;\r\n"
    b" bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r\n"
    b" b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus\r\n"
    b" Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==\r\n"
)
SIGNED_MAIL = (
    b"From: Joe SixPack <joe@football.example.com>\r\n"
    b"To: Suzie Q <suzie@shopping.example.net>\r\n"
    b"Subject: Is dinner ready?\r\n"
    b"Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r\n"
    b"Message-ID: <20030712040037.46341.5F8J@football.example.com>\r\n"
    b"\r\n"
    b"Hi.\r\n"
    b"\r\n"
    b"We lost the game.  Are you hungry yet?\r\n"
    b"\r\n"
    b"Joe.\r\n"
)

unhurried = settings(deadline=None)


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def signer() -> Dkim:
    return Dkim("example.org", "s1", pem(rsa_key()))


def pem(
    key: Any,
    form: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption = NoEncryption(),  # noqa: B008 - it has no state
) -> bytes:
    found: bytes = key.private_bytes(Encoding.PEM, form, encryption)
    return found


def public_pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def weak_key() -> rsa.RSAPrivateKey:
    """A key of 648 bits, from two primes that everybody knows."""
    p, q, e = 2**521 - 1, 2**127 - 1, 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    public = rsa.RSAPublicNumbers(e, p * q)
    return rsa.RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), rsa.rsa_crt_iqmp(p, q), public).private_key()


def sent(source: bytes) -> bytes:
    """The source as a receiver gets it: SMTP ends the last line."""
    return source if source.endswith(b"\r\n") else source + b"\r\n"


def holds(source: bytes, key: rsa.RSAPrivateKey | None = None) -> bool:
    """Whether another implementation accepts the signature on top."""
    public = (key or rsa_key()).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def dns(name: bytes, timeout: float) -> bytes:
        assert name == b"s1._domainkey.example.org."
        return b"v=DKIM1; k=rsa; p=" + b64encode(public)

    return bool(dkim.verify(sent(source), dnsfunc=dns))


def holds_with_ed25519(source: bytes, public: Ed25519PublicKey) -> bool:
    """The same for Ed25519: the other implementation says what was signed, OpenSSL whether the key did it."""
    heard: list[tuple[bytes, bytes]] = []
    other = dkim.DKIM(sent(source))
    signature, names, fields = other.verify_headerprep()
    other.ktag, other.pk = b"ed25519", SimpleNamespace(verify=lambda *given: heard.append(given))
    try:
        other.verify_sig_process(signature, names, fields[0], None)
        [(hashed, signed)] = heard
        public.verify(signed, hashed)
    except (dkim.ValidationError, InvalidSignature):
        return False
    return True


def tags(source: bytes) -> dict[str, str]:
    """The tags of the signature on top, without white space."""
    value = "".join(message_from_bytes(source)["DKIM-Signature"].split())
    return dict(tag.split("=", 1) for tag in value.split(";"))


def test_a_signed_mail_verifies_elsewhere_and_is_otherwise_unchanged() -> None:
    signed = signer().sign(MAIL, NOW)

    assert holds(signed)
    assert signed.endswith(b"\r\n" + MAIL)
    assert signed == signer().sign(MAIL, NOW)
    assert {tag: value for tag, value in tags(signed).items() if tag not in ("b", "bh", "h")} == {
        "v": "1",
        "a": "rsa-sha256",
        "c": "relaxed/relaxed",
        "d": "example.org",
        "s": "s1",
        "t": "1700000000",
    }


def test_lines_are_short_and_end_as_mail_wants_it() -> None:
    source = b"".join(name + b": x\r\n" for name in SIGNED) + b"\r\n"
    signed = Dkim("example.org", "s1", pem(rsa_key())).sign(source, NOW)
    header = signed.removesuffix(source)

    assert holds(signed)
    assert header.startswith(b"DKIM-Signature: v=1;")
    assert header.endswith(b"\r\n")
    first, *others = header.removesuffix(b"\r\n").split(b"\r\n")
    assert all(b"\n" not in line and b"\r" not in line and len(line) <= 78 for line in (first, *others))
    assert all(line.startswith(b" ") and line.strip() for line in others)


def test_fields_are_signed_as_often_as_they_are_there_and_some_once_more() -> None:
    source = b"Reply-To: a@x\r\nFROM: b@x\r\nReferences: <1>\r\nreply-to: c@x\r\nX-Other: 1\r\nSubject: 2\r\n\r\n"
    signed = signer().sign(source, NOW)

    assert holds(signed)
    assert tags(signed)["h"].split(":") == [
        *["from", "from", "reply-to", "reply-to", "subject", "subject"],
        *["date", "to", "cc", "references"],
    ]


def test_every_field_that_should_be_signed_is_signed() -> None:
    once = [b"From", b"Subject", b"Date", b"To", b"Cc"]
    others = [b"Sender", b"Reply-To", b"Message-ID", b"In-Reply-To", b"References", b"List-Id", b"List-Unsubscribe"]
    others += [b"List-Unsubscribe-Post", b"MIME-Version", b"Content-Type", b"Content-Transfer-Encoding"]
    source = b"".join(name + b": x\r\n" for name in once + others) + b"\r\nHello\r\n"
    signed = signer().sign(source, NOW)

    assert holds(signed)
    for name in once + others:
        line = b"\r\n" + name + b": x\r\n"
        assert signed.count(line) == 1
        assert not holds(signed.replace(line, b"\r\n")), name
        assert not holds(signed.replace(line, line.replace(b": x", b": y"))), name
        added = signed.replace(b"\r\n\r\n", line + b"\r\n")
        assert holds(added) == (name in others), name


@pytest.mark.parametrize("name", [b"From", b"Subject", b"To", b"Cc", b"Date"])
def test_nobody_can_add_what_people_see(name: bytes) -> None:
    signed = signer().sign(MAIL, NOW)
    another = name + b": somebody@else.example\r\n"

    assert not holds(another + signed)
    assert not holds(signed.replace(b"X-Other: this\r\n", another))


@pytest.mark.parametrize(
    ("was", "becomes", "still"),
    [
        (b"it is there", b"it is gone", False),
        (b"it is there. ", b"it is there.", True),
        (b"Hello  Bob", b"Hello Bob", True),
        (b"Hello  Bob", b"HelloBob", False),
        (b"Bob,\r\n\r\n", b"Bob,\r\n", False),
        (b"A long way\r\n\tto go", b"A long  way to go", True),
        (b"A long way", b"A short way", False),
        (b"Subject:", b"SUBJECT: ", True),
        (b"X-Other: this", b"X-Other: that", True),
        (b"; d=example.org", b";  d=example.org", True),
        (b"t=1700000000", b"t=1700000001", False),
    ],
)
def test_what_changes_a_mail_breaks_its_signature_and_white_space_does_not(
    was: bytes, becomes: bytes, still: bool
) -> None:
    signed = signer().sign(MAIL, NOW)

    assert was in signed
    assert holds(signed.replace(was, becomes)) == still


def test_another_key_verifies_nothing() -> None:
    assert not holds(signer().sign(MAIL, NOW), rsa.generate_private_key(65537, 2048))


def test_of_several_fields_with_one_name_the_last_is_signed_first() -> None:
    source = b"From: a@example.org\r\nReply-To: one@x\r\nReply-To: two@x\r\n\r\n"
    signed = signer().sign(source, NOW)
    swapped = signed.replace(b"one@x", b"(@x").replace(b"two@x", b"one@x").replace(b"(@x", b"two@x")

    assert holds(signed)
    assert not holds(swapped)


def test_a_signature_that_is_there_already_stays_and_still_holds() -> None:
    once = signer().sign(MAIL, NOW)
    twice = signer().sign(once, NOW + 60)

    assert twice.endswith(once)
    assert holds(once)
    assert holds(twice)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"\r\n\r\n\r\n",
        b" ",
        b" \t\r\n \r\n",
        b"no line end",
        b"no line end ",
        b"ends\r\n\r\n\r\n",
        b"ends\r\n \t\r\n",
        b"\r\n\r\nbegins late\r\n",
        b" \t  leading\t\tand  trailing \t \r\nnext\r\n",
        b".\r\n..\r\n.dots\r\n",
        "Grüße, 日本\r\n".encode(),
        b"\xff\xfe\x00\x0b\x0c\r\n",
    ],
)
def test_every_kind_of_body_verifies(body: bytes) -> None:
    signed = signer().sign(b"From: ann@example.org\r\n\r\n" + body, NOW)

    assert holds(signed)
    assert not holds(sent(signed) + b"more\r\n")


@pytest.mark.parametrize("source", [b"From: ann@example.org", b"From: ann@example.org\r\n", b"From: ann@example.org\n"])
def test_a_mail_without_a_body_verifies(source: bytes) -> None:
    assert holds(signer().sign(source, NOW))


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_other_line_ends_become_those_of_mail(end: bytes) -> None:
    assert signer().sign(MAIL.replace(b"\r\n", end), NOW) == signer().sign(MAIL, NOW)
    mixed = MAIL.replace(b"\r\n", end, 3)
    assert signer().sign(mixed, NOW) == signer().sign(MAIL, NOW)


@pytest.mark.parametrize(
    "field",
    [
        b"Subject:\r\n",
        b"Subject:\r\n  late\r\n",
        b"Subject: folded\r\n \r\n\tand  more\t\r\n",
        "Subject: Grüße  aus Köln\r\n".encode(),
        b"subject:tight\r\n",
        b"Subject: a: b; c=d\r\n",
    ],
)
def test_every_kind_of_field_verifies(field: bytes) -> None:
    signed = signer().sign(field + b"From: ann@example.org\r\n\r\nHello\r\n", NOW)

    assert holds(signed)
    assert not holds(signed.replace(field, b"Subject: other\r\n"))


def test_a_space_before_the_colon_does_not_hide_a_field() -> None:
    spaced = signer().sign(b"From : ann@example.org\r\n\r\n", NOW)

    assert holds(spaced.replace(b"From :", b"From:"))


def test_letters_verify() -> None:
    words = Words(
        sender="Käthe <ann@example.org>",
        to=["bob@x.example", "çelik@x.example"],
        cc=["cyd@x.example"],
        subject="Grüße aus Köln, und dann noch ein sehr langer Betreff, der nicht auf eine Zeile passt",
        text="Hallo,\n\nes ist da.  \n\n\n",
        html="<p>Grüße</p>",
        reply_to="shop@example.org",
        unsubscribe="https://example.org/u",
        attachments=[Attachment("räum.pdf", bytes(range(256)) * 20, "application/pdf")],
    )
    made = letter(words, "0190a5d1-ac96-774b-bcce-b302099a8057", 1_700_000_000_000_000)
    signed = signer().sign(made.source, NOW)

    assert holds(signed)
    assert signed.endswith(made.source)
    assert not holds(signed.replace(b"/u>", b"/v>"))


WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs")) | st.just("\t"), max_size=20).map(str.encode)
VALUES = st.lists(WORDS, max_size=4).map(b"\r\n ".join)
NAMES = st.sampled_from([*SIGNED[1:], b"x-other", b"received", b"dkim-signature-not", b"fromage"])
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.sampled_from([bytes.upper, bytes.title, bytes.lower])), max_size=12)
PIECES = st.lists(st.sampled_from([b" ", b"\t", b"\r\n", b"a", b".", b"\xc3\xa4", b"\r", b"\n"])).map(b"".join)


@unhurried
@given(fields=FIELDS, place=st.integers(0, 12), body=PIECES | st.binary())
def test_whatever_is_signed_verifies(fields: list[tuple[bytes, bytes, Any]], place: int, body: bytes) -> None:
    lines = [spelled(name) + b":" + value for name, value, spelled in fields]
    lines.insert(place, b"From: ann@example.org")

    assert holds(signer().sign(b"\r\n".join(lines) + b"\r\n\r\n" + body, NOW))


def test_the_example_of_the_standard_verifies_and_has_our_body_hash() -> None:
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    signed = Dkim("football.example.com", "brisbane", pem(key)).sign(SIGNED_MAIL, NOW)

    assert holds_with_ed25519(SIGNATURE + SIGNED_MAIL, key.public_key())
    assert holds_with_ed25519(signed, key.public_key())
    assert (tags(signed)["a"], tags(signed)["bh"]) == ("ed25519-sha256", BODY_HASH)


@pytest.mark.parametrize(("was", "becomes"), [(b"it is there", b"it is gone"), (b"A long", b"A short")])
def test_a_changed_mail_does_not_verify_with_ed25519(was: bytes, becomes: bytes) -> None:
    key = Ed25519PrivateKey.generate()
    signed = Dkim("example.org", "s1", pem(key)).sign(MAIL, NOW)

    assert holds_with_ed25519(signed, key.public_key())
    assert not holds_with_ed25519(signed.replace(was, becomes), key.public_key())
    assert not holds_with_ed25519(signed, Ed25519PrivateKey.generate().public_key())


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\r\nFrom: ann@example.org\r\n\r\n",
        b"To: bob@x.example\r\n\r\nFrom: ann@example.org\r\n",
        b"From: a@example.org\r\nfrom: b@example.org\r\n\r\n",
        b"From: a@example.org\rFrom: b@example.org\r\n\r\n",
        b"From: a@example.org\r\nno field\r\n\r\n",
        b" continued\r\nFrom: a@example.org\r\n\r\n",
        b"From a@example.org Thu Jan  1\r\nFrom: a@example.org\r\n\r\n",
    ],
)
def test_a_mail_is_refused_unless_it_has_one_from_and_nothing_but_fields(source: bytes) -> None:
    with pytest.raises(BadOption, match=r"^dkim: the mail has"):
        signer().sign(source, NOW)


def test_keys_are_taken_in_their_usual_forms() -> None:
    expected = signer().sign(MAIL, NOW)
    forms = [pem(rsa_key(), PrivateFormat.PKCS8), pem(rsa_key(), PrivateFormat.TraditionalOpenSSL)]

    for form in forms:
        assert Dkim("example.org", "s1", form).sign(MAIL, NOW) == expected
        assert Dkim("example.org", "s1", form.decode()).sign(MAIL, NOW) == expected
    short = rsa.generate_private_key(65537, 1024)
    assert holds(Dkim("example.org", "s1", pem(short)).sign(MAIL, NOW), short)


def unusable_keys() -> Iterator[tuple[Any, str]]:
    locked = BestAvailableEncryption(b"s3cret")
    good = pem(rsa_key())
    yield pem(rsa_key(), encryption=locked), "encrypted"
    yield pem(rsa_key(), PrivateFormat.TraditionalOpenSSL, locked), "encrypted"
    yield public_pem(rsa_key()), "public key"
    yield public_pem(Ed25519PrivateKey.generate()).decode(), "public key"
    yield pem(weak_key()), "648 bits"
    yield pem(ec.generate_private_key(ec.SECP256R1())), "neither RSA nor Ed25519"
    yield pem(ed448.Ed448PrivateKey.generate()), "neither RSA nor Ed25519"
    yield pem(rsa_key(), PrivateFormat.OpenSSH), "cannot be read"
    yield good.replace(b"MII", b"NII"), "cannot be read"
    yield good[: len(good) // 2], "cannot be read"
    yield good.decode().replace("\n", " \udc80\n", 3), "cannot be read"
    yield b64encode(SEED), "cannot be read"
    yield "", "cannot be read"
    yield None, "text or bytes"
    yield rsa_key(), "text or bytes"


@pytest.mark.parametrize("place", range(15))
def test_a_key_that_cannot_sign_is_refused_and_never_shown(place: int) -> None:
    key, told = list(unusable_keys())[place]
    with pytest.raises(BadOption, match=told) as caught:
        Dkim("example.org", "s1", key)

    shown = f"{caught.value} {caught.value!r}"
    text = key if isinstance(key, str | bytes) else b""
    secret = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    assert str(caught.value).startswith("dkim private key: ")
    assert not any(secret[start : start + 8] in shown for start in range(30, len(secret) - 40))


def test_a_signer_shows_nothing_of_its_key() -> None:
    assert repr(signer()) == "Dkim(domain='example.org', selector='s1')"
    assert str(signer()) == repr(signer())


@pytest.mark.parametrize(
    ("domain", "selector", "expected"),
    [
        ("example.org", "s1", ("example.org", "s1")),
        ("EXAMPLE.org", "2024-A.Mail", ("example.org", "2024-a.mail")),
        ("bücher.example", "s", ("xn--bcher-kva.example", "s")),
        ("BU\u0308CHER.example", "s", ("xn--bcher-kva.example", "s")),
        ("xn--bcher-kva.example", "s", ("xn--bcher-kva.example", "s")),
        (f"{'a' * 63}.example", "b" * 63, (f"{'a' * 63}.example", "b" * 63)),
    ],
)
def test_names_are_written_as_dns_has_them(domain: str, selector: str, expected: tuple[str, str]) -> None:
    found = Dkim(domain, selector, pem(rsa_key()))

    assert (found.domain, found.selector) == expected
    assert {"d": found.domain, "s": found.selector}.items() <= tags(found.sign(MAIL, NOW)).items()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ".",
        "org",
        "example.org.",
        ".example.org",
        "example..org",
        "-example.org",
        "example-.org",
        "exa mple.org",
        "example.org\n",
        "example.org; d=other.example",
        "ann@example.org",
        "straße.example",
        "example\u3002org",
        "\uff45xample.org",
        f"{'a' * 64}.example",
        f"{'ü' * 60}.example",
        ".".join(["a" * 60] * 5),
        ".".join(["ü" * 10] * 20),
        "a" * 100_000,
        b"example.org",
        None,
    ],
)
def test_what_is_no_domain_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match=r"^dkim domain: .*example\.org$"):
        Dkim(wrong, "s1", pem(rsa_key()))


@pytest.mark.parametrize("wrong", ["", "s 1", "s1.", "s_1", "-s", "s;b=", "s\r\n", "sü", "a" * 64, b"s1", None, 7])
def test_what_is_no_selector_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match=r"^dkim selector: "):
        Dkim("example.org", wrong, pem(rsa_key()))


def test_a_selector_and_a_domain_have_to_fit_into_one_name() -> None:
    domain = ".".join(["a" * 58] * 4)
    fitting = "s" * (253 - len(f"._domainkey.{domain}"))

    assert Dkim(domain, fitting, pem(rsa_key())).selector == fitting
    with pytest.raises(BadOption, match="254 characters"):
        Dkim(domain, fitting + "s", pem(rsa_key()))


@pytest.mark.parametrize(
    ("sender", "covered"),
    [
        ("ann@bücher.example", True),
        ("ANN@BÜCHER.EXAMPLE", True),
        ("ann@xn--bcher-kva.example", True),
        ("ann@mail.bücher.example", True),
        ("ann@a.b.XN--bcher-kva.example", True),
        ('"a@b"@bücher.example', True),
        ("ann@example", False),
        ("ann@xbücher.example", False),
        ("ann@notxn--bcher-kva.example", False),
        ("ann@bücher.example.org", False),
        ("ann@.bücher.example", False),
        ("ann@bücher.example.", False),
        ("ann@bücher.example>", False),
        ("ann@bucher.example", False),
        ("bücher.example", False),
        ("ann@", False),
        ("", False),
        ("ann@[127.0.0.1]", False),
    ],
)
def test_a_key_covers_its_domain_and_those_below(sender: str, covered: bool) -> None:
    assert Dkim("bücher.example", "s1", pem(rsa_key())).covers(sender) == covered


def test_without_cryptography_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    key = pem(rsa_key())
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(MissingPackage, match=r"pip install 'durably\[smtp\]'"):
        Dkim("example.org", "s1", key)
