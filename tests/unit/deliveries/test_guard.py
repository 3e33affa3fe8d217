"""The address guard: one reading of every URL, and no way into the network that the sender is in."""

# ruff: noqa: RUF001 (characters that look like others are what is tested here)

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from durably.deliveries.guard import MAX_URL, Guard, Target
from durably.errors import BadOption, Refused, Unresolved

SECRET = "hunter2"


class Answers:
    """A resolver that gives one listed answer after the other, and remembers what it was asked."""

    def __init__(self, *answers: Iterable[str] | OSError) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Iterable[str]:
        self.asked.append((host, port))
        answer = next(self._answers)
        if isinstance(answer, OSError):
            raise answer
        return answer


def named(*cases: tuple[str, str]) -> list[object]:
    return [pytest.param(value, id=name) for name, value in cases]


def bad_urls() -> list[object]:
    return named(
        ("empty", ""),
        ("no-scheme", "example.com/hook"),
        ("no-scheme-but-slashes", "//example.com/hook"),
        ("scheme-without-slashes", "https:example.com"),
        ("scheme-with-one-slash", "https:/example.com"),
        ("http-unless-allowed", "http://example.com/"),
        ("ftp", "ftp://example.com/"),
        ("file", "file:///etc/passwd"),
        ("gopher", "gopher://example.com:443/_GET"),
        ("scheme-in-other-letters", "httpſ://example.com/"),
        ("no-host", "https://"),
        ("no-host-but-path", "https:///example.com/"),
        ("no-host-but-port", "https://:443/"),
        ("no-host-but-query", "https://?example.com"),
        ("user", "https://user@example.com/"),
        ("password", f"https://user:{SECRET}@example.com/"),
        ("empty-userinfo", "https://@example.com/"),
        ("two-ats", "https://a@b@example.com/"),
        ("address-as-user", "https://example.com@127.0.0.1/"),
        ("fragment", "https://example.com/#part"),
        ("fragment-before-at", "https://example.com#@127.0.0.1/"),
        ("empty-fragment", "https://example.com/#"),
        ("space-inside", "https://example.com/a b"),
        ("space-in-front", " https://example.com/"),
        ("space-at-the-end", "https://example.com/ "),
        ("space-in-host", "https://example.com 127.0.0.1/"),
        ("tab", "https://exam\tple.com/"),
        ("line-feed", "https://example.com/\nHost: inside"),
        ("line-feed-at-the-end", "https://example.com/\n"),
        ("carriage-return", "https://example.com/\r"),
        ("nul", "https://example.com\0.evil.example/"),
        ("delete", "https://example.com/\x7f"),
        ("next-line", "https://example.com/\x85"),
        ("no-break-space", "https://example.com/\xa0"),
        ("zero-width-space", "https://exam\u200bple.com/"),
        ("right-to-left-override", "https://example.com/\u202egpj"),
        ("lone-surrogate", "https://example.com/\ud800"),
        ("backslash", "https://example.com\\@127.0.0.1/"),
        ("backslash-in-path", "https://example.com/a\\b"),
        ("backslashes-for-slashes", "https:\\\\example.com\\"),
        ("too-long", "https://example.com/" + "a" * MAX_URL),
        ("too-long-as-written", "https://a.example:443/".ljust(MAX_URL + 1, "a")),
        ("too-long-when-encoded", "https://example.com/" + "é" * 1000),
        ("ssh", "https://example.com:22/"),
        ("smtp", "https://example.com:25/"),
        ("redis", "https://example.com:6379/"),
        ("address-with-port-of-another", "https://93.184.215.14:22/"),
        ("port-zero", "https://example.com:0/"),
        ("port-beyond", "https://example.com:65536/"),
        ("port-far-beyond", "https://example.com:4294967739/"),
        ("port-empty", "https://example.com:/"),
        ("port-padded", "https://example.com:0443/"),
        ("port-negative", "https://example.com:-443/"),
        ("port-with-sign", "https://example.com:+443/"),
        ("port-full-width", "https://example.com:４４３/"),
        ("port-half-full-width", "https://example.com:4４3/"),
        ("port-by-name", "https://example.com:https/"),
        ("two-ports", "https://example.com:443:443/"),
        ("loopback", "https://127.0.0.1/"),
        ("loopback-other", "https://127.255.255.254/"),
        ("unspecified", "https://0.0.0.0/"),
        ("private-10", "https://10.0.0.1/"),
        ("private-172", "https://172.31.0.1/"),
        ("private-192", "https://192.168.1.1/"),
        ("metadata", "https://169.254.169.254/latest/meta-data/"),
        ("hex-whole", "https://0x7f000001/"),
        ("hex-whole-public", "https://0x08080808/"),
        ("hex-upper", "https://0X7F.1/"),
        ("hex-parts", "https://0x7f.0x0.0x0.0x1/"),
        ("hex-last", "https://127.0.0.0x1/"),
        ("hex-empty", "https://127.0.0.0x/"),
        ("octal", "https://0177.0.0.1/"),
        ("octal-public", "https://010.8.8.8/"),
        ("octal-last", "https://127.0.0.01/"),
        ("decimal-whole", "https://2130706433/"),
        ("decimal-whole-public", "https://134744072/"),
        ("two-parts", "https://127.1/"),
        ("three-parts", "https://8.8.2056/"),
        ("five-parts", "https://1.2.3.4.5/"),
        ("part-too-big", "https://127.0.0.256/"),
        ("number-after-name", "https://example.1/"),
        ("zero", "https://0/"),
        ("trailing-dot-address", "https://127.0.0.1./"),
        ("trailing-dot-public-address", "https://8.8.8.8./"),
        ("trailing-dots-address", "https://8.8.8.8../"),
        ("trailing-dot-name", "https://example.com./"),
        ("leading-dot", "https://.example.com/"),
        ("double-dot", "https://example..com/"),
        ("only-dot", "https://./"),
        ("full-width-digits", "https://１２７.０.０.１/"),
        ("full-width-letters", "https://ｅxample.com/"),
        ("circled-digits", "https://①②⑦.0.0.①/"),
        ("digit-with-full-stop", "https://127.0.0\U0001f100example/"),
        ("ideographic-full-stop", "https://127。0。0。1/"),
        ("ideographic-full-stop-name", "https://example。com/"),
        ("kelvin-sign", "https://\u212a.example/"),
        ("account-of", "https://example.com\u2100.evil.example/"),
        ("sharp-s", "https://faß.example/"),
        ("sharp-s-and-umlaut", "https://fäß.example/"),
        ("cherokee-small", "https://\uab70.example/"),
        ("vowel-unseen", "https://b\u17b4a.example/"),
        ("final-sigma", "https://βόλος.example/"),
        ("direction-mixed", "https://אa1.example/"),
        ("percent-in-host", "https://exam%70le.com/"),
        ("percent-address", "https://%31%32%37.0.0.1/"),
        ("percent-dot", "https://127%2e0.0.1/"),
        ("percent-slash", "https://example.com%2f.evil.example/"),
        ("percent-nul", "https://example.com%00.evil.example/"),
        ("xn-without-code", "https://xn--.example/"),
        ("xn-of-ascii", "https://xn--localhost-/"),
        ("xn-broken", "https://xn--0.example/"),
        ("xn-beyond-unicode", "https://xn--99999999999.example/"),
        ("xn-of-full-width", "https://xn--" + "１２７".encode("punycode").decode() + ".example/"),
        ("xn-of-unseen", "https://xn--ba-gto.example/"),
        ("xn-in-other-case", "https://xn--a-ü.example/"),
        ("comma-in-host", "https://example.com,evil.example/"),
        ("semicolon-in-host", "https://example.com;evil.example/"),
        ("ampersand-in-host", "https://example.com&evil.example/"),
        ("star-in-host", "https://*.example.com/"),
        ("hyphen-in-front", "https://-example.com/"),
        ("hyphen-at-the-end", "https://example-.com/"),
        ("label-too-long", f"https://{'a' * 64}.example/"),
        ("label-too-long-when-encoded", f"https://{'ü' * 63}.example/"),
        ("name-too-long", f"https://{'a.' * 126}aa/"),
        ("name-too-long-when-encoded", "https://" + "ü." * 40 + "example/"),
        ("v6-loopback", "https://[::1]/"),
        ("v6-unspecified", "https://[::]/"),
        ("v6-mapped-loopback", "https://[::ffff:127.0.0.1]/"),
        ("v6-mapped-hex", "https://[::ffff:7f00:1]/"),
        ("v6-mapped-public", "https://[::ffff:8.8.8.8]/"),
        ("v6-compatible", "https://[::127.0.0.1]/"),
        ("v6-nat64-loopback", "https://[64:ff9b::127.0.0.1]/"),
        ("v6-private", "https://[fd00:ec2::254]/"),
        ("v6-link-local", "https://[fe80::1]/"),
        ("v6-zone", "https://[fe80::1%25eth0]/"),
        ("v6-zone-raw", "https://[fe80::1%eth0]/"),
        ("v6-zone-public", "https://[2606:4700::1111%25eth0]/"),
        ("v6-bare", "https://2606:4700::1111/"),
        ("v6-open", "https://[2606:4700::1111/"),
        ("v6-empty", "https://[]/"),
        ("v6-two-gaps", "https://[2606::4700::1111]/"),
        ("v6-then-name", "https://[2606:4700::1111]example.com/"),
        ("v6-brackets-round-v4", "https://[8.8.8.8]/"),
        ("v6-brackets-round-name", "https://[example.com]/"),
        ("v6-future", "https://[v1.fe80::a]/"),
        ("dot-segment", "https://example.com/a/./b"),
        ("dot-dot-segment", "https://example.com/a/../b"),
        ("dot-dot-at-the-end", "https://example.com/a/.."),
        ("dot-dot-encoded", "https://example.com/a/%2e%2E/b"),
        ("percent-alone", "https://example.com/100%"),
        ("percent-broken", "https://example.com/%zz"),
        ("percent-broken-in-query", "https://example.com/?a=%4"),
    )


