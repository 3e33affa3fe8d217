"""The comparison at the end: what the SMTP servers wrote down against what the engine says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from durably.app import Durably
from durably.demo.audit import PAGE, Check
from durably.demo.mail.lines import Line

ENDS = ("sent", "refused", "suppressed")
"""How a recipient may stand when the story is over."""
BOUNCE = "550 5.1."
"""How a reply begins that says that an address will never work."""


class Account(msgspec.Struct, frozen=True):
    """What the engine says about one recipient of a mail."""

    mail: str
    to: str
    state: str
    said: str = ""
    doubtful: bool = False
    """Whether it is marked as a possible duplicate."""
    key: str = ""
    """Of the mail."""

    @property
    def delivery(self) -> tuple[str, str]:
        """Which mail to whom."""
        return self.mail, self.to


def every_account(app: Durably) -> list[Account]:
    """All that the engine knows, the oldest mail first."""
    mails: list[str] = []
    while page := app.mail.list(limit=PAGE, before=mails[-1] if mails else None):
        mails += [one.id for one in page]
    return [
        Account(mail.id, one.address, one.state, one.said, one.possible_duplicate, mail.key or "")
        for mail in map(app.mail.get, reversed(mails))
        for one in mail.recipients
    ]


def audit(lines: list[Line], accounts: list[Account]) -> Iterator[Check]:
    """Everything that the demo promises."""
    accepted = [line.delivery for line in lines if line.what == "accepted"]
    taken = [line for line in lines if line.what == "took"]
    took = Counter(line.delivery for line in taken)
    stands = {one.delivery: one for one in accounts}
    ends = {state: {at for at, one in stands.items() if one.state == state} for state in ENDS}
    sent, others = ends["sent"], ends["refused"] | ends["suppressed"]

    mails = len({mail for mail, _ in accepted})
    counted = " + ".join(f"{len(found)} {state}" for state, found in ends.items())
    known = [one.delivery for one in accounts]
    held = bool(accepted) and sorted(accepted) == sorted(known) and set(known) == sent | others
    yield Check(held, f"{mails} mails to {len(accepted)} recipients = {counted}: nobody is lost")

    yield Check(took.keys() == sent, f"each of the {len(sent)} has its mail, and nobody else has any")

    silent = [at for at in others if not stands[at].said]
    yield Check(bool(others) and not silent, f"each of the other {len(others)} has a reason, and no mail")

    twice = {delivery for delivery, times in took.items() if times > 1}
    doubtful = {one.delivery for one in accounts if one.doubtful}
    text = f"marked as possible duplicates: {len(doubtful)}; arrived twice, all of these marked: {len(twice)}"
    yield Check(bool(twice) and twice <= doubtful, f"{text}; every other arrived exactly once")

    copies = {line.mail: {one.bytes for one in taken if one.mail == line.mail} for line in taken}
    text = f"{len(copies)} mails arrived, and every copy of each was the same: the same Message-ID, the same bytes"
    yield Check(all(len(kinds) == 1 for kinds in copies.values()), text)

    again = [line.key for line in lines if line.what == "again"]
    text = f"{len(again)} keys were used twice, and no order was mailed twice"
    yield Check(bool(again) and once_for_each_key(lines), text)

    yield Check(went_on(lines), "the mail that was cut off by the kill was sent again by another process")

    asked = Counter(line.to for line in heard(lines))
    bounced = {line.to for line in heard(lines) if line.said.startswith(BOUNCE)}
    wanted = sum(to in bounced for _, to in accepted)
    believed = all(asked[to] <= (1 if to in bounced else [to for _, to in accepted].count(to)) for to in asked)
    text = f"{wanted} mails were for an address that does not exist; its server was asked once, and never again"
    yield Check(bool(bounced) and believed, text)

    text = f"{len(locked_out(lines))} recipients got their mail through backup, and all of them while main was locked"
    yield Check(by_the_other(lines), text)


def once_for_each_key(lines: list[Line]) -> bool:
    """Whether every key stands for one mail, and no server has seen two mails about one thing."""
    by_key: dict[str, set[str]] = {}
    by_subject: dict[str, set[str]] = {}
    for line in lines:
        if line.what in ("accepted", "again"):
            by_key.setdefault(line.key, set()).add(line.mail)
        elif line.what == "took":
            by_subject.setdefault(line.subject, set()).add(line.mail)
    return all(len(mails) == 1 for mails in (*by_key.values(), *by_subject.values()))


def went_on(lines: list[Line]) -> bool:
    """Whether what a killed process had sent was sent again by another one afterwards."""
    for at, line in enumerate(lines):
        if line.what == "killed":
            before = {one.mail for one in lines[:at] if one.what == "took" and one.pid == line.pid}
            after = {one.mail for one in lines[at:] if one.what == "took" and one.pid != line.pid}
            return line.mail in before and line.mail in after
    return False


def heard(lines: list[Line]) -> list[Line]:
    """The refusals that somebody lived to report."""
    killed = {line.pid for line in lines if line.what == "killed"}
    return [line for line in lines if line.what == "refused" and line.pid not in killed]


def locked_out(lines: list[Line]) -> list[Line]:
    """What was taken while the first server let nobody send."""
    whats = [line.what for line in lines]
    if "locked" not in whats or "unlocked" not in whats:
        return []
    return [line for line in lines[whats.index("locked") : whats.index("unlocked")] if line.what == "took"]


def by_the_other(lines: list[Line]) -> bool:
    """Whether that, and nothing else, went through the other server."""
    through = [line for line in lines if line.what == "took" and line.server != "main"]
    return bool(through) and through == locked_out(lines)
