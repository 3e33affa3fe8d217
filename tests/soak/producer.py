"""A process that offers tasks of every kind until it is told to stop: `python -m tests.soak.producer NAME SEED`."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from durably import DurablyError, Handle, Unique
from tests.soak.app import (
    app,
    exhausting,
    hopeless,
    keyed,
    ledger,
    once,
    parent,
    plain,
    poison,
    retried,
    stubborn,
    threaded,
)
from tests.soak.ledger import line
from tests.soak.place import BRAKE, STORE

LANES = 8
TICKS = 4
"""Unique keys per second; every lane of every producer that wants one at the same time wants the same."""
POISON_EVERY = 45.0
BULK = 80
EMBEDDED = STORE.startswith("sqlite")
ORDER = f"INSERT INTO orders VALUES ({'?' if EMBEDDED else '%s'})"


class Lane(threading.Thread):
    """Offers one task after the other. What it offers under its key has an order, since it waits for every answer."""

    def __init__(self, name: str, seed: str, stopping: threading.Event, poisons: bool) -> None:
        super().__init__(name=name)
        self._chance = random.Random(f"{seed}/{name}")
        self._stopping = stopping
        self._poisons = poisons
        self._next_poison = time.monotonic() + 2.0
        self._number = 0
        self._keyed = 0
        self._kinds: list[Callable[[str], None]] = []
        for kind, weight in {
            self._plain: 30,
            self._keyed_: 24,
            self._napping: 18,
            self._outbox: 10,
            self._stubborn: 3,
            self._delayed: 6,
            self._retried: 6,
            self._parent: 5,
            self._threaded: 4,
            self._once: 4,
            self._unique: 4,
            self._bulk: 2,
            self._hopeless: 1,
            self._exhausting: 1,
        }.items():
            self._kinds += [kind] * weight

    def run(self) -> None:
        while not self._stopping.is_set():
            if BRAKE.exists():
                self._stopping.wait(0.05)
                continue
            self._number += 1
            label = f"{self.name}.{self._number}"
            if self._poisons and time.monotonic() > self._next_poison:
                self._next_poison += POISON_EVERY
                self._poison(label)
            else:
                self._chance.choice(self._kinds)(label)

    def _poison(self, label: str) -> None:
        self._offer("poison", label, lambda: poison.enqueue(label))

    def _plain(self, label: str) -> None:
        self._offer("plain", label, lambda: plain.enqueue(label))

    def _napping(self, label: str) -> None:
        nap = self._chance.uniform(0.02, 0.6)
        self._offer("plain", label, lambda: plain.enqueue(label, nap))

    def _stubborn(self, label: str) -> None:
        """Still running, elsewhere, when a frozen worker that ran it before wakes up and wants to report."""
        nap = self._chance.uniform(1.0, 3.0)
        self._offer("stubborn", label, lambda: stubborn.enqueue(label, nap))

    def _delayed(self, label: str) -> None:
        delay = self._chance.uniform(0.01, 4.0)
        self._offer("plain", label, lambda: plain.using(delay=delay).enqueue(label))

    def _threaded(self, label: str) -> None:
        self._offer("threaded", label, lambda: threaded.enqueue(label))

    def _keyed_(self, label: str) -> None:
        self._keyed += 1
        number, fails = self._keyed, int(self._chance.random() < 0.05)
        self._offer("keyed", label, lambda: keyed.using(key=self.name).enqueue(label, number, fails))

    def _retried(self, label: str) -> None:
        fails = self._chance.randint(1, 3)
        self._offer("retried", label, lambda: retried.enqueue(label, fails))

    def _parent(self, label: str) -> None:
        self._offer("parent", label, lambda: parent.enqueue(label))

    def _once(self, label: str) -> None:
        nap = self._chance.uniform(0.0, 0.2)
        self._offer("once", label, lambda: once.enqueue(label, nap))

    def _unique(self, label: str) -> None:
        shared = f"unique/{int(time.monotonic() * TICKS)}"
        self._offer("plain", shared, lambda: plain.using(unique=Unique(shared, scope="forever")).enqueue(shared))

    def _hopeless(self, label: str) -> None:
        self._offer("hopeless", label, lambda: hopeless.enqueue(label))

    def _exhausting(self, label: str) -> None:
        self._offer("exhausting", label, lambda: exhausting.enqueue(label))

    def _bulk(self, label: str) -> None:
        """Many in one call, which answers without their ids."""
        offer = line("offered", label, name="plain", many=BULK)
        ledger.write(offer)
        try:
            app.enqueue_many(plain.call(each) for each in offer.labels)
        except DurablyError as error:
            ledger.write(line("unsure", label, name="plain", note=str(error), many=BULK))
            self._stopping.wait(0.1)
        else:
            ledger.write(line("accepted", label, name="plain", many=BULK))

    def _offer(self, name: str, label: str, enqueue: Callable[[], Handle[Any]]) -> None:
        """Write down the offer, make it, and write down the answer."""
        ledger.write(line("offered", label, name=name))
        try:
            handle = enqueue()
        except DurablyError as error:
            ledger.write(line("unsure", label, name=name, note=str(error)))
            self._stopping.wait(0.1)
        else:
            ledger.write(line("accepted", label, task=handle.id, name=name))

    def _outbox(self, label: str) -> None:
        """An order and its task in a transaction of our own: both, or neither."""
        ledger.write(line("offered", label, name="plain", note="outbox"))
        sent = False
        task = ""
        try:
            with transaction() as connection:
                connection.execute(ORDER, (label,))
                task = plain.using(within=connection).enqueue(label).id
                if self._chance.random() < 0.3:
                    connection.rollback()
                else:
                    sent = True
                    connection.commit()
        except (DurablyError, psycopg.Error, sqlite3.Error) as error:
            ledger.write(line("unsure" if sent else "rolled back", label, name="plain", note=str(error)))
            self._stopping.wait(0.1)
        else:
            ledger.write(line("accepted" if sent else "rolled back", label, task=task, name="plain", note="outbox"))


@contextmanager
def transaction() -> Iterator[Any]:
    """A connection of the caller with a transaction open on it; whatever is not committed is rolled back."""
    if EMBEDDED:
        with closing(sqlite3.connect(STORE.removeprefix("sqlite:///"), timeout=30, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous = FULL")
            file.execute("BEGIN IMMEDIATE")
            yield file
    else:
        with closing(psycopg.connect(STORE, connect_timeout=10)) as connection:
            yield connection


def main() -> None:
    name, seed = sys.argv[1:]
    stopping = threading.Event()
    for told in (signal.SIGTERM, signal.SIGINT):
        signal.signal(told, lambda *_: stopping.set())
    lanes = [
        Lane(f"{name}.{index}", seed, stopping, poisons=name.startswith("a") and index == 0) for index in range(LANES)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        # A signal may reach any thread, and is heard by this one only when it is awake.
        while lane.is_alive():
            lane.join(0.2)
    app.close()


if __name__ == "__main__":
    main()