@pytest.mark.parametrize("url", bad_urls())
def test_a_url_that_can_mislead_is_refused(url: str) -> None:
    with pytest.raises(Refused) as caught:
        Guard().target(url)
    message = str(caught.value)
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < 250
    assert SECRET not in message


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (f"https://user:{SECRET}@example.com/", "carries a user name or password"),
        ("https://user@/", "carries a user name or password"),
        ("https://[fe80::1%25eth0]/", r"^'fe80::1%25eth0': zones"),
        (f"https://{'a.' * 127}/", "^the host has 254 characters; names have at most 253"),
        (f"https://{'ü' * 254}/", "^the host has 254 characters; names have at most 253"),
        ("http://example.com/", "the scheme of the URL is 'http'; only https is accepted"),
        ("https://127.1/", r"^'127\.1': what ends in a number must be an address in full"),
    ],
)
def test_a_refusal_names_the_rule(url: str, rule: str) -> None:
    with pytest.raises(Refused, match=rule):
        Guard().target(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "normal"),
    [
        pytest.param(url, host, port, path, normal or url, id=name)
        for name, url, host, port, path, normal in (
            ("plain", "https://example.com/", "example.com", 443, "/", None),
            ("no-path", "https://example.com", "example.com", 443, "/", "https://example.com/"),
            ("query-only", "https://example.com?a=1", "example.com", 443, "/?a=1", "https://example.com/?a=1"),
            ("path-and-query", "https://example.com/a/b?c=d&e", "example.com", 443, "/a/b?c=d&e", None),
            ("upper-case", "HTTPS://EXAMPLE.Com/A", "example.com", 443, "/A", "https://example.com/A"),
            ("own-port", "https://example.com:443/", "example.com", 443, "/", "https://example.com/"),
            ("other-port", "https://example.com:8443/", "example.com", 8443, "/", None),
            ("port-of-http", "https://example.com:80/", "example.com", 80, "/", None),
            ("http", "http://example.com/", "example.com", 80, "/", None),
            ("http-own-port", "http://example.com:80/", "example.com", 80, "/", "http://example.com/"),
            ("http-8080", "http://example.com:8080/x", "example.com", 8080, "/x", None),
            ("one-label", "https://receiver/", "receiver", 443, "/", None),
            ("underscore", "https://my_shop.example/", "my_shop.example", 443, "/", None),
            ("hyphens", "https://r3---sn-x.example/", "r3---sn-x.example", 443, "/", None),
            ("digits-in-front", "https://1.2.3.4.example/", "1.2.3.4.example", 443, "/", None),
            ("hex-in-front", "https://0x7f.example/", "0x7f.example", 443, "/", None),
            ("container-id", "https://4f5e6d/", "4f5e6d", 443, "/", None),
            ("longest-label", f"https://{'a' * 63}.example/", "a" * 63 + ".example", 443, "/", None),
            ("longest-name", f"https://{'a.' * 126}a/", "a." * 126 + "a", 443, "/", None),
            ("umlaut", "https://bücher.example/", "xn--bcher-kva.example", 443, "/", "https://xn--bcher-kva.example/"),
            (
                "umlaut-upper",
                "https://BÜCHER.example/",
                "xn--bcher-kva.example",
                443,
                "/",
                "https://xn--bcher-kva.example/",
            ),
            ("umlaut-encoded", "https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/", None),
            ("sharp-s-encoded", "https://xn--fa-hia.example/", "xn--fa-hia.example", 443, "/", None),
            ("chinese", "https://例え.テスト/", "xn--r8jz45g.xn--zckzah", 443, "/", "https://xn--r8jz45g.xn--zckzah/"),
            ("hebrew", "https://אב.example/", "xn--4dbc.example", 443, "/", "https://xn--4dbc.example/"),
            ("v4", "https://93.184.215.14/", "93.184.215.14", 443, "/", None),
            ("v4-and-port", "https://1.1.1.1:8443/", "1.1.1.1", 8443, "/", None),
            ("v6", "https://[2606:4700::1111]/", "2606:4700::1111", 443, "/", None),
            ("v6-and-port", "https://[2606:4700::1111]:8443/", "2606:4700::1111", 8443, "/", None),
            ("v6-long", "https://[2606:4700:0:0:0:0:0:A]/", "2606:4700::a", 443, "/", "https://[2606:4700::a]/"),
            ("nat64-public", "https://[64:ff9b::808:808]/", "64:ff9b::808:808", 443, "/", None),
            ("at-in-path", "https://example.com/@user", "example.com", 443, "/@user", None),
            ("at-in-query", "https://example.com/?a@b", "example.com", 443, "/?a@b", None),
            (
                "url-in-query",
                "https://example.com/?u=http://127.0.0.1/",
                "example.com",
                443,
                "/?u=http://127.0.0.1/",
                None,
            ),
            ("delimiters", "https://example.com/!$&'()*+,;=:~-._", "example.com", 443, "/!$&'()*+,;=:~-._", None),
            ("escapes-stay", "https://example.com/%2f%2F%0A?%00", "example.com", 443, "/%2f%2F%0A?%00", None),
            ("dots-in-names", "https://example.com/.a/..b/c../...", "example.com", 443, "/.a/..b/c../...", None),
            ("dots-in-query", "https://example.com/?a/../b", "example.com", 443, "/?a/../b", None),
            ("double-slash", "https://example.com//a//", "example.com", 443, "//a//", None),
            (
                "accent",
                "https://example.com/é?ü",
                "example.com",
                443,
                "/%C3%A9?%C3%BC",
                "https://example.com/%C3%A9?%C3%BC",
            ),
            (
                "brackets",
                "https://example.com/?a[]={|}",
                "example.com",
                443,
                "/?a%5B%5D=%7B%7C%7D",
                "https://example.com/?a%5B%5D=%7B%7C%7D",
            ),
            ("longest", "https://a.example/" + "a" * 2030, "a.example", 443, "/" + "a" * 2030, None),
        )
    ],
)
def test_a_plain_url_has_one_reading(url: str, host: str, port: int, path: str, normal: str) -> None:
    target = Guard(http=True).target(url)

    assert target == Target(url.partition(":")[0].lower(), host, port, path)
    assert target.url == normal
    assert target.authority == normal.split("/")[2]


