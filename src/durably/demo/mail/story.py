"""The story: accept, kill, hear no, fall back, report, resend; and then compare with the ledger."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from durably.core.explain import SessionFacts
from durably.demo.audit import Check
from durably.demo.files import Place
from durably.demo.ledger import Ledger, read_as
from durably.demo.mail.app import app, mail
from durably.demo.mail.audit import audit, every_account, locked_out
from durably.demo.mail.letters import (
    CUT_OFF,
    DOUBTED,
    FIRST,
    HOPELESS,
    LAST,
    ODD,
    TEMPLATE,
    WATCHED,
    key,
    letter,
    write_templates,
)
from durably.demo.mail.lines import Line
from durably.demo.mail.server import FLAKY, GREY, LOCKED, NAMES, NOBODY, ROOM, SILENT, STRICT
from durably.demo.screen import Screen
from durably.demo.servers import HOST, Server, serving
from durably.demo.telling import Tale, told
from durably.demo.workers import LEASE, kill_the_sender, running, wait_until

SERVING = "durably.demo.mail.app:app"
SERVERS = "durably.demo.mail.server"
MAIN, BACKUP = NAMES
SCHEDULE = ("500ms", "1s", "2s", "4s")
"""The usual one lasts two days."""


def tell(place: Place) -> int:
    """Tell it; the exit code is 0 if everything that was promised held."""
    return told(place, app, lambda screen, log: Story(place, screen, log))


class Story(Tale):
    """Six acts and a verdict."""

    title = "Durably: 30 mails, two SMTP servers, two workers, one kill -9, and a locked account"
    writers = "the shop and by the SMTP servers"
    last_act = 7

    def __init__(self, place: Place, screen: Screen, log: IO[bytes]) -> None:
        super().__init__(app, Ledger(place.ledger), place, screen, log)
        self._accepted = 0

    def play(self) -> None:
        with serving(SERVERS, self._place.ledger, self._log) as servers:
            for name, port, fallback in zip(NAMES, servers.ports, (BACKUP, None), strict=True):
                address = f"smtp://{HOST}:{port}?tls=none"
                mail.add_transport(name, address, schedule=SCHEDULE, jitter=0, fallback=fallback)
            with tempfile.TemporaryDirectory(prefix="durably-demo-") as folder:
                write_templates(Path(folder))
                mail.templates.folder(folder)
                self._accept()
                with running(2, app, self._log, serving=SERVING) as sessions:
                    self._kill(sessions)
                    self._hear_no()
                    self._fall_back(servers)
                    self._report()
                    self._resend(servers)

    def _accept(self) -> None:
        """A template is written, and mails are made of it."""
        self._screen.heading(f"1  Write a template, and accept {len(FIRST)} mails")
        again = self._send(FIRST)
        for locale, called in (("", "the usual one"), ("de", "in German")):
            subject = mail.preview(TEMPLATE, context={"order": CUT_OFF}, locale=locale).subject
            self._screen.say(f"{TEMPLATE}, {called}: {subject}")
        self._screen.say(
            f"Its subject, text and HTML are files in a folder. The mails are for one to five people each. {again} "
            "were sent twice with the same key, as a shop does that is not sure; each was accepted once."
        )

    def _send(self, orders: range) -> int:
        """Accept the mails about these orders, and note who is to get them; how many were sent twice."""
        again = 0
        for made in map(letter, orders):
            for _ in range(made.times):
                context = {"order": made.order}
                sent = mail.send(TEMPLATE, to=made.to, context=context, locale=made.locale, key=made.key)
                if not sent.new:
                    again += 1
                    self._ledger.write(Line("again", mail=sent.id, key=made.key))
                for recipient in made.to if sent.new else ():
                    self._accepted += 1
                    self._ledger.write(Line("accepted", recipient, sent.id, made.key))
        return again

    def _kill(self, sessions: list[SessionFacts]) -> None:
        """A worker dies after the last line of a mail, and before the server has answered."""
        self._screen.heading("2  Send them, and kill a worker in the middle of SMTP")
        self._greet(sessions)
        victim = kill_the_sender(sessions, self._waits_alone)
        killed = time.monotonic()
        interrupted = mail.get(key(CUT_OFF)).id
        self._ledger.write(Line("killed", mail=interrupted, key=key(CUT_OFF), pid=victim))
        self._screen.say(
            f"kill -9 {victim}: {MAIN} had read the mail about order {CUT_OFF} up to its last dot, and had not "
            "answered; every other mail was done. Nobody can know now that it was taken."
        )
        self._await_another({session.id for session in app.sessions.list()}, self._progress)
        wait_until(lambda: (self._progress() and self._ended(FIRST)) or None)
        full = sum(line.what == "full" for line in self._lines())
        self._screen.say(
            f"After {time.monotonic() - killed:.1f} s it was sent again by another one, with the same Message-ID, so "
            f"that a mailbox can tell; the lease of a worker was {LEASE} s, the default is 30 s. {MAIN} takes {ROOM} "
            f"recipients at a time and said 452 to {full} of them: they followed at once."
        )

    def _waits_alone(self) -> int | None:
        """Who waits for an answer from the silent server, once no other mail is left."""
        self._progress()
        sent = [line for line in self._taken() if line.to == SILENT]
        return sent[0].pid if sent and self._left() == 1 else None

    def _hear_no(self) -> None:
        """Servers that say later, no, or nothing at all."""
        self._screen.heading(f"3  Send {len(ODD)} more, to servers that say later, no, or nothing at all")
        self._send(ODD)
        others = [order for order in ODD if order != WATCHED]
        wait_until(lambda: (self._ended(others) and all(one.said for one in mail.get(key(WATCHED)).recipients)) or None)
        self._screen.say(
            f"At the mail about order {DOUBTED} the connection ended after the last line, so that {FLAKY} may have it "
            "or not: it was sent again, and is marked. The one about order "
            f"{WATCHED} was taken for two, refused for two others, and put off for one:"
        )
        self._run(f"mail show {key(WATCHED)}")
        app.deliveries.destinations.flush(MAIN, force=True)
        wait_until(lambda: self._ended([WATCHED]) or None)
        self._screen.say(
            f"{GREY} wants to be asked again later, and would be in five minutes; `durably destinations flush {MAIN} "
            "--force` did not wait, and now it has its mail. Where a server knows nobody of that name, it is not asked "
            "a second time:"
        )
        self._run("mail suppressions")

    def _fall_back(self, servers: Server) -> None:
        """What one transport cannot take goes through another."""
        self._screen.heading(f"4  Lock the account at {MAIN}, and let the fallback take over")
        servers.tell("lock")
        self._ledger.write(Line("locked", server=MAIN))
        self._send(LAST)
        wait_until(lambda: self._ended(LAST) or None)
        self._screen.say(
            f"{len(LAST)} more mails are accepted, and {MAIN} says `{LOCKED}`. That does not pass by itself: {MAIN} is "
            f"left alone until somebody has looked at it, and {BACKUP} takes what it cannot."
        )
        self._run("destinations list")
        self._ledger.write(Line("unlocked", server=MAIN))
        servers.tell("unlock")
        app.deliveries.destinations.resume(MAIN)
        through = {line.delivery for line in locked_out(self._lines())}
        self._screen.say(
            f"{len(through)} recipients had their mail through {BACKUP}. The account is open again, and `durably "
            f"destinations resume {MAIN}` says so."
        )

    def _report(self) -> None:
        """How every recipient stands."""
        self._screen.heading("5  Ask how every recipient stands, and what the servers said")
        accounts = every_account(app)
        plain = [one for one in accounts if one.state == "sent" and not one.doubtful]
        rest = [one for one in accounts if one not in plain]
        marked = {one: f"{one.state}, maybe twice" if one.doubtful else one.state for one in rest}
        self._screen.table(
            ("MAIL", "RECIPIENT", "STATE", "SAID"), *((one.key, one.to, marked[one], one.said) for one in rest)
        )
        self._screen.say(f"Of {len(accounts)} recipients the other {len(plain)} have their mail, without any doubt.")

    def _resend(self, servers: Server) -> None:
        """A dead letter is sent again, to those who did not get it."""
        self._screen.heading("6  Remove the cause, and send a dead letter again")
        servers.tell("trust")
        before = len(self._taken())
        self._run(f"mail resend {key(WATCHED)}")
        wait_until(lambda: (mail.get(key(WATCHED)).state == "sent" and self._left() == 0) or None)
        after = [line.to for line in self._taken()[before:]]
        self._screen.say(
            f"{STRICT} trusts the shop now, and got its mail; {NOBODY} was not asked again, and those who had theirs "
            f"got nothing. It was sent to {len(after)} of 5."
        )

    def checks(self) -> Iterable[Check]:
        return audit(self._lines(), every_account(app))

    def commands(self) -> Iterable[str]:
        dead = f"mail show {key(HOPELESS)}"
        return self._on_database("mail list", dead, "mail suppressions", f"destinations show {MAIN}", "doctor")

    def _ended(self, orders: Iterable[int]) -> bool:
        """Whether nothing more is done for these."""
        return all(mail.get(key(order)).state != "waiting" for order in orders)

    def _progress(self) -> bool:
        """Show how many have their mail."""
        arrived = {line.delivery for line in self._taken()}
        self._screen.progress(len(arrived), self._accepted, " recipients have their mail")
        return True

    def _taken(self) -> list[Line]:
        return [line for line in self._lines() if line.what == "took"]

    def _lines(self) -> list[Line]:
        return read_as(Line, self._place.ledger)
