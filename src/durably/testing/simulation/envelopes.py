"""What must hold for mail once everything has come to rest: the server tells what it has really taken."""

from __future__ import annotations

from collections.abc import Iterator

from durably.mail.info import MailInfo, RecipientInfo
from durably.testing.simulation.ledger import Banned, Copy, Ledger
from durably.testing.simulation.scenario import Scenario

Complaints = Iterator[str]
ON_ITS_WAY = 5.0
"""Seconds for which something may still be under way that a dead process has sent."""


class Envelopes:
    """The reckoning with the mail server."""

    def __init__(self, scenario: Scenario, ledger: Ledger, mails: list[MailInfo]) -> None:
        self._to = {missive.number: missive.to for missive in scenario.missives}
        self._ledger = ledger
        self._mails = mails

    def complaints(self) -> Complaints:
        """Everything that is wrong."""
        yield from self._promises()
        for mail in self._mails:
            number = int(mail.about.sender[1:].partition("@")[0])
            copies = [copy for copy in self._ledger.copies if copy.number == number]
            if sorted(one.address for one in mail.recipients) != sorted(self._to[number]):
                yield f"missive {number} lost somebody: {mail.recipients}"
            yield from self._whole(mail, number)
            yield from self._source(mail, number, copies)
            for recipient in mail.recipients:
                taken = [copy for copy in copies if copy.address == recipient.address]
                yield from self._recipient(mail, number, recipient, len(taken))
                yield from self._unbanned(mail, number, taken)

    def _promises(self) -> Complaints:
        """What was accepted is there, once for each key."""
        known = {mail.id: mail for mail in self._mails}
        for posted in self._ledger.posted:
            if posted.mail not in known or known[posted.mail].key != posted.key:
                yield f"missive {posted.number} was accepted as {posted.mail}, and there is no such mail"
        new = [posted.mail for posted in self._ledger.posted if posted.new]
        if len(new) > len(set(new)):
            yield f"a mail was new more than once: {new}"
        keys = [mail.key for mail in self._mails if mail.key is not None]
        if len(keys) > len(set(keys)):
            yield f"the mails have the keys {keys}, and one of them twice"
        numbers = [mail.about.sender for mail in self._mails]
        if len(numbers) > len(set(numbers)):
            yield f"a missive became more than one mail: {numbers}"

    def _whole(self, mail: MailInfo, number: int) -> Complaints:
        """It is sent if everybody has it who may; it is refused only if somebody was; it always says why."""
        states = {one.state for one in mail.recipients}
        if mail.state == "sent" and not (states <= {"sent", "suppressed"} and "sent" in states):
            yield f"missive {number} is sent, and its recipients are {sorted(states)}"
        elif mail.state not in ("sent", "dead", "cancelled"):
            yield f"missive {number} is {mail.state} in the end"
        if mail.state != "sent" and not mail.reason:
            yield f"missive {number} is {mail.state} without a reason"
        final = (mail.reason or "").startswith("permanent")
        if final and ("refused" not in states or "given up" in states):
            yield f"missive {number} is refused for good ({mail.reason}), and its recipients are {sorted(states)}"

    def _source(self, mail: MailInfo, number: int, copies: list[Copy]) -> Complaints:
        """Every copy is the same, and named after the mail."""
        if len({copy.source for copy in copies}) > 1:
            yield f"missive {number} was not the same every time"
        if any(not copy.message_id.startswith(f"{mail.id}@") for copy in copies):
            yield f"missive {number} has not the Message-ID of its mail"

    def _recipient(self, mail: MailInfo, number: int, recipient: RecipientInfo, taken: int) -> Complaints:
        """Who is told to have it has it; who may have it, or has it twice, is marked; who has not knows why."""
        about = f"missive {number} to {recipient.address} is {recipient.state}"
        match recipient.state:
            case "sent" if not taken:
                yield f"{about}, and the server does not have it"
            case "refused" if (number, recipient.address) not in self._ledger.refusals:
                yield f"{about}, and the server never refused it: {recipient.said}"
            case "suppressed" if not self._ever_banned(recipient.address):
                yield f"{about}, and nobody wanted that: {recipient.said}"
            case "waiting":
                yield f"{about} in the end"
        if recipient.state in ("refused", "suppressed") and not recipient.said:
            yield f"{about} without a reason"
        if recipient.state != "sent" and taken and not recipient.possible_duplicate:
            yield f"{about}, and the server has it without a mark"
        if taken > 1 and not recipient.possible_duplicate:
            yield f"{about}, and the server has it {taken} times without a mark"

    def _ever_banned(self, address: str) -> bool:
        bans = self._ledger.bans
        return address in self._ledger.bounced or any(ban.banned and ban.address == address for ban in bans)

    def _unbanned(self, mail: MailInfo, number: int, taken: list[Copy]) -> Complaints:
        """No attempt that began after an address was suppressed sends anything there."""
        for copy in taken:
            ban = self._last_ban(copy)
            attempts = [one for one in self._ledger.of(mail.task) if one.started <= copy.at]
            if ban is not None and all(
                one.started > ban.answered or (one.ended is not None and one.ended + ON_ITS_WAY < copy.at)
                for one in attempts
            ):
                yield f"missive {number} went to {copy.address}, which was to get no mail since {ban.answered:.3f}"

    def _last_ban(self, copy: Copy) -> Banned | None:
        """What surely forbade this copy: a ban that was answered before, and that nobody can have lifted since."""
        mine = [one for one in self._ledger.bans if one.address == copy.address and one.asked <= copy.at]
        lifted = [one for one in mine if not one.banned]
        found = [one for one in mine if one.banned and all(other.answered < one.asked for other in lifted)]
        return next((one for one in found if one.answered < copy.at), None)