PRIVATE, DOCUMENTATION, MULTICAST = "a private network", "a documentation network", "a multicast group"
PROTOCOLS, SIX_TO_FOUR, OUTSIDE = "a network of IETF protocols", "a 6to4 network", "outside global unicast"
ZONE, NO_ADDRESS = "with a zone", "not an IP address"


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        pytest.param(address, rule, id=address or "empty")
        for address, rule in (
            ("0.0.0.0", "the unspecified network"),
            ("0.1.2.3", "the unspecified network"),
            ("10.0.0.0", PRIVATE),
            ("10.255.255.255", PRIVATE),
            ("100.64.0.0", "the shared network"),
            ("100.100.100.200", "the shared network"),
            ("100.127.255.255", "the shared network"),
            ("127.0.0.1", "the loopback network"),
            ("127.255.255.255", "the loopback network"),
            ("168.63.129.16", "an Azure machine"),
            ("169.254.0.0", "metadata"),
            ("169.254.169.254", "metadata"),
            ("169.254.255.255", "metadata"),
            ("172.16.0.0", PRIVATE),
            ("172.31.255.255", PRIVATE),
            ("192.0.0.0", PROTOCOLS),
            ("192.0.0.9", PROTOCOLS),
            ("192.0.0.192", PROTOCOLS),
            ("192.0.0.255", PROTOCOLS),
            ("192.0.2.1", DOCUMENTATION),
            ("192.88.99.1", "6to4 relays"),
            ("192.168.0.0", PRIVATE),
            ("192.168.255.255", PRIVATE),
            ("198.18.0.0", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("198.51.100.1", DOCUMENTATION),
            ("203.0.113.255", DOCUMENTATION),
            ("224.0.0.1", MULTICAST),
            ("239.255.255.250", MULTICAST),
            ("240.0.0.1", "a reserved network"),
            ("255.255.255.255", "a reserved network"),
            ("::", "the unspecified address"),
            ("::1", "the loopback address"),
            ("::2", OUTSIDE),
            ("::127.0.0.1", OUTSIDE),
            ("::8.8.8.8", OUTSIDE),
            ("::ffff:0.0.0.0", "the unspecified network"),
            ("::ffff:127.0.0.1", "the loopback network"),
            ("::ffff:a9fe:a9fe", "metadata"),
            ("::ffff:0:127.0.0.1", OUTSIDE),
            ("64:ff9b::127.0.0.1", "the loopback network"),
            ("64:ff9b::10.0.0.1", PRIVATE),
            ("64:ff9b::a9fe:a9fe", "metadata"),
            ("64:ff9b::1:0:0", OUTSIDE),
            ("64:ff9b:1::8.8.8.8", "a local NAT64 network"),
            ("64:ff9b:1:a00:0:100::", "a local NAT64 network"),
            ("100::1", OUTSIDE),
            ("100:0:0:1::1", OUTSIDE),
            ("1fff::1", OUTSIDE),
            ("2001::1", PROTOCOLS),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
            ("2001:2::1", PROTOCOLS),
            ("2001:10::1", "ORCHID"),
            ("2001:20::1", "ORCHID"),
            ("2001:1ff:ffff::1", PROTOCOLS),
            ("2001:db8::1", DOCUMENTATION),
            ("2002:7f00:1::", SIX_TO_FOUR),
            ("2002:a9fe:a9fe::1", SIX_TO_FOUR),
            ("2002:808:808::1", SIX_TO_FOUR),
            ("2606:4700::5efe:10.0.0.1", "an ISATAP address"),
            ("2606:4700::200:5efe:808:808", "an ISATAP address"),
            ("3fff::1", DOCUMENTATION),
            ("3fff:fff:ffff::1", DOCUMENTATION),
            ("4000::1", OUTSIDE),
            ("5f00::1", OUTSIDE),
            ("fc00::1", PRIVATE),
            ("fd00:ec2::254", PRIVATE),
            ("fd20:ce::254", PRIVATE),
            ("fe00::1", OUTSIDE),
            ("fe80::1", "the link-local network"),
            ("febf:ffff::1", "the link-local network"),
            ("fec0::1", "a site-local network"),
            ("feff::1", "a site-local network"),
            ("ff02::1", MULTICAST),
            ("ff0e::1", MULTICAST),
            ("fe80::1%eth0", ZONE),
            ("2606:4700::1111%1", ZONE),
            ("::ffff:8.8.8.8%1", ZONE),
            ("", NO_ADDRESS),
            ("localhost", NO_ADDRESS),
            ("8.8.8.8:443", NO_ADDRESS),
            ("[2606:4700::1111]", NO_ADDRESS),
            ("8.8.8.8/32", NO_ADDRESS),
            ("8.8.8.08", NO_ADDRESS),
            ("8.8.2056", NO_ADDRESS),
            ("0x08080808", NO_ADDRESS),
            ("134744072", NO_ADDRESS),
            ("８.8.8.8", NO_ADDRESS),
            (" 8.8.8.8", NO_ADDRESS),
            ("8.8.8.8\n", NO_ADDRESS),
        )
    ],
)
def test_an_address_inside_is_refused_and_the_rule_named(address: str, rule: str) -> None:
    with pytest.raises(Refused, match=rule) as caught:
        Guard().check(address)
    assert ascii(address) in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "1.0.0.0",
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.215.14",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "2000::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2003::1",
        "2606:4700:4700::1111",
        "2606:4700::100:5efe:a00:1",
        "2620:4f:8000::1",
        "2a00:1450:4001:80b::200e",
        "3fff:1000::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ],
)
def test_a_public_address_passes(address: str) -> None:
    Guard().check(address)


