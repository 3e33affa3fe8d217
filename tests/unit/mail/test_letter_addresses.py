"""Addresses have one spelling, and never become those of somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from durably.errors import BadOption
from durably.mail.addresses import address
from durably.mail.letter import Words, letter


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "ann",
        "@x.example",
        "ann@",
        "a b@x.example",
        "a@x.example, b@x.example",
        "<>",
        "ann@x.example>",
        "a(b)@x.example",
        'a"b@x.example',
        '"a"b@x.example',
        '""@x.example',
        '"a b"@x.example',
        '"a>b"@x.example',
        "ann@x.example)",
        "ann@x:y",
        "ann@x..example",
        f"ann@{'x' * 64}.example",
        7,
        None,
    ],
)
def test_what_is_no_address_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match="address"):
        address(wrong, "to")


@pytest.mark.parametrize(
    ("given", "header", "envelope"),
    [
        ("ann@x.example", "ann@x.example", "ann@x.example"),
        (" Ann <ann@X.Example> ", "Ann <ann@X.Example>", "ann@X.Example"),
        ("Doe, Jane <j@x.example>", '"Doe, Jane" <j@x.example>', "j@x.example"),
        ('"Doe, Jane" <j@x.example>', '"Doe, Jane" <j@x.example>', "j@x.example"),
        (r'"The \"Shop\"" <j@x.example>', r'"The \"Shop\"" <j@x.example>', "j@x.example"),
        ("jörg@x.example", "jörg@x.example", "jörg@x.example"),
        ("a+b=c@localhost", "a+b=c@localhost", "a+b=c@localhost"),
        ("ann@[192.0.2.1]", "ann@[192.0.2.1]", "ann@[192.0.2.1]"),
        ("ann@under_score.example", "ann@under_score.example", "ann@under_score.example"),
    ],
)
def test_an_address_is_read_as_people_write_it(given: str, header: str, envelope: str) -> None:
    assert address(given, "to") == (header, envelope)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('"a@b"@x.example', '"a@b"@x.example'),
        (r'"a\"b"@x.example', r'"a\"b"@x.example'),
        (r'"a\\b"@x.example', r'"a\\b"@x.example'),
        ('"ann"@x.example', "ann@x.example"),
        (r'"a\nn"@x.example', "ann@x.example"),
        ("a..b@x.example", '"a..b"@x.example'),
        ('"a..b"@x.example', '"a..b"@x.example'),
        (".a@x.example", '".a"@x.example'),
    ],
)
def test_quotes_are_written_once_and_only_where_they_are_needed(given: str, expected: str) -> None:
    once = address(f"Ann <{given}>", "to")[1]

    assert once == expected == address(once, "to")[1]
    made = letter(Words(sender="shop@here.example", to=given, subject="Hello", text="x"), "id", 0)
    assert f"\r\nTo: {expected}\r\n".encode() in made.source


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.Example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("xn--strae-oqa.example", "xn--strae-oqa.example"),
    ],
)
def test_a_domain_outside_of_ascii_is_written_as_dns_has_it(domain: str, expected: str) -> None:
    assert address(f"Ann <ann@{domain}>", "to") == (f"Ann <ann@{expected}>", f"ann@{expected}")


@pytest.mark.parametrize(
    "domain",
    [
        "straße.example",
        "STRASSE.straẞe.example",
        "faς.example",
        "نامه\u200cی.example",
        "\uff45xample.org",
        "example\u3002org",
        "a\u00adb.example",
        "ﬁ.example",
        "\u13a0\u13a1.example",
        f"{'ü' * 60}.example",
    ],
)
def test_a_domain_that_not_all_read_alike_is_refused(domain: str) -> None:
    with pytest.raises(BadOption, match=r"write the domain in ASCII \(xn--"):
        address(f"ann@{domain}", "to")
