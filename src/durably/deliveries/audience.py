"""Audiences: who is to get a message. Everyone once, nobody left out but the sender."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.core.options import NAME_LIMIT, text
from durably.errors import BadOption


class Peer(msgspec.Struct, frozen=True):
    """Somebody who can be written to: a destination by its name, or an address that becomes one.

    Peers with the same shared address get a message once.
    """

    name: str
    address: str | None = None
    shared: str | None = None
    channel: str | None = None


class Audience(msgspec.Struct, frozen=True):
    """Some peers that are only found when a message is published."""

    find: Callable[..., Iterable[Any]]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


To = str | Peer | Audience | Sequence[Any]


class Target(msgspec.Struct, frozen=True):
    """One destination of a message: its name, and its address if it is not known yet."""

    name: str
    address: str | None
    channel: str | None
    found: bool
    """Whether an audience brought it, and not whoever publishes."""


def resolved(to: To, sender: str | None) -> list[Target]:
    """Every destination once, in the order in which they were named; the sender is left out."""
    found: dict[str, Target] = {}
    for peer, brought in _peers(to):
        if sender is not None and sender in (peer.name, peer.address):
            continue
        address = peer.shared or peer.address
        name = _name_for(address) if peer.shared is not None or peer.name == peer.address else peer.name
        found.setdefault(name, Target(text(name, "to"), address, peer.channel, brought))
    return list(found.values())


def _peers(to: Any) -> Iterable[tuple[Peer, bool]]:
    """Everyone who is named, and whether an audience brought them. Lists of lists are a mistake."""
    if isinstance(to, str | Peer | Audience):
        to = [to]
    if not isinstance(to, Iterable) or isinstance(to, bytes):
        raise BadOption(f"to: {brief(to)} must be names, addresses, peers or audiences")
    for one in to:
        if isinstance(one, Audience):
            for member in one.find(*one.args, **one.kwargs):
                yield _peer(member), True
        else:
            yield _peer(one), False


def _peer(one: Any) -> Peer:
    if isinstance(one, Peer):
        return one
    if not isinstance(one, str) or not one:
        raise BadOption(f"to: {brief(one)} must be the name of a destination, an address, or a Peer")
    return Peer(one, one) if "://" in one else Peer(one)


def _name_for(address: str | None) -> str:
    """The name of a destination that was made from its address."""
    if address is None:
        raise BadOption("to: a peer without a name needs an address")
    if len(address) <= NAME_LIMIT:
        return address
    return f"{address[:150]}#{blake2b(address.encode(), digest_size=12).hexdigest()}"