def embeddings(address: IPv4Address) -> list[str]:
    """The ways in which an IPv4 address has been put into an IPv6 address."""
    number = int(address)
    high, low = number >> 16, number & 0xFFFF
    flipped = number ^ 0xFFFF_FFFF
    return [
        str(address),
        f"::ffff:{address}",
        f"::{address}",
        f"::ffff:0:{address}",
        f"64:ff9b::{address}",
        f"64:ff9b:1::{address}",
        f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:{high:x}:{low:x}::f7f7:f7f7",
        f"2001:0:808:808:8000:0:{flipped >> 16:x}:{flipped & 0xFFFF:x}",
        f"2606:4700::5efe:{high:x}:{low:x}",
        f"2606:4700::200:5efe:{high:x}:{low:x}",
        f"fe80::5efe:{high:x}:{low:x}",
    ]


def is_inside(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or not address.is_global
    )


def is_refused(guard: Guard, address: str) -> bool:
    try:
        guard.check(address)
    except Refused:
        return True
    return False


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_inside_is_refused_in_every_embedding(address: IPv4Address) -> None:
    if is_inside(address):
        assert [one for one in embeddings(address) if not is_refused(Guard(), one)] == []


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_global_passes(address: IPv4Address) -> None:
    more = map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"))
    if not is_inside(address) and not any(address in network for network in more):
        Guard().check(str(address))
        Guard().check(f"::ffff:{address}")
        Guard().check(f"64:ff9b::{address}")


