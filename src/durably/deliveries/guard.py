"""The address guard: nobody reaches the sender's own network by giving it a URL to call.

A URL is read strictly, so that no two readers can disagree about its host. Every address of that host is checked, and
the connection goes to the addresses that were checked: a name is looked up once and cannot change its mind in between.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, unquote

import msgspec

from durably.deliveries.lookups import system_lookup
from durably.errors import BadOption, Refused, Unresolved

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Lookup = Callable[[str, int], Awaitable[Iterable[str]]]

WEB_PORTS = (80, 443, 8080, 8443)
MAX_URL = 2048
MAX_NAME = 253
MAX_SHOWN = 80
REMEMBERED = 10_000
"""URLs that were read, and need not be read again."""

_SCHEME_PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(.*)")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\[\]]+)]|(?P<host>[^:\[\]]+))(?::(?P<port>[1-9][0-9]{0,4}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u206f\ufe00-\ufe0f\U000e0000-\U000e0fff]"
)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SENT_AS_WRITTEN = "/?:@!$&'()*+,;=%"

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), rule)
    for network, rule in (
        ("0.0.0.0/8", "the unspecified network"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "the shared network of a carrier or cloud"),
        ("127.0.0.0/8", "the loopback network"),
        ("168.63.129.16/32", "the host of an Azure machine"),
        ("169.254.0.0/16", "the link-local network, where clouds keep their metadata"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "a network of IETF protocols"),
        ("192.0.2.0/24", "a documentation network"),
        ("192.88.99.0/24", "the network of 6to4 relays"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "a benchmarking network"),
        ("198.51.100.0/24", "a documentation network"),
        ("203.0.113.0/24", "a documentation network"),
        ("224.0.0.0/4", "a multicast group"),
        ("240.0.0.0/4", "a reserved network"),
        ("::/128", "the unspecified address"),
        ("::1/128", "the loopback address"),
        ("64:ff9b:1::/48", "a local NAT64 network"),
        ("2001::/23", "a network of IETF protocols, such as Teredo and ORCHID"),
        ("2001:db8::/32", "a documentation network"),
        ("2002::/16", "a 6to4 network"),
        ("3fff::/20", "a documentation network"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "the link-local network"),
        ("fec0::/10", "a site-local network"),
        ("ff00::/8", "a multicast group"),
    )
)


class Target(msgspec.Struct, frozen=True):
    """Where a request goes, in the one spelling that is looked up, signed and sent.

    `host` is a lower-case ASCII name or an address without brackets; `path` is path and query as they are sent.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header: the port is left out where the scheme implies it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _SCHEME_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL, normalised."""
        return f"{self.scheme}://{self.authority}{self.path}"


class Guard:
    """Decides which URLs may be called and which addresses may be connected to.

    - `ports` may be used. By default those of web servers: a request can be shaped into what others listen for.
    - `http=True` accepts http as well as https.
    - `allow` names networks that are let through in spite of the rules, on every port.
    - `deny` names networks that are public and yet not to be called: one's own, or the prefix of one's own NAT64. It
      wins over `allow`.
    - `lookup` finds the addresses of a name. It raises `OSError`, or answers with none, if there are none.
    """

    def __init__(
        self,
        *,
        ports: Collection[int] = WEB_PORTS,
        http: bool = False,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        lookup: Lookup = system_lookup,
    ) -> None:
        for port in ports:
            if not 1 <= port <= 65535:
                raise BadOption(f"Guard ports: {port!r} is no port; ports are numbers from 1 to 65535")
        self._ports = frozenset(ports)
        self._schemes = ("https", "http") if http else ("https",)
        self._allow = _networks(allow, "allow")
        self._deny = _networks(deny, "deny")
        self._lookup = lookup
        self._read: dict[str, Target] = {}

    def target(self, url: str) -> Target:
        """Read a URL, or refuse it. An address is checked at once; a name is checked by `resolve`."""
        known = self._read.get(url)
        if known is None:
            if len(self._read) >= REMEMBERED:
                self._read.clear()
            known = self._read[url] = self._target(url)
        return known

    def _target(self, url: str) -> Target:
        if len(url) > MAX_URL:
            raise Refused(f"the URL has {len(url)} characters; at most {MAX_URL} are accepted")
        if not url.isprintable() or " " in url:
            raise Refused("the URL contains white space or invisible characters; percent-encode or remove them")
        if "\\" in url or "#" in url:
            raise Refused("the URL contains a backslash or a fragment (#); remove it")
        parts = _URL.fullmatch(url)
        if parts is None:
            raise Refused("the URL does not begin with a scheme and a host; write it as https://host/path")
        scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
        if scheme not in self._schemes:
            raise Refused(f"the scheme of the URL is {_shown(scheme)}; only {' or '.join(self._schemes)} is accepted")
        host, literal, port = _authority(authority, scheme)
        if literal is not None:
            self._admit(host, literal, port)
        elif not self._allow:
            self._check_port(host, port)
        target = Target(scheme, host, port, _path(host, rest))
        if len(target.url) > MAX_URL:
            raise Refused(f"{host}: the URL has more than {MAX_URL} characters once it is percent-encoded; shorten it")
        return target

    def check(self, address: str) -> None:
        """Refuse an IP address that is not one of the public internet, whatever it is wrapped in."""
        shown = _shown(address)
        self._check_address(shown, _address(shown, address))

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses to connect to, best first. One that is refused refuses them all.

        Connect to these and do not look the name up again: the next answer may be another one.
        """
        literal = _literal(host)
        if literal is not None:
            self._admit(host, literal, port)
            return [str(literal)]
        name = _name(host)
        try:
            found = await self._lookup(name, port)
        except OSError as error:
            raise Unresolved(f"{name}: the name cannot be resolved ({error}); check its DNS records") from error
        addresses = list(dict.fromkeys(_address(name, one) for one in found))
        if not addresses:
            raise Unresolved(f"{name}: the name has no address; check its DNS records")
        for address in addresses:
            self._admit(name, address, port)
        return [str(address) for address in addresses]

    def _admit(self, host: str, address: Address, port: int) -> None:
        self._check_address(host, address)
        if not _within(address, self._allow):
            self._check_port(host, port)

    def _check_port(self, host: str, port: int) -> None:
        if port not in self._ports:
            accepted = ", ".join(map(str, sorted(self._ports)))
            raise Refused(f"{host}: port {port} is not accepted; use one of {accepted}, or add it to the guard's ports")

    def _check_address(self, host: str, address: Address) -> None:
        """The message names the rule but not the address, which whoever wrote the URL need not learn."""
        rule = self._rule(address)
        if rule is not None:
            raise Refused(f"{host} leads to {rule}; use a public address, or let the guard allow that network")

    def _rule(self, address: Address) -> str | None:
        """What speaks against the address. Whoever allows a network means its own addresses, not translated ones."""
        faces = _faces(address)
        if any(_within(face, self._deny) for face in faces):
            return "a network that the guard denies"
        if _within(address, self._allow):
            return None
        return next((rule for rule in map(_special, faces) if rule is not None), None)


