"""The story: accept, kill, fall back, collect, read; and then compare with the ledger."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from durably.core.explain import SessionFacts
from durably.demo.audit import Check
from durably.demo.files import Place
from durably.demo.ledger import Ledger, read_as
from durably.demo.notifications import audit
from durably.demo.notifications.app import ALARM, COLLECTED_FOR, COMMENT, PAID, PEOPLE, SERVICES, app, notifications
from durably.demo.notifications.audit import Account, the_books
from durably.demo.notifications.lines import Line
from durably.demo.notifications.receiver import GONE, SILENT
from durably.demo.screen import Screen
from durably.demo.servers import HOST, serving
from durably.demo.telling import Tale, told
from durably.demo.workers import LEASE, kill_the_sender, running, wait_until
from durably.notifications.notifications import Notified

SERVING = "durably.demo.notifications.app:app"
SMTP, RECEIVER = "durably.demo.mail.server", "durably.demo.notifications.receiver"
ORDERS = range(201, 213)
COMMENTS = ("I like the red ones", "Do they come in blue?", "Mine arrived today", "So did mine")
CURIOUS = ("ann", "cyd", "fay")
"""Who follows the comments."""
UNWILLING, READER, SLEEPER = "cyd", "fay", "dan"
"""Who wants no comments by mail, who reads them at once, and who does not want to be disturbed now."""


def tell(place: Place) -> int:
    """Tell it; the exit code is 0 if everything that was promised held."""
    return told(place, app, lambda screen, log: Story(place, screen, log))


class Story(Tale):
    """Five acts and a verdict."""

    title = "Durably: six people, four channels, two workers, one kill -9, and one device that is gone"
    writers = "the shop, the services and the SMTP server"
    last_act = 6

    def __init__(self, place: Place, screen: Screen, log: IO[bytes]) -> None:
        super().__init__(app, Ledger(place.ledger), place, screen, log)

    def play(self) -> None:
        with ExitStack() as stack:
            smtp = stack.enter_context(serving(SMTP, self._place.ledger, self._log))
            services = stack.enter_context(serving(RECEIVER, self._place.ledger, self._log))
            app.mail.add_transport("main", f"smtp://{HOST}:{smtp.ports[0]}?tls=none")
            os.environ[SERVICES] = f"http://{HOST}:{services.ports[0]}"
            self._accept()
            with running(2, app, self._log, serving=SERVING) as sessions:
                self._kill(sessions)
                self._explain()
                self._collect()
                self._count()

    def _accept(self) -> None:
        """Kinds are declared, wishes are known, and things happen."""
        self._screen.heading("1  Tell six people what happened")
        self._prepare()
        again = 0
        for order in ORDERS:
            who = list(PEOPLE)[order % len(PEOPLE)]
            for _ in range(1 + (order % 4 == 0)):
                again += not self._notify(PAID, [who], {"order": order, "total": f"{order} EUR"}, f"order-{order}").new
        self._notify(ALARM, list(PEOPLE), {"title": "The smoke detector in the store went off"})
        self._notify(ALARM, ["ann", "eve"], {"title": "The freezer is at 4 degrees"})
        self._screen.table(
            ("KIND", "CHANNELS", "WHAT IS SPECIAL"),
            (PAID, "inbox, mail", "out of a template, in the language of the reader"),
            (COMMENT, "inbox, mail", f"mails are collected for {COLLECTED_FOR} s, and called off by reading"),
            (ALARM, "push, else sms", "critical: it ignores wishes and quiet hours"),
        )
        self._screen.say(
            f"Of six people bob has no mail address, {UNWILLING} wants no comments by mail, {SLEEPER} has quiet hours "
            f"just now, and the device of eve is gone. {len(ORDERS)} orders and two alarms are accepted, each with all "
            f"its routes or not at all; {again} orders were told twice with the same key, and accepted once."
        )
        wrong = self._notify(PAID, ["ann"], {"order": "seven", "total": "7 EUR"})
        self._screen.say("One was malformed. That raises nothing in the shop; it is kept, for somebody to look at it:")
        self._run(f"notifications show {wrong.id}")

    def _prepare(self) -> None:
        """Templates, and what one of the people wants."""
        templates = app.mail.templates
        templates.put("paid", subject="Order {{ order }} is paid", text="We got {{ total }}. Thank you!")
        german = "Bestellung {{ order }} ist bezahlt"
        templates.put("paid", subject=german, text="{{ total }} sind da. Danke!", locale="de")
        listed = "{% for one in items %}{{ one.title }}: {{ one.text }}\n{% endfor %}"
        templates.put("comments", subject="{{ items|length }} new comments", text=listed)
        templates.put("comments", subject="{{ items|length }} neue Kommentare", text=listed, locale="de")
        notifications.preferences.set(UNWILLING, False, kind=COMMENT, channel="mail")

    def _notify(self, kind: str, to: Sequence[str], data: Mapping[str, Any], key: str | None = None) -> Notified:
        """Accept a notification, and note the routes that it must have."""
        made = notifications.notify(kind, to, data, key=key)
        if made.problem is not None:
            self._ledger.write(Line("malformed", made.id))
        elif not made.new:
            self._ledger.write(Line("again", made.id, kind, key or ""))
        else:
            for recipient in to:
                for channel in notifications.kinds[kind].channels:
                    text = str(data.get("text", ""))
                    self._ledger.write(Line("accepted", made.id, kind, key or "", recipient, channel, text=text))
        return made

    def _kill(self, sessions: list[SessionFacts]) -> None:
        """A worker dies while a service that has the message has not answered."""
        self._screen.heading("2  Bring it to them, and kill a worker while it sends")
        self._greet(sessions)
        victim = kill_the_sender(sessions, self._waits_alone)
        killed = time.monotonic()
        self._ledger.write(Line("killed", note=self._pushed()[0].note, to=SILENT, channel="push", pid=victim))
        self._screen.say(
            f"kill -9 {victim}: the push service had read an alarm for ann, and had not answered; everything else was "
            "done. Nobody can know now that it was shown."
        )
        self._await_another({session.id for session in app.sessions.list()}, self._progress)
        wait_until(lambda: (self._progress() and self._settled()) or None)
        self._screen.say(
            f"After {time.monotonic() - killed:.1f} s it was sent again, with the same id, so that the service can "
            f"tell; the lease of a worker was {LEASE} s, the default is 30 s."
        )

    def _waits_alone(self) -> int | None:
        """Who waits for an answer from the silent service, once nothing else is left to do."""
        self._progress()
        sent = self._pushed()
        return sent[0].pid if sent and self._left() == self._quiet() + 1 else None

    def _pushed(self) -> list[Line]:
        return [line for line in self._lines() if line.what == "took" and line.to == SILENT]

    def _explain(self) -> None:
        """What was not simply sent."""
        self._screen.heading("3  Ask what did not arrive, and why")
        accounts = self._accounts()
        odd = [one for one in accounts if one.state != "sent" or one.doubtful or one.channel == "sms"]
        rows = Counter(
            (one.kind, one.to, one.channel, f"{one.state}, maybe twice" if one.doubtful else one.state, one.reason)
            for one in odd
        )
        self._screen.table(
            ("TIMES", "KIND", "PERSON", "CHANNEL", "STATE", "REASON"), *((times, *row) for row, times in rows.items())
        )
        gone = sum(line.what == "gone" for line in self._lines())
        self._screen.say(
            f"{len(accounts) - len(odd)} others were sent; `durably notifications routes` lists them all. The push "
            f"service said {gone} times that {GONE} is not registered any more. Only because that is certain, eve got "
            f"an SMS instead; what might still arrive is never sent another way. {SLEEPER} was spared the mails about "
            "orders, but not the alarm."
        )

    def _collect(self) -> None:
        """Comments become one mail, unless they are read before."""
        self._screen.heading("4  Collect comments into one mail, unless they are read before")
        inbox = notifications.inbox
        for number, text in enumerate(COMMENTS, start=1):
            self._notify(COMMENT, CURIOUS, {"title": f"Comment {number}", "text": text})
        wait_until(lambda: all(one.state == "sent" for one in self._comments(READER, "inbox")) or None)
        before = inbox.counts(READER)
        read = inbox.read_all(READER)
        after = inbox.counts(READER)
        self._screen.say(
            f"{len(COMMENTS)} comments are for {', '.join(CURIOUS)}. {READER} has {before.entries} entries in the "
            f"inbox, {before.unread} of them unread; then {READER} reads {read}, and {after.unread} are unread."
        )
        wait_until(lambda: self._settled() or None)
        rows = []
        for person in CURIOUS:
            routes = self._comments(person, "mail")
            states, reasons = ({getattr(one, name) for one in routes} for name in ("state", "reason"))
            mails = {one.thing for one in routes if one.state == "sent"}
            rows.append((person, len(mails), ", ".join(sorted(states)), ", ".join(sorted(reasons))))
        self._run(f"notifications inbox {READER}")
        self._screen.say("What came of the comments by mail:")
        self._screen.table(("PERSON", "MAILS", "STATE", "REASON"), *rows)
        self._show_a_digest()

    def _comments(self, person: str, channel: str) -> list[Account]:
        return [one for one in self._accounts() if (one.kind, one.to, one.channel) == (COMMENT, person, channel)]

    def _show_a_digest(self) -> None:
        """The first one that came."""
        for line in self._lines():
            if line.what == "took" and COMMENTS[0] in line.text:
                self._screen.output(f"To: {line.to}\nSubject: {line.subject}\n\n{line.text}")
                return

    def _count(self) -> None:
        """All routes by their states."""
        self._screen.heading("5  Count the routes by their states")
        counts = Counter((one.channel, one.state) for one in self._accounts())
        channels = ("inbox", "mail", "push", "sms")
        rows = [(channel, *(counts[channel, state] for state in audit.ENDS)) for channel in channels]
        self._screen.table(("CHANNEL", *(state.upper() for state in audit.ENDS)), *rows)
        self._screen.say(f"What is pending waits for the end of {SLEEPER}'s quiet hours, and would be sent then.")

    def checks(self) -> Iterable[Check]:
        return audit.audit(self._lines(), the_books(app, PEOPLE), UNWILLING, SLEEPER)

    def commands(self) -> Iterable[str]:
        dead = "notifications routes --state dead"
        return self._on_database("notifications list", dead, "notifications inbox ann", "mail list", "doctor")

    def _settled(self) -> bool:
        """Whether nothing is left to do before somebody's quiet hours are over."""
        return self._left() == self._quiet()

    def _quiet(self) -> int:
        return sum(one.quiet for one in self._accounts())

    def _progress(self) -> bool:
        """Show how many routes have come to their end."""
        accounts = self._accounts()
        ended = sum(one.state not in ("pending", "retrying", "collecting") for one in accounts)
        self._screen.progress(ended, len(accounts), " routes ended")
        return True

    def _accounts(self) -> list[Account]:
        return the_books(app, PEOPLE).accounts

    def _lines(self) -> list[Line]:
        return read_as(Line, self._place.ledger)