@given(st.ip_addresses(v=6) | st.ip_addresses(network="2000::/3") | st.ip_addresses(network="2001::/22"))
def test_what_the_standard_library_calls_inside_is_refused_in_ipv6(address: IPv6Address) -> None:
    unwrapped = address.ipv4_mapped is not None or address in IPv6Network("64:ff9b::/96")
    if is_inside(address) and not unwrapped:
        assert is_refused(Guard(), str(address))


@given(st.from_regex(r"(0[xX])?[0-9a-fA-F.xX]{1,20}\.?(0x)?[0-9a-f]{0,3}\.?", fullmatch=True))
@example("0x7f.1")
@example("2130706433")
@example("127.1")
def test_no_name_is_an_address_to_the_resolver(host: str) -> None:
    try:
        target = Guard().target(f"https://{host}/")
    except Refused:
        return
    try:
        number = socket.inet_aton(host)
    except OSError:
        return
    assert target.host == socket.inet_ntoa(number) == host


characters = st.sampled_from(
    [*"aA1.-_:@/?#[]%\\ \t\n\0é１。ßـ", "xn--", "://", "127.0.0.1", "::1", "%2e", "..", "\ud800"]
)


@given(
    st.lists(characters, max_size=12).map("".join) | st.text(max_size=30),
    st.lists(characters, max_size=12).map("".join) | st.text(max_size=30),
)
def test_a_url_is_refused_or_has_one_spelling(host: str, path: str) -> None:
    guard = Guard(http=True)
    try:
        target = guard.target(f"https://{host}/{path}")
    except Refused:
        return
    assert guard.target(target.url) == target
    assert target.url.isascii()
    assert target.url.isprintable()
    assert set(target.url).isdisjoint(' "#<>\\^`{|}')