def _networks(texts: Sequence[str], option: str) -> tuple[Network, ...]:
    networks = []
    for text in texts:
        try:
            network = ip_network(text)
        except ValueError as error:
            raise BadOption(f"Guard {option}: {error}; write a network such as 10.1.0.0/16 or fd00:1::/32") from error
        if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
            raise BadOption(f"Guard {option}: {text} is a network of IPv4; write it as one")
        networks.append(network)
    return tuple(networks)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _address(host: str, text: str) -> Address:
    """The address; an IPv4 address that is mapped into IPv6 is IPv4, since that is what a connection would use."""
    try:
        address = ip_address(text)
    except ValueError:
        raise Refused(f"{host} leads to what is not an IP address; check what was given or looked up") from None
    if isinstance(address, IPv4Address):
        return address
    if address.scope_id is not None:
        raise Refused(f"{host} leads to an address with a zone, which is never public; use a public address")
    return address.ipv4_mapped or address


def _faces(address: Address) -> tuple[Address, ...]:
    """The address, and the IPv4 address that a NAT64 gateway would make of it."""
    if address in _NAT64:
        return address, IPv4Address(int(address) & 0xFFFF_FFFF)
    return (address,)


def _special(address: Address) -> str | None:
    """Why this is not an address of the public internet; None if it is one.

    What embeds IPv4 in other ways than NAT64 (compatible, 6to4, Teredo, ISATAP) is out of use and refused as a whole.
    """
    for network, rule in _SPECIAL:
        if address in network:
            return rule
    if isinstance(address, IPv4Address) or address in _NAT64:
        return None
    if address not in _GLOBAL_UNICAST:
        return "a network outside global unicast"
    if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return "an ISATAP address"
    return None


