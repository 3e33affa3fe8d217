"""Notifications with moods: what each channel has really brought to somebody is written into a ledger."""

from __future__ import annotations

import asyncio
import os
import zlib

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.notifications.channel import Note
from durably.notifications.people import Person

PEOPLE = tuple(f"p{number}" for number in range(15))
KINDS = ("paid", "alarm", "comment", "mention", "offer")
MOODS = ("takes", "takes", "takes", "takes silently", "fails", "raises")
CALM = 5
"""From so many attempts on everything is taken."""
PATIENT = 0.01


def person(name: str) -> Person | None:
    """Every fifth has no push, and every third has mail."""
    if name not in PEOPLE:
        return None
    number = PEOPLE.index(name)
    addresses = {"sms": f"sms {name}"}
    if number % 5:
        addresses["push"] = f"push {name}"
    if number % 3 == 0:
        addresses["mail"] = f"{name}@x.example"
    return Person(addresses=addresses)


def is_gone(recipient: str) -> bool:
    """Whether the push service does not know somebody any more."""
    return PEOPLE.index(recipient) % 4 == 1


def declare(app: Durably) -> Durably:
    """What everybody has to know: those who tell, and those who bring it."""
    app.mail.sender = "news@here.example"
    notifications = app.notifications
    notifications.channels |= {"push": Way("push"), "sms": Way("sms")}
    notifications.resolver(person)
    notifications.kind("paid", ["inbox", "push", "mail"])
    notifications.kind("alarm", ["push"], critical=True, fallback={"push": "sms"})
    notifications.kind("comment", ["push"], digest={"push": "300ms"})
    notifications.kind("mention", {"inbox": 0, "push": "500ms"}, cancel_on_read=True)
    notifications.kind("offer", ["sms"], throttle="3/1h")
    return app


class Way:
    """A channel: it brings what it gets, or not, and says so, or not. While there is a file `hold`, it does not go on:
    with some before it brings them, with others before it says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def send(self, note: Note) -> Outcome | None:
        if self._name == "push" and is_gone(note.recipient):
            return Outcome(kind=Kind.GONE, reason="not registered any more")
        chance = zlib.crc32(f"{note.id} {note.attempt}".encode())
        mood = MOODS[chance % len(MOODS)] if note.attempt < CALM else "takes"
        holds = "after" if chance % 17 % 2 else "before"
        if holds == "before":
            await held("before")
        if mood.startswith("takes"):
            which = ",".join(str(one["n"]) for one in note.items)
            write("came", self._name, note.recipient, which, int(note.possible_duplicate))
        if holds == "after":
            await held("after")
        if mood == "raises":
            raise ValueError("it was told to raise")
        if mood == "fails":
            return Outcome(kind=Kind.TRANSIENT, reason="no net")
        return None if mood == "takes" else Outcome(kind=Kind.UNKNOWN, reason="no answer")


async def held(when: str) -> None:
    """Wait while there is the file, and say that somebody does."""
    hold = os.environ["LEDGER"] + ".hold"
    if os.path.exists(hold):  # noqa: ASYNC240 - that takes no time
        write("held", when, os.getpid())
    while os.path.exists(hold):  # noqa: ASYNC110, ASYNC240 - a file gives no signal
        await asyncio.sleep(PATIENT)


def write(*words: object) -> None:
    """Append a line to the ledger in one write, which outlives the process and does not mix with others' lines."""
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)