async def test_a_name_is_looked_up_once_and_cannot_be_rebound() -> None:
    lookup = Answers(["93.184.215.14"], ["127.0.0.1"])
    guard = Guard(lookup=lookup)
    target = guard.target("https://rebind.example/")

    assert lookup.asked == []
    assert await guard.resolve(target.host, target.port) == ["93.184.215.14"]
    assert lookup.asked == [("rebind.example", 443)]
    with pytest.raises(Refused):
        await guard.resolve(target.host, target.port)


@pytest.mark.parametrize("inside", ["127.0.0.1", "10.1.2.3", "::1", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fe80::1%2"])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_address_inside_refuses_the_name_without_telling_the_address(inside: str, place: int) -> None:
    answer = ["93.184.215.14", "2606:4700::1111"]
    answer.insert(place, inside)

    with pytest.raises(Refused, match=r"^half\.example leads to") as caught:
        await Guard(lookup=Answers(answer)).resolve("half.example", 443)
    assert inside not in str(caught.value)
    assert "10.1.2.3" not in str(caught.value)


async def test_the_addresses_keep_their_order_and_come_once_and_unwrapped() -> None:
    answer = ["2606:4700:0::1111", "93.184.215.14", "2606:4700::1111", "::ffff:93.184.215.14", "64:ff9b::8.8.8.8"]

    found = await Guard(lookup=Answers(answer)).resolve("example.com", 443)
    assert found == ["2606:4700::1111", "93.184.215.14", "64:ff9b::808:808"]


@pytest.mark.parametrize("answer", [[], socket.gaierror(socket.EAI_AGAIN, "try again"), TimeoutError("too slow")])
async def test_a_name_without_an_address_may_have_one_later(answer: list[str] | OSError) -> None:
    with pytest.raises(Unresolved, match=r"^gone\.example: ") as caught:
        await Guard(lookup=Answers(answer)).resolve("gone.example", 443)
    assert not isinstance(caught.value, Refused)


async def test_an_answer_that_is_no_address_is_refused() -> None:
    with pytest.raises(Refused, match=r"^odd\.example leads to what is not an IP address"):
        await Guard(lookup=Answers(["inside.example"])).resolve("odd.example", 443)


@pytest.mark.parametrize(("host", "address"), [("1.1.1.1", "1.1.1.1"), ("2606:4700:0::1111", "2606:4700::1111")])
async def test_an_address_is_not_looked_up(host: str, address: str) -> None:
    lookup = Answers()

    assert await Guard(lookup=lookup).resolve(host, 443) == [address]
    assert lookup.asked == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "::1", "::ffff:8.8.8.8", "2606:4700::1%1", "", "a b", "a.", "."]
)
async def test_a_host_from_elsewhere_is_read_as_strictly(host: str) -> None:
    lookup = Answers()
    with pytest.raises(Refused):
        await Guard(lookup=lookup).resolve(host, 443)
    assert lookup.asked == []