def _authority(text: str, scheme: str) -> tuple[str, Address | None, int]:
    """Host, the address if the host is one, and port."""
    if "@" in text:
        raise Refused("the URL carries a user name or password; remove it and sign the request instead")
    if not text:
        raise Refused("the URL has no host; write it as https://host/path")
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        raise Refused("the URL has a host or port that cannot be read; write host, host:port or [IPv6 address]:port")
    port = int(parts["port"] or _SCHEME_PORTS[scheme])
    if port > 65535:
        raise Refused(f"the port of the URL is {port}; ports end at 65535")
    literal = _literal(parts["host"]) if parts["v6"] is None else _ipv6(parts["v6"])
    host = _name(parts["host"]) if literal is None else str(literal)
    return host, literal, port


def _literal(host: str) -> Address | None:
    """The address if the host is one; None if it is a name.

    Resolvers read 127.1, 0177.0.0.1, 0x7f.1 and 2130706433 as 127.0.0.1. So what ends in a number is no name, and must
    be an address in full.
    """
    if ":" in host:
        return _ipv6(host)
    if not _NUMBER.fullmatch(host.rpartition(".")[2].lower()):
        return None
    try:
        return IPv4Address(host)
    except ValueError:
        raise Refused(
            f"{_shown(host)}: what ends in a number must be an address in full; write it like 192.0.2.1"
        ) from None


def _ipv6(text: str) -> IPv6Address:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise Refused(f"{_shown(text)}: this is not an IPv6 address; check it") from None
    if address.scope_id is not None or address.ipv4_mapped is not None:
        raise Refused(f"{_shown(text)}: zones and mapped IPv4 addresses are not accepted; write the plain address")
    return address


def _name(host: str) -> str:
    """The name as DNS knows it: lower-case ASCII, without a dot at its end."""
    if len(host) > MAX_NAME:
        raise Refused(f"the host has {len(host)} characters; names have at most {MAX_NAME}")
    name = ".".join(_label(host, label) for label in host.split("."))
    if len(name) > MAX_NAME:
        raise Refused(f"{_shown(host)}: the host has {len(name)} characters in ASCII; names have at most {MAX_NAME}")
    return name


def _label(host: str, label: str) -> str:
    written = label.lower() if label.isascii() else _encoded(label)
    if written is None or (written.startswith("xn--") and not _is_plain(written)):
        raise Refused(f"{_shown(host)}: the host does not stand for exactly one DNS name; write it in ASCII (xn--...)")
    if not _LABEL.fullmatch(written):
        raise Refused(f"{_shown(host)}: this is not a host name; write letters, digits and hyphens between single dots")
    return written


def _encoded(label: str) -> str | None:
    """The label in ASCII; None if that loses something.

    Old and new IDNA disagree on such labels (ß), or they hide ASCII behind characters that look like it.
    """
    try:
        written = label.encode("idna").decode("ascii")
        kept = written.encode("ascii").decode("idna") == label.lower() == label.lower().casefold()
    except UnicodeError:
        return None
    return written if kept and written.startswith("xn--") else None


def _is_plain(written: str) -> bool:
    """Whether an encoded label stands for a text, and for one that no reader would turn into another."""
    try:
        text = written.removeprefix("xn--").encode("ascii").decode("punycode")
    except UnicodeError:
        return False
    return unicodedata.is_normalized("NFKC", text) and not _UNSEEN.search(text)


def _path(host: str, rest: str) -> str:
    """Path and query as they are sent: what the grammar of URLs does not know is percent-encoded."""
    if _BAD_ESCAPE.search(rest):
        raise Refused(f"{host}: the URL has a % that begins no escape; write %25 for the sign itself")
    path = rest.partition("?")[0]
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        raise Refused(f"{host}: the path has the segment . or .., which not all read alike; write the path without")
    return quote(rest if path else f"/{rest}", safe=_SENT_AS_WRITTEN)


def _shown(text: str) -> str:
    """Foreign text for a message: short, and without anything that a terminal or a log would obey."""
    shown = ascii(text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN >= len(shown) else f"{shown[:MAX_SHOWN]}..."
