"""Mail in a simulation: the transport to its server, who sends, and who looks after the addresses."""

from __future__ import annotations

import contextlib
import ssl

from durably.deliveries.options import RuleOptions
from durably.errors import DurablyError, StoreUnavailable
from durably.mail.info import MailInfo
from durably.mail.mail import Mail
from durably.testing.simulation.host import NAME
from durably.testing.simulation.ledger import Banned, Posted
from durably.testing.simulation.scenario import Chore, Host, Missive
from durably.testing.simulation.world import World

TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Making one for every process would take longer than the simulation, and nobody uses it."""
CONNECTIONS = 2
ALL = 1000


def mail_of(mail: Mail) -> Mail:
    """The mail of one process, which calls itself something without asking the DNS."""
    mail.configure(hostname="simulation", trust=TRUST, connections=CONNECTIONS)
    return mail


def add_transport(mail: Mail, host: Host) -> None:
    """Let the store know the server."""
    rules: RuleOptions = {
        "schedule": [0.2, 1.0, 2.0],
        "timeout": 2.0,
        "concurrency": 3,
        "expires": 60.0,
        "breaker": host.breaker,
        "cooldown": 0.5,
    }
    mail.add_transport("main", f"smtp://robot@{NAME}:587?tls=none", password="open sesame", **rules)


class Writer:
    """Who sends mail, and does chores."""

    def __init__(self, world: World, mail: Mail) -> None:
        self._world = world
        self._trace = world.trace
        self._ledger = world.ledger
        self._mail = mail

    async def send(self, missive: Missive) -> None:
        """Write to everybody whom the missive is for."""
        self._trace.say("client", f"sends missive {missive.number} to {', '.join(missive.to)}")
        try:
            sent = await self._mail.asend(
                to=list(missive.to),
                sender=f"m{missive.number}@x.example",
                subject=f"Missive {missive.number}",
                text="Dear all,\n.\nyours",
                key=missive.key,
                at_once=missive.at_once,
            )
        except StoreUnavailable as error:
            self._trace.say("client", f"cannot know whether missive {missive.number} was accepted: {error}")
        else:
            self._trace.say("client", f"missive {missive.number} {'is accepted' if sent.new else 'was there already'}")
            self._ledger.posted.append(Posted(missive.number, missive.key, sent.id, sent.new))

    async def run(self, chore: Chore) -> None:
        """Do something about the mail."""
        self._trace.say("operator", f"wants to {chore.kind} {chore.address}")
        with contextlib.suppress(DurablyError):
            if chore.kind == "resend":
                for one in await self._mail.alist(limit=ALL):
                    with contextlib.suppress(DurablyError):
                        await self._mail.aresend(one.id)
                return
            ban = Banned(chore.address, chore.kind == "suppress", self._world.loop.time())
            self._ledger.bans.append(ban)
            if ban.banned:
                await self._mail.suppressions.aadd(chore.address)
            else:
                await self._mail.suppressions.aremove(chore.address)
            ban.answered = self._world.loop.time()

    async def report(self) -> list[MailInfo]:
        """How every mail stands, as anybody can see it."""
        return [await self._mail.aget(one.id) for one in await self._mail.alist(limit=ALL)]