async def test_a_host_from_elsewhere_is_looked_up_in_ascii() -> None:
    lookup = Answers(["93.184.215.14"])
    await Guard(ports=[25], lookup=lookup).resolve("MX.Bücher.example", 25)

    assert lookup.asked == [("mx.xn--bcher-kva.example", 25)]


async def test_the_port_is_checked_again_when_the_address_is_known() -> None:
    guard = Guard(allow=["10.0.0.0/8"], lookup=Answers(["93.184.215.14"], ["10.1.2.3"], ["10.1.2.3", "93.184.215.14"]))
    target = guard.target("https://example.com:9000/")

    with pytest.raises(Refused, match=r"^example\.com: port 9000 is not accepted; use one of 80, 443, 8080, 8443"):
        await guard.resolve(target.host, target.port)
    assert await guard.resolve(target.host, target.port) == ["10.1.2.3"]
    with pytest.raises(Refused, match="port 9000"):
        await guard.resolve(target.host, target.port)
    with pytest.raises(Refused, match="port 22"):
        await guard.resolve("1.1.1.1", 22)


def test_the_ports_can_be_chosen() -> None:
    guard = Guard(ports={9000})

    assert guard.target("https://example.com:9000/").authority == "example.com:9000"
    with pytest.raises(Refused, match="port 443 is not accepted; use one of 9000"):
        guard.target("https://example.com/")


