"""Mails, the addresses that get none, and stored templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from durably.stores.operations.deliver import is_id
from durably.stores.statement import Operation, Queries, Steps, operation

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True):
    """A mail as it is stored."""

    id: str
    namespace: str
    about: bytes
    key: str | None = None
    created_at: int = 0


class Listed(msgspec.Struct, frozen=True):
    """A mail, its transport, and what has become of the task that brings it there; None for what is forgotten."""

    mail: Row
    transport: str | None
    task: str | None
    state: str | None


class Suppression(msgspec.Struct, frozen=True):
    """An address that gets no mail, or none of a category, and why."""

    address: str
    category: str
    cause: str
    note: str
    created_at: int


class Accepted(msgspec.Struct, frozen=True):
    """The mail that was accepted under a key, which may be an older one."""

    id: str
    new: bool


def accept_mail(mail: Row, publishing: Operation[T]) -> Operation[tuple[Accepted, T | None]]:
    """Accept a mail with everything that it takes; unless one with its key was accepted before."""
    return Operation("accept_mail", lambda q: _accept(q, mail, publishing))


def _accept(q: Queries, mail: Row, publishing: Operation[T]) -> Steps[tuple[Accepted, T | None]]:
    rows = yield q("add_mail", mail.id, mail.namespace, mail.key, mail.about)
    if not rows and mail.key is not None:
        rows = yield q("mail_by_key", mail.namespace, mail.key)
        if rows and rows[0][0] != mail.id:
            return Accepted(rows[0][0], new=False), None
    return Accepted(mail.id, new=True), (yield from publishing.steps(q))


@operation(writes=False)
def find_mail(q: Queries, namespace: str, mail: str) -> Steps[Row | None]:
    """A mail by its id, or by its key."""
    found = mail
    if not is_id(mail):
        rows = yield q("mail_by_key", namespace, mail)
        if not rows:
            return None
        found = rows[0][0]
    rows = yield q("mails", namespace, [found])
    return Row(rows[0][0], namespace, rows[0][3], rows[0][2], rows[0][1]) if rows else None


@operation(writes=False, single=True)
def list_mails(
    q: Queries, namespace: str, before: str | None, states: Sequence[str] | None, limit: int
) -> Steps[list[Listed]]:
    """Mails, the newest first."""
    rows = yield q("list_mails", namespace, before, None if states is None else list(states), limit)
    return [
        Listed(Row(mail, namespace, about, key, created_at), transport, task, state)
        for mail, created_at, key, about, transport, task, state in rows
    ]


@operation(single=True)
def suppress(
    q: Queries, namespace: str, addresses: Sequence[str], category: str, cause: str, note: str
) -> Steps[set[str]]:
    """Write to these no more; those that are new to the list."""
    rows = yield q("suppress", namespace, sorted(set(addresses)), category, cause, note)
    return {address for (address,) in rows}


@operation(single=True)
def unsuppress(q: Queries, namespace: str, address: str, category: str | None) -> Steps[bool]:
    """Write to somebody again; whether that was forbidden."""
    rows = yield q("unsuppress", namespace, address, category)
    return bool(rows)


@operation(writes=False, single=True)
def suppressed(q: Queries, namespace: str, addresses: Sequence[str]) -> Steps[list[Suppression]]:
    """Everything that is known against these addresses."""
    rows = yield q("suppressed", namespace, list(addresses))
    return [Suppression(*row) for row in rows]


@operation(writes=False, single=True)
def list_suppressions(q: Queries, namespace: str, after: tuple[str, str], limit: int) -> Steps[list[Suppression]]:
    """The whole list, in the order of the addresses."""
    rows = yield q("list_suppressions", namespace, *after, limit)
    return [Suppression(*row) for row in rows]


@operation(single=True)
def add_template(q: Queries, namespace: str, name: str, locale: str, source: str) -> Steps[int | None]:
    """Keep a new version; its number, or None if somebody else has just taken it."""
    rows = yield q("add_template", namespace, name, locale, source)
    return rows[0][0] if rows else None


@operation(writes=False, single=True)
def newest_templates(
    q: Queries, namespace: str, name: str, locales: Sequence[str]
) -> Steps[dict[str, tuple[int, str]]]:
    """The newest version for each of these locales that has one, and its source."""
    rows = yield q("templates", namespace, name, list(locales))
    return {locale: (version, source) for locale, version, source in rows}


@operation(writes=False, single=True)
def list_templates(q: Queries, namespace: str) -> Steps[list[tuple[str, str, int, int]]]:
    """Name, locale, newest version and when that came, of every template."""
    rows = yield q("list_templates", namespace)
    return [(name, locale, version, created_at) for name, locale, version, created_at in rows]


@operation(single=True)
def forget_template(q: Queries, namespace: str, name: str, locale: str) -> Steps[int]:
    """Forget every version of a template in a locale; how many there were."""
    rows = yield q("forget_template", namespace, name, locale)
    return len(rows)
