"""The story: publish, kill, suspend, report, mend, replay, probe; and then compare with the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import IO

import msgspec

from durably.core.delivery import Standing
from durably.core.explain import SessionFacts
from durably.deliveries.register import QUEUE
from durably.demo.audit import Check
from durably.demo.deliveries.app import PEERS, app, deliveries, subscribers
from durably.demo.deliveries.audit import audit, every_account
from durably.demo.deliveries.lines import Line, arrivals
from durably.demo.deliveries.receivers import Receiver, receiving
from durably.demo.files import Place
from durably.demo.ledger import Ledger, read_as
from durably.demo.screen import Screen
from durably.demo.telling import Tale, told
from durably.demo.workers import LEASE, kill_the_sender, running, wait_until

SERVING = "durably.demo.deliveries.app:app"
SILENT, STUBBORN, LATE = "bakery", "garage", "harbour"
"""Who keeps a worker waiting until it is killed, who refuses refunds, and whom nobody can reach at first."""
SCHEDULE = ("100ms", "100ms", "100ms")
REFUND, PAID = "order.refunded", "order.paid"
WATCHED = 10
"""The message that is looked at closely: the first refund."""


class Plan(msgspec.Struct, frozen=True):
    """How much of everything; every tenth message is a refund."""

    messages: int = 120
    early: int = 80
    """So many are published before there is a worker."""


FAST = Plan(messages=30, early=20)


def tell(place: Place, *, fast: bool) -> int:
    """Tell it; the exit code is 0 if everything that was promised held."""
    return told(place, app, lambda screen, log: Story(place, FAST if fast else Plan(), screen, log))


class Story(Tale):
    """Six acts and a verdict."""

    title = "Durably: five peers, two workers, one kill -9, and one peer that nobody can reach"
    writers = "the publisher and by the receivers"
    last_act = 7

    def __init__(self, place: Place, plan: Plan, screen: Screen, log: IO[bytes]) -> None:
        super().__init__(app, Ledger(place.ledger), place, screen, log)
        self._plan = plan
        self._published: list[str] = []

    def play(self) -> None:
        with receiving(PEERS, self._ledger) as peers:
            self._publish(peers)
            with running(2, app, self._log, serving=SERVING) as sessions:
                self._kill(sessions)
                self._suspend()
                self._report()
                self._mend(peers[STUBBORN])
                self._probe(peers[LATE])

    def _publish(self, peers: dict[str, Receiver]) -> None:
        """Destinations are added, and messages accepted for all of them."""
        self._screen.heading(f"1  Publish {self._plan.early} messages to {len(PEERS)} peers")
        for name, peer in peers.items():
            deliveries.destinations.add(name, peer.address, schedule=SCHEDULE, jitter=0)
            [peer.secret] = deliveries.destinations.secrets(name)
            if name != LATE:
                peer.open()
        peers[STUBBORN].refuses = REFUND
        peers[SILENT].silent_at = WATCHED
        self._accept(self._plan.early)
        self._screen.say(
            f"{', '.join(PEERS[:-1])} and {PEERS[-1]} are webhooks on this machine, each with a secret of its own. "
            f"At the port of {LATE} nobody listens, and {STUBBORN} does not understand refunds. Each message is "
            "accepted together with its five deliveries, or not at all."
        )

    def _accept(self, until: int) -> None:
        """Publish messages up to a number, and note each once it is accepted."""
        for number in range(len(self._published) + 1, until + 1):
            event = PAID if number % WATCHED else REFUND
            sent = deliveries.publish(event, {"event": event, "number": number}, subscribers())
            self._published.append(sent.id)
            for peer in sent.deliveries:
                self._ledger.write(Line("published", peer, sent.id, number))

    def _kill(self, sessions: list[SessionFacts]) -> None:
        """A worker dies while a peer that has the message has not answered."""
        self._screen.heading("2  Deliver them, and kill a worker while it sends")
        self._greet(sessions)
        victim = kill_the_sender(sessions, lambda: next((line.pid for line in self._watched()), None))
        killed = time.monotonic()
        self._ledger.write(Line("killed", SILENT, self._published[WATCHED - 1], WATCHED, victim))
        self._screen.say(
            f"kill -9 {victim}: {SILENT} had read message {WATCHED}, and had not answered. Nobody can know now that "
            "it arrived."
        )
        known = {session.id for session in app.sessions.list()}
        self._accept(self._plan.messages)
        self._screen.say(f"{self._plan.messages - self._plan.early} more messages are published meanwhile.")
        self._await_another(known, self._progress)
        wait_until(lambda: (self._progress() and len(self._watched()) > 1) or None)
        self._screen.say(
            f"After {time.monotonic() - killed:.1f} s message {WATCHED} was sent again, with the same id, so that "
            f"{SILENT} can tell; the lease of a worker was {LEASE} s, the default is 30 s."
        )

    def _watched(self) -> list[Line]:
        """How often the silent peer has seen the message that it did not answer."""
        return [line for line in self._seen() if line.peer == SILENT and line.number == WATCHED]

    def _suspend(self) -> None:
        """Who cannot be reached is left alone; the others do not notice."""
        self._screen.heading("3  Suspend the peer that nobody can reach, while the others go on")
        destinations = deliveries.destinations
        wait_until(lambda: destinations.get(LATE).standing == Standing.SUSPENDED or None)
        for peer in PEERS:
            if peer != LATE:
                self._wait_for(peer)
        waiting = len(destinations.pending(LATE, limit=self._plan.messages + 1))
        self._screen.say(
            f"{LATE} was tried {len(SCHEDULE) + 1} times, {SCHEDULE[0]} apart; a real schedule lasts more than a day. "
            f"Its {waiting} messages wait, and none is lost; the other peers have seen all of theirs."
        )
        self._run("destinations list")

    def _report(self) -> None:
        """Who got one message."""
        self._screen.heading(f"4  Ask who got message {WATCHED}, who did not, why, and when it is tried again")
        self._run(f"destinations report {self._published[WATCHED - 1]}")

    def _mend(self, stubborn: Receiver) -> None:
        """What was refused for good is replayed once that can help."""
        self._screen.heading("5  Mend the peer that refused, and replay its dead letters")
        letters = app.dead.list(queue=QUEUE)
        self._screen.say(f"{STUBBORN} refused {len(letters)} refunds for good; they held up nothing behind them.")
        self._why(letters[-1].id)
        stubborn.refuses = None
        replayed = app.dead.replay(queue=QUEUE)
        self._wait_for(STUBBORN)
        left = len(app.dead.list(queue=QUEUE))
        self._screen.say(
            f"{STUBBORN} has learned what a refund is. `durably dead replay --queue {QUEUE}` gave {replayed} dead "
            f"letters a new cycle; {left} are left."
        )

    def _probe(self, late: Receiver) -> None:
        """The peer is back: one message finds out, and the others follow."""
        self._screen.heading("6  Probe the peer that was suspended, now that it is back")
        late.open()
        began = time.monotonic()
        destinations = deliveries.destinations
        destinations.probe(LATE)
        # A worker may have been quicker to send the probe, and then its answer is awaited.
        wait_until(lambda: destinations.get(LATE).standing == Standing.ACTIVE or None)
        self._screen.say(
            f"Somebody listens at the port of {LATE}. Without being asked, Durably would try again within half an "
            f"hour; `durably destinations probe {LATE}` tries at once, with the message that waited first. It is "
            "active again."
        )
        self._wait_for(LATE)
        self._screen.say(f"After {time.monotonic() - began:.1f} s it had everything that had waited for it.")

    def checks(self) -> Iterable[Check]:
        return audit(read_as(Line, self._place.ledger), every_account(app), LATE)

    def commands(self) -> Iterable[str]:
        report = f"destinations report {self._published[WATCHED - 1]}"
        return self._on_database("destinations list", f"destinations show {LATE}", report, "doctor")

    def _wait_for(self, peer: str) -> None:
        """Wait until nothing waits for a peer."""
        wait_until(lambda: (self._progress() and not deliveries.destinations.pending(peer, limit=1)) or None)

    def _progress(self) -> bool:
        """Show how many deliveries arrived."""
        arrived = {line.delivery for line in self._seen() if line.what == "took"}
        self._screen.progress(len(arrived), self._plan.messages * len(PEERS), " delivered")
        return True

    def _seen(self) -> list[Line]:
        return arrivals(read_as(Line, self._place.ledger))