def test_an_allowed_network_is_let_through_on_every_port() -> None:
    guard = Guard(http=True, allow=["127.0.0.0/8", "fd00:1::/32"])

    guard.check("127.0.0.1")
    guard.check("::ffff:127.0.0.1")
    guard.check("fd00:1::7")
    assert guard.target("http://127.0.0.1:54321/").port == 54321
    assert guard.target("http://[fd00:1::7]:22/").host == "fd00:1::7"
    with pytest.raises(Refused, match="the port of the URL is 65536"):
        guard.target("http://127.0.0.1:65536/")
    for outside in ("10.0.0.1", "fd00:2::7", "::1", "64:ff9b::127.0.0.1", "2002:7f00:1::", "::127.0.0.1"):
        assert is_refused(guard, outside), outside
    with pytest.raises(Refused, match="port 54321"):
        guard.target("http://1.1.1.1:54321/")


def test_whoever_allows_ipv6_does_not_allow_ipv4_in_disguise() -> None:
    guard = Guard(allow=["::/0"])

    guard.check("::1")
    assert is_refused(guard, "::ffff:10.0.0.1")
    with pytest.raises(Refused, match="mapped IPv4"):
        guard.target("https://[::ffff:10.0.0.1]/")


def test_a_denied_network_is_refused_even_where_it_is_allowed() -> None:
    guard = Guard(allow=["10.0.0.0/8", "0.0.0.0/0"], deny=["10.9.0.0/16", "93.184.0.0/16", "2606:4700:64::/96"])

    guard.check("10.8.0.1")
    guard.check("2606:4700:65::1")
    for denied in (
        "10.9.0.1",
        "93.184.215.14",
        "::ffff:93.184.215.14",
        "64:ff9b::93.184.215.14",
        "2606:4700:64::a00:1",
    ):
        with pytest.raises(Refused, match="a network that the guard denies"):
            guard.check(denied)


@pytest.mark.parametrize("network", ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "::ffff:127.0.0.0/104"])
@pytest.mark.parametrize("option", ["allow", "deny"])
def test_a_network_that_is_none_is_a_bad_option(network: str, option: str) -> None:
    networks = {option: [network]}
    with pytest.raises(BadOption, match=f"Guard {option}: "):
        Guard(allow=networks.get("allow", ()), deny=networks.get("deny", ()))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_a_bad_option(port: int) -> None:
    with pytest.raises(BadOption, match="ports are numbers from 1 to 65535"):
        Guard(ports=[443, port])


async def test_the_resolver_of_the_machine_is_asked_by_default() -> None:
    assert "127.0.0.1" in await Guard(allow=["127.0.0.0/8", "::1/128"]).resolve("localhost", 54321)
    with pytest.raises(Refused, match=r"^localhost leads to the loopback"):
        await Guard().resolve("localhost", 443)
